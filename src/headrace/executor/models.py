r"""From what a user calls a model to files that can be run.

    smollm2 --fetch--> .gguf --convert, once--> CACHE/ir/KEY/ --\
    ORG/NAME[:QUANT] --hub----------^                            \
    path to a .gguf file -----------^                             >-- ModelFiles
    path to a folder with OpenVINO IR ---------------------------/

Knows names, folders and headers; nothing of tensors. Everything that is wrong with a model is found
here and said as `ModelUnusable` or, when the name itself is wrong, `BadInput`.
"""

import difflib
import hashlib
import json
import re
import shutil
import stat
import subprocess
import sys
import time
import zlib
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

from headrace.core.errors import BadInput, ModelOutOfReach, ModelUnusable
from headrace.executor import cache, fetch
from headrace.executor.gguf import (
    READABLE_TYPES,
    GgufHeader,
    first_token_id,
    read_header,
    refuse_architecture,
)
from headrace.executor.hub_names import IR_PARTS, HubName, read_hub_name
from headrace.executor.telling import say

_DESCRIPTION = "headrace.json"
_LARGEST_CONFIG_BYTES = 1 << 24
_TOKENIZERS_BYTES = 1 << 24
_BUILT_IN = {model.name: model for model in (fetch.SMOLLM2,)}
_WHAT_WORKS = (
    "name one of: smollm2 (built in), ORG/NAME or ORG/NAME:QUANT on a hub, the path of a .gguf file, "
    "the path of a folder with OpenVINO IR"
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
    first_token_id: int | None = None
    """Before every text, where the folder's own tokenizer does not put it there."""

    @property
    def weights_bytes(self) -> int:
        return (self.folder / "openvino_model.bin").stat().st_size

    @property
    def expanded_bytes(self) -> int:
        """What the weights take in the forms of `weights.py`: measured for 4 bits, less for more."""
        return 15 * self.weights_bytes


def locate(model: str, revision: str | None = None) -> ModelFiles:
    """Fetches, converts and caches as needed; what takes longer than a moment is told on stderr.

    `revision` is a branch, tag or commit of a hub's repository. What is on the disk goes before a hub.
    """
    path = _path(model)
    local = model in _BUILT_IN or path.exists()
    if local and revision is not None:
        raise BadInput(f"--revision is {revision!r}, and {model[:200]!r} is not from a hub", "leave it out")
    if built_in := _BUILT_IN.get(model):
        return _from_built_in(built_in)
    if path.is_dir():
        return _from_folder(path)
    if path.is_file():
        return _from_gguf(path, _key_of_file(path))
    if local:
        raise ModelUnusable(
            f"{model} is {_kind(path)}, not a file", "give a .gguf file; copy it first if need be"
        )
    if name := read_hub_name(model):
        return _from_hub(name, revision)
    raise _not_found(model)


def _path(model: str) -> Path:
    try:
        path = Path(model).expanduser()
        path.exists()
    except (OSError, ValueError, RuntimeError) as error:
        raise BadInput(f"{model[:200]!r} is no usable path: {error}", _WHAT_WORKS) from error
    return path


def _kind(path: Path) -> str:
    mode = path.stat().st_mode
    return "a named pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"


def _from_built_in(built_in: fetch.BuiltIn) -> ModelFiles:
    key = _key(built_in.sha256)
    if converted := _read_converted(_place(key)):  # then the GGUF file itself is not needed
        return converted
    return _from_gguf(fetch.fetch(built_in), key, name=built_in.name)


def _from_hub(name: HubName, revision: str | None) -> ModelFiles:
    """Called as it was named, as vLLM has it."""
    hub = import_module("headrace.executor.hub")  # 0.3 s of imports, which nobody else should pay
    found = hub.find(name, revision)
    if not found.is_gguf:
        return replace(_from_folder(hub.get(found)), name=name.given)
    key = _key(found.sha256)
    files = _read_converted(_place(key)) or _from_gguf(hub.get(found), key)
    return replace(files, name=name.given)


def _from_gguf(path: Path, key: str, name: str | None = None) -> ModelFiles:
    place = _place(key)
    if converted := _read_converted(place):
        return converted
    _refuse_shards(path.name)
    header = read_header(path)
    _refuse_shards(path.name, header.count("split.count"))
    files = _describe(path, header, name)
    size = path.stat().st_size
    cache.require_room(place, room_to_convert(size), f"the conversion of {path.name}")
    say(f"converting {path.name} ({size / 1e6:.0f} MB) to OpenVINO, once; a few seconds per 100 MB")
    began_s = time.monotonic()
    cache.put(place, lambda temporary: _convert(path, temporary, files))
    say(f"converted in {time.monotonic() - began_s:.0f} s")
    converted = _read_converted(place)
    assert converted is not None, f"{place} was just written"
    return converted


def room_to_convert(gguf_bytes: int) -> int:
    """Scales and zero points come out larger; a file of Q6_K alone grows most. And there are tokenizers."""
    return gguf_bytes * 8 // 5 + _TOKENIZERS_BYTES


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
    refuse_architecture(path.name, architecture)
    if unreadable := header.unreadable_types:
        raise ModelUnusable(
            f"{path.name} has weights of {', '.join(unreadable)}, which OpenVINO GenAI cannot read",
            f"take a file of another quantisation; {', '.join(READABLE_TYPES.values())} can be read, "
            "Q8_0 most exactly",
        )
    return ModelFiles(name or path.stem, path.parent, architecture, context, first_token_id(header))


def _convert(gguf: Path, temporary: Path, files: ModelFiles) -> Path:
    folder = temporary / "ir"
    folder.mkdir()
    within_s = 120 + gguf.stat().st_size // 1_000_000  # it takes a twentieth; a file may be made to hang it
    command = [sys.executable, "-m", "headrace.executor.convert", str(gguf), str(folder)]
    try:
        done = subprocess.run(  # noqa: S603 - our own module, no shell
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=within_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ModelUnusable(f"{gguf.name} was not converted within {within_s} s") from error
    if done.returncode:
        raise _not_converted(gguf, files, done.stdout.decode(errors="replace"))
    describe_conversion(folder, files)
    return folder


def describe_conversion(folder: Path, files: ModelFiles) -> None:
    """Beside the IR: whose it is, and sums by which a later start tells that it is whole."""
    sizes = {name: (folder / name).stat().st_size for name in IR_PARTS}
    checksums = {name: _crc32(folder / name) for name in IR_PARTS}
    description = {
        "name": files.name,
        "architecture": files.architecture,
        "max_model_len": files.max_model_len,
        "first_token_id": files.first_token_id,
        "sizes_bytes": sizes,
        "crc32": checksums,
    }
    (folder / _DESCRIPTION).write_text(json.dumps(description, indent=1), encoding="utf-8")


def _not_converted(gguf: Path, files: ModelFiles, said: str) -> ModelUnusable:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    told = lines[-1][:300] if lines else "no message"
    if "iostream error" in told or "No space left" in told:  # all that OpenVINO says of a write that failed
        needed, place = room_to_convert(gguf.stat().st_size), _place("")
        free = shutil.disk_usage(place).free
        return ModelOutOfReach(
            f"cannot write the converted {gguf.name}: that takes about {needed:,} bytes in {place}, "
            f"and {free:,} were free when it stopped",
            cache.MAKE_ROOM,
        )
    return ModelUnusable(
        f"OpenVINO GenAI cannot convert {gguf.name} (architecture {files.architecture}): {told}",
        "is the file whole and sound? Else convert the original with `optimum-cli export openvino` "
        "and give that folder",
    )


def _read_converted(folder: Path) -> ModelFiles | None:
    """What an earlier conversion left; None if it is not there or not as it was left."""
    try:
        description = json.loads((folder / _DESCRIPTION).read_text(encoding="utf-8"))
        whole = all((folder / name).stat().st_size == description["sizes_bytes"][name] for name in IR_PARTS)
        if not whole or any(_crc32(folder / name) != description["crc32"][name] for name in IR_PARTS):
            return None
        return ModelFiles(
            str(description["name"]),
            folder,
            str(description["architecture"]),
            int(description["max_model_len"]),
            None if description["first_token_id"] is None else int(description["first_token_id"]),
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
    missing = [name for name in IR_PARTS if not (folder / name).is_file()]
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
    recipe = "|".join(map(str, (*parts, version("openvino-genai"), "mended-2")))
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
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        return ModelUnusable(f"cannot read {folder}: {error.strerror}", "check its rights")
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
    return BadInput(f"no model or file {model!r}", _WHAT_WORKS)
