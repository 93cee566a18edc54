"""How a model on a hub is named, and which of its repository's files is meant. No network.

    ORG/NAME                    the repository's OpenVINO IR, else its best readable GGUF file
    ORG/NAME:QUANT              the GGUF file of that quantisation, as vLLM and llama.cpp write it
    ORG/NAME/PATH/FILE.gguf     that very file

Quantisations are found in file names: the last part before `.gguf`, in any case.
"""

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.core.errors import ModelUnusable

PREFERRED = ("Q8_0", "Q4_K_M", "Q4_0", "F16", "Q6_K", "Q4_K_S", "Q4_1")
"""Where no quantisation is named. Q8_0 comes before Q4_K_M, llama.cpp's default: it is nearer to the
original, and OpenVINO's reader cannot read the Q5_0 that a Q4_K_M file of a narrow model has."""

IR_PARTS = tuple(
    f"openvino_{part}.{kind}" for part in ("model", "tokenizer", "detokenizer") for kind in ("xml", "bin")
)

_PART = r"[A-Za-z0-9][\w.-]*"
_ID = re.compile(rf"({_PART}/{_PART})(?::([\w+.-]+)|/((?:[^/]+/)*[^/]+\.gguf))?")
_QUANT = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q\d\w*|TQ\d\w*|MXFP4\w*|NVFP4\w*|BF16|FP?16|FP?32))$", re.IGNORECASE
)
_BESIDE_IR = re.compile(r"[^/]+\.(?:json|jinja)")  # its configuration, chat template and special tokens
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})$")
_OTHER_KINDS = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
"""Parts of names of GGUF files that are no language models, as llama.cpp has them."""


@dataclass(frozen=True, slots=True)
class HubName:
    """A model's name, taken apart."""

    given: str
    repository: str
    quantisation: str | None
    file: str | None


@dataclass(frozen=True, slots=True)
class RepositoryFile:
    """One file of a repository. `sha256` is None for small ones, which hubs keep in git itself."""

    path: str
    size_bytes: int
    sha256: str | None


def read_hub_name(model: str) -> HubName | None:
    """None for what cannot be one."""
    match = _ID.fullmatch(model) if len(model) <= 300 else None
    if match is None or ".." in model or "--" in match[1]:
        return None
    return HubName(model, match[1], match[2], match[3])


def choose(name: HubName, files: Sequence[RepositoryFile]) -> list[RepositoryFile]:
    """The one GGUF file that is meant, or the files of an OpenVINO IR. Raises `ModelUnusable`."""
    if name.file is not None:
        return [_that_file(name, files)]
    paths = {file.path for file in files}
    if name.quantisation is None and "openvino_model.xml" in paths:
        return [file for file in files if file.path in IR_PARTS or _BESIDE_IR.fullmatch(file.path)]
    models = [file for file in files if _is_model(file.path)]
    if not models:
        raise _no_gguf(name, files)
    return [_of_quantisation(name, models)]


def _that_file(name: HubName, files: Sequence[RepositoryFile]) -> RepositoryFile:
    for file in files:
        if file.path == name.file:
            return file
    ggufs = [file.path for file in files if file.path.endswith(".gguf")]
    near = difflib.get_close_matches(name.file or "", ggufs, n=1, cutoff=0.3) or ggufs[:1]
    raise ModelUnusable(
        f"{name.repository} has no file {name.file}",
        f"did you mean {name.repository}/{near[0]}?" if near else "it has no GGUF file at all",
    )


def _of_quantisation(name: HubName, models: Sequence[RepositoryFile]) -> RepositoryFile:
    """Of those of one quantisation the one with the shortest path, whole files before shards."""
    by_quant: dict[str, list[RepositoryFile]] = {}
    for file in models:
        by_quant.setdefault(quantisation_of(file.path), []).append(file)
    if name.quantisation is None:
        wanted = next((quant for quant in PREFERRED if quant in by_quant), None)
        if wanted is None and len(models) > 1:
            raise ModelUnusable(
                f"{name.repository} has GGUF files of {_listed(by_quant)}; none that can be read for sure",
                f"name one: {name.repository}:{min(by_quant)}; {', '.join(PREFERRED)} can be read",
            )
        return min(by_quant[wanted] if wanted else models, key=_plainness)
    wanted = _canonical(name.quantisation)
    if wanted not in by_quant:
        close = difflib.get_close_matches(wanted, by_quant, n=1, cutoff=0.0)
        raise ModelUnusable(
            f"{name.repository} has no GGUF file of {name.quantisation}; it has {_listed(by_quant)}",
            f"{name.repository}:{close[0]}" if close else f"leave :{name.quantisation} out",
        )
    return min(by_quant[wanted], key=_plainness)


def quantisation_of(path: str) -> str:
    """`Q4_K_M` of `some-folder/name-q4_k_m-00001-of-00002.gguf`; `other` where a name does not tell."""
    match = _QUANT.search(_SHARD.sub("", path.removesuffix(".gguf")))
    return _canonical(match[1]) if match else "other"


def shards_of(path: str) -> int:
    """How many files the model is cut into, by its name."""
    match = _SHARD.search(path.removesuffix(".gguf"))
    return int(match[2]) if match else 1


def _canonical(quantisation: str) -> str:
    upper = quantisation.upper()
    return {"FP16": "F16", "FP32": "F32"}.get(upper, upper)


def _plainness(file: RepositoryFile) -> tuple[int, int, str]:
    return shards_of(file.path), len(file.path), file.path


def _is_model(path: str) -> bool:
    return path.endswith(".gguf") and not any(part in path.rpartition("/")[2] for part in _OTHER_KINDS)


def _listed(names: dict[str, list[RepositoryFile]]) -> str:
    return ", ".join(sorted(names))


def _no_gguf(name: HubName, files: Sequence[RepositoryFile]) -> ModelUnusable:
    if any(file.path.endswith((".safetensors", ".bin", ".pth")) for file in files):
        return ModelUnusable(
            f"{name.repository} holds only weights for PyTorch (safetensors); they cannot be run as they are",
            f"take a GGUF repository of it (often {name.repository.rpartition('/')[2]}-GGUF), or convert it: "
            f"`optimum-cli export openvino --model {name.repository} FOLDER`, then give FOLDER",
        )
    return ModelUnusable(
        f"{name.repository} holds neither a GGUF file nor openvino_model.xml ({len(files)} files)",
        "a repository whose name ends in -GGUF has some",
    )
