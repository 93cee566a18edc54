"""Settings to start from, by what a server is for, each with its reason.

    Plan --starting_points--> [StartingPoint]

Starting points: `headrace tune` finds better ones for a workload, and proves them.
"""

from dataclasses import dataclass, replace

from headrace.capacity.gpus import Dtype
from headrace.capacity.obstacles import reads_fp8
from headrace.capacity.plan import Plan, plan_of

_USUAL_TOKENS = 2048
_FEW_SEQS, _MANY_SEQS = 32, 1024
_LONG = 32_768
_EXPECTED_TOKENS = 2048
"""Of a request of which nothing is known: prompt and half of the answer."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One setting, under vLLM's name."""

    name: str
    value: str
    """Empty for a flag alone."""
    why: str


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """Choices for one kind of traffic."""

    kind: str
    choices: tuple[Choice, ...]


def starting_points(plan: Plan, holds: float | None = None) -> tuple[StartingPoint, ...]:
    """For traffic of four kinds. The plan must fit. `holds`: how many requests of the workload do at once."""
    if holds is None:
        tokens = min(_EXPECTED_TOKENS, plan.asked.max_model_len)
        holds = plan.num_blocks / plan.layout.blocks_per_request(tokens, plan.sizing)
    return (
        StartingPoint("interactive", _interactive(holds)),
        StartingPoint("high-throughput", _high_throughput(plan, holds)),
        StartingPoint("long-context", _long_context(plan)),
        StartingPoint("multi-tenant", _multi_tenant(plan, holds)),
    )


def _interactive(holds: float) -> tuple[Choice, ...]:
    seqs = _seqs(holds, 128)
    return (
        Choice(
            "max_num_batched_tokens",
            str(max(_USUAL_TOKENS, seqs)),
            "a step with a prompt in it delays everybody's next token; small steps bound that",
        ),
        Choice(
            "max_num_seqs",
            str(seqs),
            "what the KV cache holds at once, and not so many that each step is slow",
        ),
    )


def _high_throughput(plan: Plan, holds: float) -> tuple[Choice, ...]:
    seqs = _seqs(2 * holds, _MANY_SEQS)
    return (
        Choice(
            "max_num_batched_tokens",
            str(_large_step(plan)),
            "large steps keep the arithmetic busy; the price is TTFT and gaps between tokens",
        ),
        Choice(
            "max_num_seqs",
            str(seqs),
            "weights are read once for all; twice what the KV cache holds, so that it is always full",
        ),
    )


def _large_step(plan: Plan) -> int:
    """The largest of a few that leaves room for one request of full length."""
    for tokens in (16_384, 8192, 4096):
        if tokens > 8192 and plan.memory.total < 160 * (1 << 30):
            continue
        if plan_of(replace(plan.deployment, max_num_batched_tokens=tokens), plan.asked).fits:
            return tokens
    return plan.deployment.max_num_batched_tokens


def _long_context(plan: Plan) -> tuple[Choice, ...]:
    length = min(plan.longest, plan.deployment.model.max_model_len)
    at_once = max(1, int(plan.layout.max_concurrency(plan.num_blocks, max(1, length), plan.sizing)))
    choices = [
        Choice("max_model_len", str(length), "the longest that this KV cache can hold"),
        Choice(
            "max_num_seqs",
            str(min(max(at_once, 1) * 4, _FEW_SEQS)),
            f"{at_once} of full length fit at once; more than a few times that queue for KV blocks anyway",
        ),
        Choice(
            "long_prefill_token_threshold",
            str(max(512, plan.deployment.max_num_batched_tokens // 2)),
            "one document may not fill a whole step: short requests get in beside it",
        ),
    ]
    if plan.deployment.kv_cache_dtype is Dtype.BF16 and reads_fp8(plan.deployment.gpu):
        choices.append(Choice("kv_cache_dtype", "fp8", "twice the context in the same memory; check quality"))
    return tuple(choices)


def _multi_tenant(plan: Plan, holds: float) -> tuple[Choice, ...]:
    seqs = _seqs(holds, 256)
    return (
        Choice("scheduling_policy", "priority", "a tenant's request can be put before others"),
        Choice(
            "max_model_len",
            str(min(plan.longest, _LONG)),
            "bounds what one request can take from the others",
        ),
        Choice("max_num_seqs", str(seqs), "as many as the KV cache holds without preempting"),
        Choice(
            "long_prefill_token_threshold",
            str(max(512, plan.deployment.max_num_batched_tokens // 4)),
            "no tenant's prompt takes more than a quarter of a step",
        ),
    )


def _seqs(holds: float, most: int) -> int:
    """A power of two, at most what fits at once."""
    return min(1 << max(0, int(holds).bit_length() - 1), most)
