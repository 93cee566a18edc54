"""In what format the weights of a checkpoint are: `quantization_config`.

    config.json --quantisation_of--> format of MLPs and experts, format of attention where it is another

Embeddings, the vocabulary projection, norms and routers stay as they were in every method that is known here;
some leave attention too, and some have it in a format of its own.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from headrace.capacity.config_values import ConfigValues
from headrace.capacity.gpus import Dtype

_METHODS = {
    "fp8": Dtype.FP8, "fbgemm_fp8": Dtype.FP8, "mxfp4": Dtype.FP4, "awq": Dtype.INT4,
    "experts_int8": Dtype.INT8,
}  # fmt: skip
_ALGORITHMS = {
    "FP8": Dtype.FP8, "FP8_PER_CHANNEL_PER_TOKEN": Dtype.FP8, "FP8_PB_WO": Dtype.FP8, "MXFP8": Dtype.FP8,
    "NVFP4": Dtype.NVFP4, "W4A16_NVFP4": Dtype.NVFP4, "W4A16_AWQ": Dtype.INT4,
}  # fmt: skip
"""`quant_algo` of ModelOpt."""
_BY_BITS = {4: Dtype.INT4, 8: Dtype.INT8}
_MXFP4_GROUP = 32
_LEFT = ("ignore", "modules_to_not_convert", "exclude_modules")
_ATTENTION_LEFT = re.compile(
    r"(self|linear)_attn(\.(q|k|v|o|qkv|q_a|q_b|kv_b|kv_a_proj_with_mqa)(_proj)?)?[.*$\\]*$"
)
"""A name that leaves out attention, and not only a small part of it, such as an indexer's."""
_LAYER = re.compile(r"\blayers\.(\d+)\b")
_MLP_WORDS = ("mlp", "ffn", "expert", "moe", "up_proj", "down_proj")


def quantisation_of(config: ConfigValues, layers: int) -> tuple[Dtype, Dtype | None]:
    """The format, and that of attention where it is another. Raises `BadInput` for an unknown method."""
    said = config.mapping("quantization_config") or ConfigValues(config.mapping("text_config"), "").mapping(
        "quantization_config"
    )
    if not said:
        return Dtype.BF16, None
    if (formats := _formats(said)) and len(set(formats.values())) > 1:
        return _mixed(formats)
    dtype = next(iter(formats.values()), None) or _dtype(said)
    if dtype is None:
        known = sorted({*_METHODS, "gptq", "compressed-tensors", "modelopt", "bitsandbytes"})
        algorithm = said.get("quant_algo")
        raise config.refused(
            f"quant_method {str(said.get('quant_method'))!r} "
            + (f"with quant_algo {str(algorithm)!r} " if algorithm else "")
            + "is not understood",
            f"one of {', '.join(known)}; or say --quantization",
        )
    return dtype, Dtype.BF16 if dtype is Dtype.FP4 or _leaves_attention(said, layers) else None


def _dtype(said: Mapping[str, object]) -> Dtype | None:
    method = str(said.get("quant_method", ""))
    if method in _METHODS:
        return _METHODS[method]
    if method.startswith("modelopt") or said.get("quant_algo"):
        return _ALGORITHMS.get(str(said.get("quant_algo")))
    if method == "bitsandbytes":
        return Dtype.INT4 if said.get("load_in_4bit") or said.get("_load_in_4bit") else Dtype.INT8
    bits = said.get("bits")
    return _BY_BITS.get(bits) if method in ("gptq", "auto-round") and isinstance(bits, int) else None


def _formats(said: Mapping[str, object]) -> dict[str, Dtype]:
    """By names of modules: of compressed-tensors' groups, or ModelOpt's list; empty if one is not known."""
    found: dict[str, Dtype | None] = {}
    groups, listed = said.get("config_groups"), said.get("quantized_layers")
    if isinstance(groups, Mapping):
        for group in groups.values():
            targets = group.get("targets") if isinstance(group, Mapping) else None
            for target in targets if isinstance(targets, list) else ["Linear"]:
                found[str(target)] = _of_group(group)
    elif isinstance(listed, Mapping):
        for name, how in listed.items():
            algorithm = how.get("quant_algo") if isinstance(how, Mapping) else None
            found[str(name)] = _ALGORITHMS.get(str(algorithm))
    known = {name: dtype for name, dtype in found.items() if dtype is not None}
    return known if len(known) == len(found) else {}


def _of_group(group: object) -> Dtype | None:
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping):
        return None
    bits = weights.get("num_bits")
    if not isinstance(bits, int):
        return None
    if weights.get("type") != "float":
        return _BY_BITS.get(bits)
    four = Dtype.FP4 if weights.get("group_size") == _MXFP4_GROUP else Dtype.NVFP4
    return {8: Dtype.FP8, 4: four}.get(bits)


def _mixed(formats: Mapping[str, Dtype]) -> tuple[Dtype, Dtype | None]:
    """Several formats in one checkpoint: that of most MLPs, and that of most of the rest, or 16 bits."""
    mlps = {name: dtype for name, dtype in formats.items() if any(word in name for word in _MLP_WORDS)}
    routed = [dtype for name, dtype in mlps.items() if "experts" in name and "shared" not in name]
    rest = [dtype for name, dtype in formats.items() if name not in mlps]
    weights = _commonest(routed or mlps.values() or formats.values())
    attention = _commonest(rest) if rest else Dtype.BF16
    return weights, None if attention is weights else attention


def _commonest(dtypes: Iterable[Dtype]) -> Dtype:
    return Counter(dtypes).most_common(1)[0][0]


def _leaves_attention(said: Mapping[str, object], layers: int) -> bool:
    """Whether attention of at least half the layers stays as it was."""
    names = [str(name) for key in _LEFT for name in _items(said.get(key))]
    left = [name for name in names if _ATTENTION_LEFT.search(name)]
    indices = [_LAYER.search(name) for name in left]
    return any(each is None for each in indices) or 2 * len({each[1] for each in indices if each}) >= layers


def _items(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else []
