"""`--config FILE`: vLLM's YAML, whose keys are the names of flags.

max-num-seqs: 64            ->   --max-num-seqs 64
enable-prefix-caching: false     --no-enable-prefix-caching
served-model-name: [a, b]        --served-model-name a --served-model-name b
"""

from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

from headrace.cli.vllm_flags import SEVERAL
from headrace.core.errors import BadInput

_LARGEST_BYTES = 1 << 20
_FORM = "a configuration is lines of `flag: value`, such as `max-num-seqs: 64`"


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice, of which YAML takes the last in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        if twice := [key for key, times in keys.items() if times > 1]:
            raise yaml.YAMLError(f"{twice[0]!r:.100} stands in it more than once")
        return super().construct_mapping(node, deep)


def read_config(
    path: Path, flags: Mapping[str, bool], given: Collection[str]
) -> tuple[str | None, list[str]]:
    """The model, if it names one, and the arguments it stands for, without those that are `given`.

    `flags` say whether they take a value.
    Raises `BadInput` for a file that is none, and for keys that are no flags.
    """
    model: str | None = None
    args: list[str] = []
    names = dict[str, Any]()
    for key, value in _load(path).items():
        name = f"--{key}".replace("_", "-")
        if name in names:
            raise BadInput(f"{path}: {name[2:]:.100} stands in it twice, with - and with _", _FORM)
        names[name] = key
        if name in {"--model", "--model-tag"}:
            (model,) = _values(path, name, value)
        elif name not in flags or name == "--config":
            raise BadInput(
                f"{path}: {key!r:.100} is no flag of `headrace serve`", "see `headrace serve --help`"
            )
        elif name not in given and f"--no-{name[2:]}" not in given:
            args += _as_args(path, name, value, flags)
    return model, args


def _load(path: Path) -> dict[Any, Any]:
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise BadInput(f"{path} has {path.stat().st_size} bytes, and is no configuration", _FORM)
        config = _Loader(path.read_text(encoding="utf-8")).get_single_data()
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        reason = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())
        raise BadInput(f"cannot read the configuration {path}: {reason}", _FORM) from error
    if not isinstance(config, dict):
        raise BadInput(f"{path} holds no flags", _FORM)
    return config


def _as_args(path: Path, name: str, value: Any, flags: Mapping[str, bool]) -> list[str]:
    if not flags[name]:
        if not isinstance(value, bool):
            raise BadInput(f"{path}: {name[2:]} is true or false, not {_shown(value)}", _FORM)
        off = f"--no-{name[2:]}"
        return [name] if value else [off] if off in flags else []
    return [part for each in _values(path, name, value) for part in (name, each)]


def _values(path: Path, name: str, value: Any) -> list[str]:
    """Raises `BadInput` for a list where one value is wanted, and for what is no value."""
    if isinstance(value, list) and name in SEVERAL and value:
        return [_value(path, name, each) for each in value]
    return [_value(path, name, value)]


def _value(path: Path, name: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise BadInput(f"{path}: {name[2:]} takes a value, not {_shown(value)}", _FORM)
    return str(value)


def _shown(value: Any) -> str:
    """For a person, and bounded: a small file can hold lists of lists of a billion items."""
    if isinstance(value, list | dict):
        return f"{'a list' if isinstance(value, list) else 'a mapping'} of {len(value)}"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "nothing"}[value]
    return f"{value!r:.100}"
