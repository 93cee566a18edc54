"""The command line of `headrace plan`: vLLM's names, and what becomes of them.

PlanOptions + PlannedModel --deployment_on--> Deployment     --asked_of--> Asked
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from headrace.capacity.accounting import accounting_of
from headrace.capacity.deployment import Deployment
from headrace.capacity.gpu_names import gpu_named
from headrace.capacity.gpus import GIB, GPUS, Dtype, Gpu
from headrace.capacity.plan import Asked
from headrace.cli.costs import default_limits
from headrace.cli.plan_fit import USUAL_SLO
from headrace.cli.plan_model import PlannedModel, ShapeOptions, weight_format
from headrace.cli.quantity import AUTO, LENGTH, QUANTITY
from headrace.core.errors import BadInput
from headrace.core.versions import KNOWN, VLLM_VERSION

Command = TypeVar("Command", bound=Callable[..., Any])
KV_FORMATS: dict[str, Dtype] = {
    "auto": Dtype.BF16, "bfloat16": Dtype.BF16, "float16": Dtype.BF16, "fp8": Dtype.FP8,
    "fp8_e4m3": Dtype.FP8, "fp8_e5m2": Dtype.FP8, "nvfp4": Dtype.NVFP4,
}  # fmt: skip


class PlanOptions(ShapeOptions):
    """What the command line says beside the model. None: to be decided."""

    gpu: str | None
    gpu_memory: int | None
    tensor_parallel_size: int | None
    pipeline_parallel_size: int
    data_parallel_size: int
    enable_expert_parallel: bool
    dtype: str
    quantization: str | None
    kv_cache_dtype: str
    gpu_memory_utilization: float | None
    kv_cache_memory_bytes: int | None
    max_model_len: int | str | None
    max_num_batched_tokens: int | None
    max_num_seqs: int | None
    block_size: int
    enforce_eager: bool
    enable_prefix_caching: bool
    vllm_version: str
    workload: Path | None
    first: int | None
    fit: bool
    slo: str
    revision: str | None
    as_json: bool


SECTIONS = {
    "Hardware": (
        *("gpu", "gpu_memory", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"),
        "enable_expert_parallel",
    ),
    "Formats": ("dtype", "quantization", "kv_cache_dtype"),
    "Budgets": (
        *("gpu_memory_utilization", "kv_cache_memory_bytes", "max_model_len", "max_num_batched_tokens"),
        *("max_num_seqs", "block_size", "enforce_eager", "enable_prefix_caching", "vllm_version"),
    ),
    "Traffic": ("workload", "first", "fit", "slo"),
    "A model in numbers": (
        *("layers", "hidden_size", "heads", "kv_heads", "head_dim", "intermediate_size", "vocab_size"),
        *("parameters", "context"),
    ),
}


def _count(flag: str, text: str, **more: Any) -> Callable[[Command], Command]:
    return click.option(flag, type=click.IntRange(1), metavar="N", help=text, **more)


_HARDWARE = (
    click.option("--gpu", metavar="NAME", help="A card of the catalogue, such as h100, l4, rtx-4090, mi300x."
                 "  [default: all that hold it]"),
    click.option("--gpu-memory", type=QUANTITY, metavar="BYTES", help="Another amount of memory than the "
                 "card's, such as 40G, as the driver reports it; without --gpu, of an unlisted card."),
    click.option("--tensor-parallel-size", "-tp", type=click.IntRange(1), metavar="N",
                 help="GPUs that share each layer.  [default: the fewest that hold it]"),
    click.option("--pipeline-parallel-size", "-pp", type=click.IntRange(1), metavar="N", default=1,
                 show_default=True, help="Stages of layers one after the other."),
    click.option("--data-parallel-size", "-dp", type=click.IntRange(1), metavar="N", default=1,
                 show_default=True, help="Replicas of attention, each with a KV cache of its own."),
    click.option("--enable-expert-parallel", is_flag=True, help="Divide experts among the data-parallel "
                 "replicas as well."),
)  # fmt: skip
_FORMATS = (
    click.option("--dtype", type=click.Choice(["auto", "half", "float16", "bfloat16", "float32"]),
                 default="auto", show_default=True, metavar="TYPE", help="Of what is not quantised: auto, "
                 "half, float16, bfloat16, float32."),
    click.option("--quantization", "-q", metavar="FORMAT", help="Of the weights: fp8, int8, awq, gptq, int4, "
                 "nvfp4, mxfp4.  [default: as the checkpoint is]"),
    click.option("--kv-cache-dtype", type=click.Choice(list(KV_FORMATS)), default="auto", show_default=True,
                 metavar="TYPE", help=f"{', '.join(KV_FORMATS)}."),
)  # fmt: skip
_BUDGETS = (
    click.option("--gpu-memory-utilization", type=click.FloatRange(0.0, 1.0, min_open=True), metavar="SHARE",
                 help="Of all memory of a GPU, for everything.  [default: the version's: 0.92]"),
    click.option("--kv-cache-memory-bytes", type=QUANTITY, metavar="BYTES", help="For the KV cache of each "
                 "GPU, such as 20G, instead of what that share leaves."),
    click.option("--max-model-len", type=LENGTH, metavar="TOKENS", help="Longest prompt and answer together; "
                 "auto: as much as fits.  [default: the model's]"),
    click.option("--max-num-batched-tokens", type=QUANTITY, metavar="TOKENS", help="Tokens of one step.  "
                 "[default: the card's: 2048, 8192, 16384]"),
    _count("--max-num-seqs", "Requests that may run at once.  [default: the card's: 256, 1024]"),
    _count("--block-size", "Tokens in a KV block.", default=16, show_default=True),
    click.option("--enforce-eager", is_flag=True, help="No CUDA graphs."),
    click.option("--enable-prefix-caching/--no-enable-prefix-caching", default=True, help="Whether prompts "
                 "that begin alike share KV blocks.  [default: on]"),
    click.option("--vllm-version", default=VLLM_VERSION, show_default=True, metavar="0.N",
                 help=f"Count as this version does: {KNOWN[0]} to {KNOWN[-1]}."),
)  # fmt: skip
_TRAFFIC = (
    click.option("--workload", type=click.Path(path_type=Path), metavar="FILE", help="How many requests of "
                 "this workload fit at once: any file that `workload describe` reads."),
    click.option("--first", type=click.IntRange(1), metavar="N", help="Only so many of its requests."),
    click.option("--fit", is_flag=True, help="Rank cards, or with --gpu TP degrees, by the rate that their "
                 "twins promise within --slo; with --workload, by the replicas it needs. A minute."),
    click.option("--slo", default=USUAL_SLO, show_default=True, metavar="GOALS",
                 help="What --fit must meet."),
)  # fmt: skip
_SHAPE = (
    _count("--layers", "Layers."),
    _count("--hidden-size", "Hidden size."),
    _count("--heads", "Attention heads."),
    _count("--kv-heads", "KV heads.  [default: as many as heads]"),
    _count("--head-dim", "Head size.  [default: hidden size / heads]"),
    _count("--intermediate-size", "Of the MLP.  [default: 3.5 times the hidden size]"),
    _count("--vocab-size", "Words.  [default: 128256]"),
    click.option("--parameters", type=click.FloatRange(1e6), metavar="N", help="All weights, such as 8e9, "
                 "where the numbers above do not add up to them."),
    _count("--context", "Longest context.  [default: 131072]"),
)  # fmt: skip
_OTHER = (
    click.option("--revision", metavar="NAME", help="Branch, tag or commit on the hub."),
    click.option("--json", "as_json", is_flag=True, help="End with one JSON object on a line of its own."),
)


def plan_options(command: Command) -> Command:
    """Add the options of `PlanOptions`."""
    for option in (*_HARDWARE, *_FORMATS, *_BUDGETS, *_TRAFFIC, *_SHAPE, *_OTHER):
        command = option(command)
    return command


def gpu_asked(options: PlanOptions) -> str | None:
    """Of `--gpu`; where only memory is given, the card that has most nearly as much, and says so."""
    memory = options["gpu_memory"]
    if options["gpu"] is not None or memory is None:
        return options["gpu"]
    near = min(GPUS.values(), key=lambda gpu: abs(gpu.memory_bytes - memory))
    click.echo(
        f"--gpu-memory without --gpu: {near.name} stands in, with {memory / GIB:.1f} GiB of memory", err=True
    )
    return near.name


def gpu_of(name: str, options: PlanOptions) -> Gpu:
    """Raises `BadInput` for an unknown one, or one with hardly any memory."""
    gpu = _card(name)
    memory = options["gpu_memory"]
    if memory is None:
        return gpu
    if memory < GIB:
        raise BadInput(f"--gpu-memory is {memory:,} bytes; a card has gigabytes", "--gpu-memory 24G")
    return replace(gpu, memory_bytes=memory)


def _card(name: str) -> Gpu:
    """Where it is unknown, told what `plan` takes instead."""
    try:
        return gpu_named(name)
    except BadInput as error:
        if "," in name:
            hint = "one after the other; or leave --gpu out for all that hold it"
            raise BadInput(f"--gpu {name} is several cards, and --gpu names one", hint) from error
        card, _, size = name.rpartition("x")
        if size.isdecimal() and card.lower() in GPUS:
            raise BadInput(
                f"--gpu {name} is {size} cards, and --gpu names one", f"--gpu {card} -tp {size}"
            ) from error
        more = "Of a card that is not listed say how much it has: --gpu-memory 24G"
        raise BadInput(str(error), f"{error.hint} {more}") from error


def deployment_on(
    gpu: Gpu, tensor_parallel_size: int, model: PlannedModel, options: PlanOptions
) -> Deployment:
    """With vLLM's defaults for that card. Raises `BadInput` for what cannot be."""
    tokens, seqs = default_limits(gpu)
    rules = accounting_of(options["vllm_version"])
    batched = options["max_num_batched_tokens"]
    share = options["gpu_memory_utilization"]
    kv_cache = KV_FORMATS[options["kv_cache_dtype"]]
    if options["kv_cache_dtype"] == "auto" and options["dtype"] == "float32":
        kv_cache = Dtype.FP32
    return Deployment(
        model.shape,
        gpu,
        tensor_parallel_size=tensor_parallel_size,
        weight_dtype=_weight_dtype(model, options),
        kv_cache_dtype=kv_cache,
        gpu_memory_utilization=rules.gpu_memory_utilization if share is None else share,
        max_num_batched_tokens=tokens if batched is None else batched,
        max_num_seqs=options["max_num_seqs"] or min(seqs, tokens if batched is None else batched),
        enforce_eager=options["enforce_eager"],
        pipeline_parallel_size=options["pipeline_parallel_size"],
        data_parallel_size=options["data_parallel_size"],
        enable_expert_parallel=options["enable_expert_parallel"],
        enable_prefix_caching=options["enable_prefix_caching"],
        vllm_version=options["vllm_version"],
    )


def _weight_dtype(model: PlannedModel, options: PlanOptions) -> Dtype:
    if (said := options["quantization"]) is not None:
        return weight_format(said)
    if options["dtype"] == "float32" and model.shape.weight_dtype is Dtype.BF16:
        return Dtype.FP32
    return model.shape.weight_dtype


def asked_of(model: PlannedModel, options: PlanOptions) -> Asked:
    """`auto` is answered by the plan: until then it is the model's own length."""
    length = options["max_model_len"]
    return Asked(
        max_model_len=length if isinstance(length, int) else model.shape.max_model_len,
        block_size=options["block_size"],
        kv_cache_memory_bytes=options["kv_cache_memory_bytes"],
        weights_bytes=model.weights_bytes,
    )


def wants_longest(options: PlanOptions) -> bool:
    return options["max_model_len"] == AUTO
