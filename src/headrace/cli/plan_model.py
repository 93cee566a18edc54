"""What `headrace plan` is asked about: from a name, a file, a hub or plain numbers to a model's shape.

llama-3.1-8b[@fp8] | meta-llama/Llama-3.1-8B | config.json | a folder with one | model.gguf | --layers ...
    --model_from--> PlannedModel
"""

import json
import re
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TypedDict

from headrace.capacity.catalogue import catalogue, did_you_mean, find_model
from headrace.capacity.gpus import Dtype
from headrace.capacity.model_config import model_from_config
from headrace.capacity.models import ModelShape
from headrace.core.errors import BadInput, ModelOutOfReach
from headrace.executor.gguf import GgufHeader, read_header
from headrace.executor.hub_names import read_hub_name

_MOST_BYTES = 1 << 24
_ADDRESS = re.compile(r"https?://[^/]+/|hf://(models/)?")
_UNREAD_OF_GGUF = ("attention.kv_lora_rank", "ssm.state_size", "attention.chunk_size")
"""Keys of models with latent attention, states or chunks."""


class ShapeOptions(TypedDict):
    """A model in numbers. None: not said."""

    layers: int | None
    hidden_size: int | None
    heads: int | None
    kv_heads: int | None
    head_dim: int | None
    intermediate_size: int | None
    vocab_size: int | None
    parameters: float | None
    context: int | None


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A shape, and what its source says beyond it."""

    shape: ModelShape
    weights_bytes: int | None = None
    """Of a GGUF file, which is loaded as it is; None: by shape and format."""


def plain_name(given: str) -> str:
    """What a browser's address of a model's page, or of a file there, names."""
    address = _ADDRESS.match(given)
    if address is None:
        return given
    return "/".join(given[address.end() :].split("/")[:2])


def model_from(
    name: str | None, numbers: ShapeOptions, revision: str | None = None, quantization: str | None = None
) -> PlannedModel:
    """Raises `BadInput` or `ModelUnusable` with what would help.

    `quantization`: where it is said, a checkpoint's own format need not be understood.
    """
    if any(numbers.get(key) is not None for key in ShapeOptions.__annotations__):
        return _of_numbers(name, numbers)
    if name is None:
        raise BadInput(
            "no model is named", "headrace plan llama-3.1-8b --gpu h100; or a shape: --layers 32 ..."
        )
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise BadInput(f"the folder {name} holds no config.json", "a model's folder, or its .gguf file")
        path /= "config.json"
    if path.is_file():
        return _of_file(path, quantization)
    if path.suffix in (".json", ".gguf", ".safetensors", ".bin") or name.startswith((".", "/", "~")):
        raise BadInput(f"no file {name}", "the path of a config.json, its folder, or a .gguf file")
    plain, _, dtype = name.partition("@")
    found = find_model(plain)
    if found is None:
        found = _of_hub(plain, revision, quantization)
    return PlannedModel(replace(found, weight_dtype=weight_format(dtype)) if dtype else found)


FORMATS: dict[str, Dtype] = {
    "fp32": Dtype.FP32, "float32": Dtype.FP32, "fp16": Dtype.BF16, "bf16": Dtype.BF16, "half": Dtype.BF16,
    "float16": Dtype.BF16, "bfloat16": Dtype.BF16, "none": Dtype.BF16, "fp8": Dtype.FP8, "int8": Dtype.INT8,
    "w8a8": Dtype.INT8, "awq": Dtype.INT4, "gptq": Dtype.INT4, "int4": Dtype.INT4, "w4a16": Dtype.INT4,
    "nvfp4": Dtype.NVFP4, "modelopt_fp4": Dtype.NVFP4, "mxfp4": Dtype.FP4, "fp4": Dtype.FP4,
}  # fmt: skip
"""What people and vLLM call them."""


def weight_format(name: str) -> Dtype:
    """Raises `BadInput` with the names there are."""
    if (dtype := FORMATS.get(name.lower())) is None:
        raise BadInput(f"no weights of the format {name!r}", f"one of {', '.join(FORMATS)}")
    return dtype


def _of_file(path: Path, quantization: str | None) -> PlannedModel:
    if path.suffix == ".gguf":
        header = read_header(path)
        shape = model_from_config(_config_of(header, path.name), path.stem)
        return PlannedModel(replace(shape, source=path.name), path.stat().st_size)
    if path.suffix != ".json":
        raise BadInput(
            f"{path.name} is no model that can be read", "a config.json, its folder, or a .gguf file"
        )
    name = path.resolve().parent.name if path.name == "config.json" else path.stem
    return PlannedModel(_shape(_config(path), name, quantization))


def _shape(config: dict[str, object], name: str, quantization: str | None) -> ModelShape:
    try:
        return model_from_config(config, name)
    except BadInput:
        if quantization is None or "quantization_config" not in config:
            raise
    plain = {key: value for key, value in config.items() if key != "quantization_config"}
    return model_from_config(plain, name)


def _config(path: Path) -> dict[str, object]:
    """A config.json; with what lies beside it on formats where it is silent, as vLLM reads ModelOpt's."""
    config, beside = _json(path), path.with_name("hf_quant_config.json")
    if "quantization_config" in config or not beside.is_file():
        return config
    said = _json(beside).get("quantization")
    formats = {str(key): value for key, value in said.items()} if isinstance(said, dict) else {}
    return config | {"quantization_config": {"quant_method": "modelopt"} | formats}


