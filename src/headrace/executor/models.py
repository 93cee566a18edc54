r"""From what a user calls a model to files that can be run.

    smollm2 --fetch--> .gguf --convert, once--> CACHE/ir/KEY/ --\
    path to a .gguf file ------------^                          >-- ModelFiles
    path to a folder with OpenVINO IR -------------------------/

Knows names, folders and headers; nothing of tensors. Everything that is wrong with a model is found
here and said as `ModelUnusable` or, when the name itself is wrong, `BadInput`.
"""

import difflib
import hashlib
import json
import re
import subprocess
import sys
import zlib
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from headrace.core.errors import BadInput, ModelUnusable
from headrace.executor import cache, fetch
from headrace.executor.gguf import GgufHeader, read_header

_IR_STEMS = ("openvino_model", "openvino_tokenizer", "openvino_detokenizer")
_IR_FILES = tuple(f"{stem}{suffix}" for stem in _IR_STEMS for suffix in (".xml", ".bin"))
_DESCRIPTION = "headrace.json"
_LARGEST_CONFIG_BYTES = 1 << 24
_CONVERT_TIMEOUT_S = 3600
_BUILT_IN = {model.name: model for model in (fetch.SMOLLM2,)}
_WHAT_WORKS = (
    "name one of: smollm2 (built in), the path of a .gguf file, the path of a folder with OpenVINO IR"
)
_SHARD = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model that is ready to be compiled."""

    name: str
    folder: Path
    """Holds openvino_model, openvino_tokenizer and openvino_detokenizer, each .xml and .bin."""
    architecture: str
    max_model_len: int
    """Context length the model was trained for, in tokens."""

    @property
    def weights_bytes(self) -> int:
        return (self.folder / "openvino_model.bin").stat().st_size


def locate(model: str) -> ModelFiles:
    """Fetches, converts and caches as needed; what takes longer than a moment is told on stderr."""
    if built_in := _BUILT_IN.get(model):
        return _from_built_in(built_in)
    try:
        path = Path(model).expanduser()
        is_folder, is_file = path.is_dir(), path.is_file()
    except (OSError, ValueError, RuntimeError) as error:
        raise BadInput(f"{model[:200]!r} is no usable path: {error}", _WHAT_WORKS) from error
    if is_folder:
        return _from_folder(path)
    if is_file:
        return _from_gguf(path, _key_of_file(path))
    raise _not_found(model)


def _from_built_in(built_in: fetch.BuiltIn) -> ModelFiles:
    key = _key(built_in.sha256)
    if converted := _read_converted(_place(key)):  # then the GGUF file itself is not needed
        return converted
    return _from_gguf(fetch.fetch(built_in), key, name=built_in.name)


def _from_gguf(path: Path, key: str, name: str | None = None) -> ModelFiles:
    place = _place(key)
    if converted := _read_converted(place):
        return converted
    _refuse_shards(path.name)
    header = read_header(path)
    _refuse_shards(path.name, header.count("split.count"))
    files = _describe(path, header, name)
    megabytes = path.stat().st_size / 1e6
    message = (
        f"headrace: converting {path.name} ({megabytes:.0f} MB) to OpenVINO, once; a few seconds per 100 MB"
    )
    print(message, file=sys.stderr, flush=True)  # noqa: T201 - progress for a person; stdout stays clean
    cache.put(place, lambda temporary: _convert(path, temporary, files))
    converted = _read_converted(place)
    assert converted is not None, f"{place} was just written"
    return converted


def _describe(path: Path, header: GgufHeader, name: str | None) -> ModelFiles:
    architecture = header.text("general.architecture")
    if architecture is None:
        raise ModelUnusable(f"{path.name} does not name its architecture", "is it a language model?")
    context = header.count(f"{architecture}.context_length")
    if context is None or header.tensors == 0:
        raise ModelUnusable(
            f"{path.name} (architecture {architecture}) has {header.tensors} tensors and no context length",
            "give a GGUF file of a whole language model, not of an adapter, a projector or a vocabulary",
        )
    return ModelFiles(name or path.stem, path.parent, architecture, context)


def _convert(gguf: Path, temporary: Path, files: ModelFiles) -> Path:
    folder = temporary / "ir"
    folder.mkdir()
    command = [sys.executable, "-m", "headrace.executor.convert", str(gguf), str(folder)]
    try:
        done = subprocess.run(  # noqa: S603 - our own module, no shell
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_CONVERT_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ModelUnusable(f"{gguf.name} was not converted within {_CONVERT_TIMEOUT_S} s") from error
    if done.returncode:
        lines = [line for line in done.stdout.decode(errors="replace").splitlines() if line.strip()]
        told = lines[-1].strip()[:300] if lines else "no message"
        raise ModelUnusable(
            f"OpenVINO GenAI cannot convert {gguf.name} (architecture {files.architecture}): {told}",
            "it reads llama, qwen2 and qwen3 models; or convert the original with "
            "`optimum-cli export openvino` and give that folder",
        )
    sizes = {name: (folder / name).stat().st_size for name in _IR_FILES}
    checksums = {name: _crc32(folder / name) for name in _IR_FILES}
    description = {
        "name": files.name,
        "architecture": files.architecture,
        "max_model_len": files.max_model_len,
        "sizes_bytes": sizes,
        "crc32": checksums,
    }
    (folder / _DESCRIPTION).write_text(json.dumps(description, indent=1), encoding="utf-8")
    return folder


def _read_converted(folder: Path) -> ModelFiles | None:
    """What an earlier conversion left; None if it is not there or not as it was left."""
    try:
        description = json.loads((folder / _DESCRIPTION).read_text(encoding="utf-8"))
        whole = all((folder / name).stat().st_size == description["sizes_bytes"][name] for name in _IR_FILES)
        if not whole or any(_crc32(folder / name) != description["crc32"][name] for name in _IR_FILES):
            return None
        return ModelFiles(
            str(description["name"]),
            folder,
            str(description["architecture"]),
            int(description["max_model_len"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _crc32(path: Path) -> int:
    """Against damage, not malice: the cache is the user's own. Reads as fast as the page cache gives."""
    checksum = 0
    with path.open("rb") as file:
        while part := file.read(1 << 22):
            checksum = zlib.crc32(part, checksum)
    return checksum


