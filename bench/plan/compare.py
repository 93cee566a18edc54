"""A logged start-up and what we say of it, figure by figure.

On what a figure of ours rests is said with it, since that decides what its error means:

    available   the memory that the log says is available for KV cache, rounded to 0.01 GiB, and the model
    line        another line of the same log: how many blocks or tokens there are
    earlier     another start of the same report, for whose model nobody gives a name
    whole       nothing of the log: card, model and flags alone
"""

from collections.abc import Iterator
from dataclasses import dataclass

from bench.plan.starts import Start
from headrace.capacity.accounting import accounting_of
from headrace.capacity.deployment import Deployment
from headrace.capacity.gpus import GIB, GPUS, Gpu
from headrace.capacity.kv_groups import KvLayers, KvLayout, Sizing, kv_layout, printed_tokens
from headrace.capacity.memory import layout_of, memory_use, sizing_of
from headrace.cli.costs import default_limits
from headrace.core.versions import KNOWN, VLLM_VERSION

_BEFORE = KNOWN[0]
"""Whose accounting stands in for versions of before."""


@dataclass(frozen=True, slots=True)
class Row:
    """One figure."""

    start: str
    figure: str
    basis: str
    logged: float
    ours: float

    @property
    def error(self) -> float:
        """A share of what was logged."""
        return self.ours / self.logged - 1


def compare(start: Start) -> tuple[list[Row], str]:
    """Rows, and where there is none, why."""
    if start.model is None:
        rows = [
            *_of_lines(start, kv_layout([KvLayers(1, 1.0)], start.block_size), Sizing(0)),
            *_earlier(start),
        ]
        return rows, "" if rows else "no model is named that the catalogue has"
    deployment = deployment_of(start)
    layout, sizing = layout_of(deployment, start.block_size), sizing_of(deployment)
    rows: list[Row] = []
    if "available_gib" in start.said:
        rows += _of_available(start, layout, sizing, deployment)
    else:
        rows += _of_lines(start, layout, sizing)
    if start.gpu is not None and "available_gib" in start.said:
        rows += _whole(start, deployment)
    return rows, "" if rows else "the log has no two figures of which one follows from the other"


def deployment_of(start: Start, gpu: Gpu | None = None) -> Deployment:
    """As the log says; defaults of the card where it says nothing, an A100's where no card is named."""
    assert start.model is not None, "asked for what is known"
    gpu = gpu or start.gpu or GPUS["a100-80"]
    tokens, seqs = default_limits(gpu)
    tokens = start.step_tokens or tokens
    version = start.version if start.version in KNOWN else (_BEFORE if start.of_v0 else VLLM_VERSION)
    share = start.flags.get("gpu-memory-utilization")
    usual = accounting_of(version).gpu_memory_utilization
    return Deployment(
        start.model,
        gpu,
        tensor_parallel_size=start.flag("tensor-parallel-size") or 1,
        weight_dtype=start.weight_dtype,
        kv_cache_dtype=start.kv_cache_dtype,
        gpu_memory_utilization=float(share) if isinstance(share, int | float) else usual,
        max_num_batched_tokens=tokens,
        max_num_seqs=min(start.flag("max-num-seqs") or seqs, tokens),
        enforce_eager=start.flags.get("enforce-eager") is True,
        vllm_version=version,
    )


def _of_available(start: Start, layout: KvLayout, sizing: Sizing, deployment: Deployment) -> Iterator[Row]:
    said, length = start.said, start.max_model_len
    assert length is not None, "a model has a length"
    available = int(said["available_gib"] * GIB)
    blocks = layout.num_blocks(available)
    by_groups = deployment.accounting.prints_by_groups
    tokens = printed_tokens(layout, blocks, length, sizing, by_groups=by_groups)
    ours = {
        "blocks": blocks,
        "tokens": tokens,
        "concurrency": layout.max_concurrency(blocks, length, sizing),
        "storable_tokens": blocks * layout.block_size,
        "needed_gib": layout.blocks_per_request(length, sizing) * layout.bytes_per_block / GIB,
        "longest_tokens": layout.longest(blocks, length, sizing),
    }
    for figure, value in ours.items():
        if figure in said:
            yield Row(start.name, figure, "available", said[figure], value)


def _of_lines(start: Start, layout: KvLayout, sizing: Sizing) -> Iterator[Row]:
    """From blocks or tokens to the concurrency, and what can be stored."""
    said, length = start.said, start.max_model_len
    if length is None or "concurrency" not in said:
        return
    if "blocks" in said:
        blocks = said["blocks"]
    elif "tokens" in said:
        per_group = said["tokens"] / layout.block_size
        blocks = per_group * layout.num_groups
    else:
        return
    needed = layout.blocks_per_request(length, sizing)
    yield Row(start.name, "concurrency", "line", said["concurrency"], blocks / needed)


def _earlier(start: Start) -> Iterator[Row]:
    """What a token takes in another start of the same server says what this one needs."""
    before, said = start.earlier, start.said
    if not {"available_kv_gib", "kv_tokens"} <= before.keys():
        return
    gib_per_token = before["available_kv_gib"] / before["kv_tokens"]
    if "needed_gib" in said and "needed_tokens" in said:
        yield Row(
            start.name, "needed_gib", "earlier", said["needed_gib"], said["needed_tokens"] * gib_per_token
        )
    if "longest_tokens" in said:
        tokens = said["available_gib"] / gib_per_token // start.block_size * start.block_size
        yield Row(start.name, "longest_tokens", "earlier", said["longest_tokens"], tokens)


def _whole(start: Start, deployment: Deployment) -> Iterator[Row]:
    use = memory_use(deployment)
    yield Row(start.name, "available_gib", "whole", start.said["available_gib"], use.kv_cache / GIB)
    for figure, value in (("weights_gib", use.weights), ("activations_gib", use.activations)):
        if figure in start.said:
            yield Row(start.name, figure, "whole", start.said[figure], value / GIB)
