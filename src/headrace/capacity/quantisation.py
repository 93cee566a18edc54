"""In what format the weights of a checkpoint are, and which of them: `quantization_config`.

Embeddings, the vocabulary projection, norms and routers stay as they were in every method that is known here;
some leave attention too, and quantise experts alone.
"""

from collections.abc import Mapping

from headrace.capacity.config_values import ConfigValues
from headrace.capacity.gpus import Dtype

_METHODS = {
    "fp8": Dtype.FP8, "fbgemm_fp8": Dtype.FP8, "mxfp4": Dtype.FP4, "awq": Dtype.INT4,
    "experts_int8": Dtype.INT8,
}  # fmt: skip
_ALGORITHMS = {"FP8": Dtype.FP8, "NVFP4": Dtype.NVFP4, "W4A16_AWQ": Dtype.INT4}
"""`quant_algo` of ModelOpt."""
_BY_BITS = {4: Dtype.INT4, 8: Dtype.INT8}


def quantisation_of(config: ConfigValues) -> tuple[Dtype, bool]:
    """The format, and whether only experts are in it. Raises `BadInput` for a method that is not known."""
    said = config.mapping("quantization_config") or ConfigValues(config.mapping("text_config"), "").mapping(
        "quantization_config"
    )
    if not said:
        return Dtype.BF16, False
    dtype = _dtype(said)
    if dtype is None:
        known = sorted({*_METHODS, "gptq", "compressed-tensors", "modelopt", "bitsandbytes"})
        raise config.refused(
            f"quant_method {str(said.get('quant_method'))!r} is not understood",
            f"one of {', '.join(known)}; or say --quantization",
        )
    return dtype, dtype is Dtype.FP4 or _leaves_attention(said)


def _dtype(said: Mapping[str, object]) -> Dtype | None:
    method = str(said.get("quant_method", ""))
    if method in _METHODS:
        return _METHODS[method]
    if method.startswith("modelopt") or said.get("quant_algo"):
        return _ALGORITHMS.get(str(said.get("quant_algo")))
    if method == "compressed-tensors":
        return _of_groups(said.get("config_groups"))
    if method == "bitsandbytes":
        return Dtype.INT4 if said.get("load_in_4bit") or said.get("_load_in_4bit") else Dtype.INT8
    bits = said.get("bits")
    return _BY_BITS.get(bits) if method in ("gptq", "auto-round") and isinstance(bits, int) else None


def _of_groups(groups: object) -> Dtype | None:
    """Of compressed-tensors: the first group's weights."""
    first = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
    weights = first.get("weights") if isinstance(first, Mapping) else None
    if not isinstance(weights, Mapping):
        return None
    bits, kind = weights.get("num_bits"), weights.get("type")
    if kind == "float":
        return {8: Dtype.FP8, 4: Dtype.NVFP4}.get(bits) if isinstance(bits, int) else None
    return _BY_BITS.get(bits) if isinstance(bits, int) else None


def _leaves_attention(said: Mapping[str, object]) -> bool:
    left = said.get("ignore") or said.get("modules_to_not_convert") or said.get("exclude_modules")
    return isinstance(left, list) and any("self_attn" in str(name) for name in left)
