"""Turns an OpenVINO model into one that reads and writes a paged KV cache, and compiles it.

    IR --paged attention--> one pass over a mixed batch --Gather before the last MatMul--> logits
                                                          only of the rows that are asked for

Knows one model's shapes, and nothing of requests.

Precision. All arithmetic is float32, whatever the CPU offers: in bfloat16 the same prompt gives
other tokens on other machines. For the same reason activations are not quantised on the fly,
OpenVINO's default where the CPU has 8-bit dot products. It is 1.5 times as fast on batches there,
but rounding turns the harmless difference of two attention kernels (one query against many: 1e-6)
into 0.6 in the logits, so that a preempted or differently chunked request would answer otherwise.
Without it no batch, chunking or recomputation moves a logit by more than 1e-4.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum

import openvino as ov
from openvino import opset13
from openvino._offline_transformations import paged_attention_transformation

from headrace.core.errors import BadInput, ModelUnusable
from headrace.executor.grammars import Grammars
from headrace.executor.models import ModelFiles
from headrace.executor.tokenizer import OpenVinoTokenizer
from headrace.executor.weights import as_signed_bytes, expand, prepare_for_threads


class KvCacheDtype(StrEnum):
    """How keys and values are kept. `AUTO` is the type of the arithmetic, as in vLLM: float32."""

    AUTO = "auto"
    F32 = "f32"
    F16 = "f16"
    U8 = "u8"
    """8 bits with scales: a third of the memory. Other tokens than `F32`, and not quite independent of
    how a prompt is cut into chunks, as the keys of a block share their scales."""


@dataclass(frozen=True, slots=True)
class CacheInput:
    """One key or value cache: a tensor of `num_blocks` times `block_shape`."""

    name: str
    element_type: ov.Type
    block_shape: tuple[int, ...]

    @property
    def bytes_per_block(self) -> int:
        numbers = 1
        for length in self.block_shape:
            numbers *= length
        return -(-numbers * self.element_type.bitwidth // 8)


@dataclass(frozen=True, slots=True)
class PagedModel:
    """A compiled model and what its KV cache costs."""

    files: ModelFiles
    compiled: ov.CompiledModel
    expanded: ov.CompiledModel | None
    """The same with expanded weights, for steps of many tokens; None where they take too much."""
    caches: tuple[CacheInput, ...]
    block_size: int
    """Tokens a block holds; the plugin decides (32 on CPUs)."""
    vocab_size: int
    kv_cache_dtype: KvCacheDtype
    grammars: Grammars

    @property
    def weights_bytes(self) -> int:
        return self.files.weights_bytes if self.expanded is None else self.files.expanded_bytes

    @property
    def kv_bytes_per_block(self) -> int:
        """Keys and values of all layers for one block."""
        return sum(cache.bytes_per_block for cache in self.caches)


def load(
    files: ModelFiles,
    kv_cache_dtype: str = KvCacheDtype.AUTO,
    num_threads: int | None = None,
    *,
    expand_weights: bool = True,
) -> PagedModel:
    """Read, transform and compile: some seconds, and the memory of the weights. No KV cache yet.

    `expand_weights` keeps them in two more forms, which are faster (`weights.py`).
    """
    if kv_cache_dtype not in tuple(KvCacheDtype):
        raise BadInput(
            f"kv_cache_dtype is {kv_cache_dtype!r}; it can be {', '.join(KvCacheDtype)}", "auto is float32"
        )
    dtype = KvCacheDtype(kv_cache_dtype)
    try:
        properties = plugin_properties(dtype, num_threads)
        expanded = None
        if expand_weights:
            prepare_for_threads()
            with ThreadPoolExecutor() as pool:  # most of it is one thread's work
                later = pool.submit(_compile, files, properties, expand)
                compiled = _compile(files, properties, as_signed_bytes)
                expanded = later.result()
        else:
            compiled = _compile(files, properties)
        caches = _cache_inputs(compiled)
        block_size = _block_size(caches)
        vocab_size = compiled.output(0).get_partial_shape()[-1].get_length()
    except RuntimeError as error:
        reason = [line for line in str(error).splitlines() if line][-1][:300]
        raise ModelUnusable(
            f"OpenVINO cannot run {files.name} ({files.folder}): {reason}",
            "if the folder may be damaged, remove it and convert or export the model again",
        ) from error
    grammars = Grammars(lambda: OpenVinoTokenizer(files).vocabulary())
    return PagedModel(files, compiled, expanded, caches, block_size, vocab_size, dtype, grammars)


def _compile(
    files: ModelFiles, properties: dict[str, str | int], change: Callable[[ov.Model], None] | None = None
) -> ov.CompiledModel:
    core = ov.Core()
    model = core.read_model(files.folder / "openvino_model.xml")
    if change is not None:
        change(model)
    paged_attention_transformation(model)
    _project_only_sampled_rows(model)
    return core.compile_model(model, "CPU", properties)


def plugin_properties(dtype: KvCacheDtype, num_threads: int | None = None) -> dict[str, str | int]:
    """OpenVINO's settings under which tokens are reproducible; see the module's words on precision."""
    kept_as = KvCacheDtype.F32 if dtype is KvCacheDtype.AUTO else dtype
    properties: dict[str, str | int] = {
        "INFERENCE_PRECISION_HINT": "f32",
        "KV_CACHE_PRECISION": kept_as.value,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
        "PERFORMANCE_HINT": "LATENCY",
    }
    if num_threads is not None:
        properties["INFERENCE_NUM_THREADS"] = num_threads
    return properties


def _project_only_sampled_rows(model: ov.Model) -> None:
    """Without this the vocabulary projection, a quarter of a small model, runs for every prompt token."""
    last = model.get_results()[0].input_value(0).get_node()
    while last.get_type_name() != "MatMul":  # logits may pass through a Convert or a scale
        if last.get_input_size() == 0:
            raise RuntimeError("the model does not end in a vocabulary projection")
        last = last.input_value(0).get_node()
    rows = opset13.parameter([-1], ov.Type.i64, name="sample_positions")
    rows.output(0).set_names({"sample_positions"})
    hidden = opset13.gather(last.input_value(0), rows, opset13.constant(0, dtype=ov.Type.i64))
    last.input(0).replace_source_output(hidden.output(0))
    model.add_parameters([rows])
    model.validate_nodes_and_infer_types()


def _cache_inputs(compiled: ov.CompiledModel) -> tuple[CacheInput, ...]:
    caches: list[CacheInput] = []
    for port in compiled.inputs:
        if "_cache." in port.any_name:
            shape = port.get_partial_shape()
            block_shape = tuple(shape[axis].get_length() for axis in range(1, len(shape)))
            caches.append(CacheInput(port.any_name, port.get_element_type(), block_shape))
    if not caches:
        raise RuntimeError("the model has no attention that could be paged")
    return tuple(caches)


def _block_size(caches: tuple[CacheInput, ...]) -> int:
    """Rows of a value block. Keys may have more: in `U8` the scales of a block follow its keys."""
    sizes = {cache.block_shape[1] for cache in caches if cache.name.startswith("value_")}
    if len(sizes) != 1:
        raise RuntimeError(f"its layers disagree on the block size: {sorted(sizes)}")
    return sizes.pop()