def _json(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES)
        config = json.loads(text)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}", "check the path and its rights") from error
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path} is not JSON; it may be cut off: {error}", "get it again") from error
    if not isinstance(config, dict):
        raise BadInput(f"{path} holds no JSON object", "is it the config.json of a model?")
    return {str(key): value for key, value in config.items()}


def _of_hub(name: str, revision: str | None, quantization: str | None) -> ModelShape:
    hub_name = read_hub_name(name)
    if hub_name is None:
        raise BadInput(
            f"no model {name!r}: not in the catalogue, no file, no ORG/NAME of a hub",
            did_you_mean(name, catalogue()),
        )
    hub = import_module("headrace.executor.hub")  # 0.3 s of imports, which nobody else should pay
    try:
        path = hub.config_of(hub_name, revision)
    except ModelOutOfReach as error:
        near = did_you_mean(name, catalogue())
        raise ModelOutOfReach(
            str(error),
            "give the path of its config.json or .gguf, or its numbers (--layers 32 --hidden-size 4096 "
            f"--heads 32 --parameters 8e9); in the catalogue: {near}",
        ) from error
    return _shape(_config(path), name, quantization)


def _config_of(header: GgufHeader, name: str) -> dict[str, object]:
    """The header's words as those of a config.json."""
    family = header.text("general.architecture")
    if family is None:
        raise BadInput(f"{name} does not name its architecture", "is it a language model?")
    if (header.count("split.count") or 1) > 1:
        raise BadInput(
            f"{name} is one of {header.count('split.count')} shards",
            "give the config.json of the original, and --quantization",
        )
    strange = [key for key in _UNREAD_OF_GGUF if header.count(f"{family}.{key}")]
    if strange:
        raise BadInput(
            f"{name} has {', '.join(strange)}: what its layers keep is not read from a GGUF header",
            "give the config.json of the original, and --quantization",
        )
    rows = {each.name: each.rows for each in header.matrices}
    heads, hidden = header.count(f"{family}.attention.head_count"), header.count(f"{family}.embedding_length")
    said = {
        "num_hidden_layers": header.count(f"{family}.block_count"),
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": header.count(f"{family}.attention.head_count_kv"),
        "head_dim": header.count(f"{family}.attention.key_length"),
        "intermediate_size": header.count(f"{family}.feed_forward_length"),
        "moe_intermediate_size": header.count(f"{family}.expert_feed_forward_length"),
        "num_experts": header.count(f"{family}.expert_count"),
        "num_experts_per_tok": header.count(f"{family}.expert_used_count"),
        "sliding_window": header.count(f"{family}.attention.sliding_window"),
        "vocab_size": header.count(f"{family}.vocab_size") or rows.get("token_embd.weight"),
        "max_position_embeddings": header.count(f"{family}.context_length"),
    }
    config: dict[str, object] = {key: value for key, value in said.items() if value is not None}
    return config | {"model_type": family, "tie_word_embeddings": "output.weight" not in rows}


def _of_numbers(name: str | None, numbers: ShapeOptions) -> PlannedModel:
    """A dense decoder with what is said; the rest as its family of shapes has it."""
    if name is not None:
        raise BadInput(
            f"a model is named ({name}) and described in numbers",
            "either the name, or --layers, --heads, ...",
        )
    layers, heads = numbers["layers"], numbers["heads"]
    hidden = numbers["hidden_size"]
    if layers is None or heads is None or hidden is None:
        raise BadInput(
            "a shape needs at least --layers, --hidden-size and --heads",
            "--layers 32 --hidden-size 4096 --heads 32 --kv-heads 8 --parameters 8e9",
        )
    usual = 7 * hidden // 2
    said = {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": numbers["kv_heads"] or heads,
        "head_dim": numbers["head_dim"] or max(1, hidden // heads),
        "intermediate_size": numbers["intermediate_size"] or usual,
        "vocab_size": numbers["vocab_size"] or 128_256,
        "max_position_embeddings": numbers["context"] or 131_072,
        "tie_word_embeddings": False,
    }
    name = f"{layers} layers of {hidden}"
    shape = model_from_config(said, name)
    if (whole := numbers["parameters"]) is not None and numbers["intermediate_size"] is None:
        said["intermediate_size"] = _feed_forward(shape, whole, hidden, usual)
        shape = model_from_config(said, name)
    if whole is not None and abs(shape.parameters / whole - 1) > DISAGREE:
        raise BadInput(
            f"this shape has {shape.parameters / 1e9:,.1f} billion parameters, and --parameters says "
            f"{whole / 1e9:,.1f}",
            "leave --parameters out, or --intermediate-size (the rest is then put there)",
        )
    return PlannedModel(replace(shape, source="the command line"))


DISAGREE = 0.1
"""Of the parameters: norms, biases and a second embedding are less."""
NARROWEST, WIDEST = 0.5, 16
"""Of the hidden size, that the feed-forward layers of a dense model are."""


def _feed_forward(shape: ModelShape, whole: float, hidden: int, usual: int) -> int:
    """How wide the feed-forward layers are if all parameters are so many; `usual`: those of `shape`."""
    each = 3 * hidden * shape.num_layers
    rest = shape.parameters - each * usual
    width = round((whole - rest) / each)
    if NARROWEST * hidden <= width <= WIDEST * hidden:
        return width
    wide = f", and feed-forward layers would be {width:,} wide" if width > 0 else " alone"
    raise BadInput(
        f"{whole / 1e9:,.1f} billion parameters do not go with {shape.num_layers} layers of {hidden:,}: "
        f"attention and embeddings take {rest / 1e9:,.1f}{wide}",
        "check the numbers; of a mixture of experts give its config.json",
    )
