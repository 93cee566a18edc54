"""`--config FILE`: vLLM's YAML, whose keys are the names of flags.

max-num-seqs: 64            ->   --max-num-seqs 64
enable-prefix-caching: false     --no-enable-prefix-caching
served-model-name: [a, b]        --served-model-name a --served-model-name b
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

from headrace.core.errors import BadInput

_LARGEST_BYTES = 1 << 20
_FORM = "a configuration is lines of `flag: value`, such as `max-num-seqs: 64`"


def read_config(
    path: Path, flags: Mapping[str, bool], given: Collection[str]
) -> tuple[str | None, list[str]]:
    """The model, if it names one, and the arguments it stands for, without those that are `given`.

    `flags` say whether they take a value.
    Raises `BadInput` for a file that is none, and for keys that are no flags.
    """
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise BadInput(f"{path} has {path.stat().st_size} bytes, and is no configuration", _FORM)
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        reason = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())
        raise BadInput(f"cannot read the configuration {path}: {reason}", _FORM) from error
    if not isinstance(config, dict):
        raise BadInput(f"{path} holds no flags", _FORM)
    model: str | None = None
    args: list[str] = []
    for key, value in config.items():
        name = f"--{key}".replace("_", "-")
        if name in {"--model", "--model-tag"}:
            model = str(value)
        elif name not in flags or name == "--config":
            raise BadInput(f"{path}: {key!r} is no flag of `headrace serve`", "see `headrace serve --help`")
        elif name not in given and f"--no-{name[2:]}" not in given:
            args += _as_args(path, name, value, flags)
    return model, args


def _as_args(path: Path, name: str, value: Any, flags: Mapping[str, bool]) -> list[str]:
    if not flags[name]:
        if not isinstance(value, bool):
            raise BadInput(f"{path}: {name[2:]} is true or false, not {value!r:.100}", _FORM)
        off = f"--no-{name[2:]}"
        return [name] if value else [off] if off in flags else []
    if isinstance(value, bool):
        raise BadInput(f"{path}: {name[2:]} takes a value, not {str(value).lower()}", _FORM)
    if isinstance(value, dict) or value is None:
        raise BadInput(f"{path}: {name[2:]} takes a value, not {value!r:.100}", _FORM)
    values = value if isinstance(value, list) else [value]
    return [part for each in values for part in (name, str(each))]