def _from_folder(folder: Path) -> ModelFiles:
    missing = [name for name in _IR_FILES if not (folder / name).is_file()]
    if "openvino_model.xml" in missing:
        raise _no_ir(folder)
    if missing:
        raise ModelUnusable(
            f"{folder} lacks {', '.join(missing)}",
            "export it again with `optimum-cli export openvino`, which writes model and tokenizers",
        )
    if converted := _read_converted(folder):
        return converted
    architecture, context = _read_config(folder / "config.json")
    return ModelFiles(folder.resolve().name, folder.resolve(), architecture, context)


def _read_config(path: Path) -> tuple[str, int]:
    """Architecture and context length from the config.json that an export writes beside the model."""
    hint = "a folder of IR needs the config.json of its model, with max_position_embeddings"
    try:
        if path.stat().st_size > _LARGEST_CONFIG_BYTES:
            raise ModelUnusable(f"{path} has {path.stat().st_size} bytes", hint)
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelUnusable(f"cannot read {path}: {error}", hint) from error
    text = config.get("text_config", config) if isinstance(config, dict) else None
    context = text.get("max_position_embeddings") if isinstance(text, dict) else None
    if not isinstance(context, int) or isinstance(context, bool) or context < 1:
        raise ModelUnusable(f"{path} does not state the context length", hint)
    return str(config.get("model_type", "unknown")), context


def _place(key: str) -> Path:
    return cache.cache_folder() / "ir" / key


def _key(*parts: object) -> str:
    """A conversion is as good as its input and its converter: both are in the key."""
    recipe = "|".join(map(str, (*parts, version("openvino-genai"), "mended-1")))
    return hashlib.sha256(recipe.encode(errors="surrogateescape")).hexdigest()[:24]


def _key_of_file(path: Path) -> str:
    status = path.stat()
    return _key(path.resolve(), status.st_size, status.st_mtime_ns)


def _refuse_shards(name: str, count: int | None = None) -> None:
    if (match := _SHARD.search(name)) and int(match.group(1)) > 1:
        count = int(match.group(1))
    if count and count > 1:
        raise ModelUnusable(
            f"{name} is one of {count} shards, and only single files can be read",
            "join them first: `llama-gguf-split --merge FIRST_SHARD OUTPUT.gguf`",
        )


def _no_ir(folder: Path) -> ModelUnusable:
    names = sorted(path.name for path in folder.iterdir())
    ggufs = [name for name in names if name.endswith(".gguf")]
    if ggufs:
        return ModelUnusable(f"{folder} holds no OpenVINO IR, but {ggufs[0]}", f"give {folder / ggufs[0]}")
    if any(name.endswith((".safetensors", "pytorch_model.bin")) for name in names):
        return ModelUnusable(
            f"{folder} holds weights for PyTorch; they cannot be run as they are",
            f"`optimum-cli export openvino --model {folder} OUTPUT_FOLDER` converts them; or get a GGUF file",
        )
    return ModelUnusable(f"{folder} holds no openvino_model.xml", _WHAT_WORKS)


def _not_found(model: str) -> BadInput:
    if close := difflib.get_close_matches(model.lower(), _BUILT_IN, n=1, cutoff=0.6):
        return BadInput(f"no model or file {model!r}", f"did you mean {close[0]}?")
    if re.fullmatch(r"[\w.-]+/[\w.-]+", model) and not model.endswith(".gguf"):
        return BadInput(
            f"there is no folder {model!r}; if it is a name on a model hub: nothing is downloaded from hubs",
            "download a GGUF file of it (a repository ending in -GGUF has some) and give its path",
        )
    return BadInput(f"no model or file {model!r}", _WHAT_WORKS)
