"""Settings to start from, by what a server is for, each with its reason and its price.

    Plan + how many fit at once --starting_points--> [StartingPoint]

Starting points: `headrace tune` finds better ones for a workload, and proves them.
"""

from dataclasses import dataclass, replace

from headrace.capacity.gpus import Dtype
from headrace.capacity.obstacles import reads_fp8
from headrace.capacity.plan import Plan, plan_of
from headrace.capacity.roofline import Roofline
from headrace.core.cost import StepShape

_SMALL_STEPS = (2048, 1024, 512, 256)
_SHORT_STEP_NS = 100_000_000
"""Longer than that a gap between tokens is seen as a halt."""
_MANY_SEQS = 1024
_GRAPH_STEP = 8
"""vLLM captures CUDA graphs of sizes that are multiples of it."""
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


@dataclass(frozen=True, slots=True)
class _Held:
    """How many requests the KV cache holds at once, and of which."""

    at_once: float
    of: str

    def seqs(self, most: int) -> int:
        """At most what fits at once, and where it is more than a few a size of a CUDA graph."""
        fits = max(1, min(int(self.at_once), most))
        return fits - fits % _GRAPH_STEP if fits > _GRAPH_STEP else fits

    def __str__(self) -> str:
        return f"the KV cache holds {max(1, int(self.at_once)):,} {self.of} at once"


def starting_points(plan: Plan, holds: float | None = None) -> tuple[StartingPoint, ...]:
    """For traffic of four kinds. The plan must fit. `holds`: how many requests of the workload do at once."""
    if holds is None:
        tokens = min(_EXPECTED_TOKENS, plan.asked.max_model_len)
        fit = plan.num_blocks / plan.layout.blocks_per_request(tokens, plan.sizing)
        held = _Held(fit, f"requests of {tokens:,} tokens")
    else:
        held = _Held(holds, "requests of this workload")
    return (
        StartingPoint("interactive", _interactive(plan, held)),
        StartingPoint("high-throughput", _high_throughput(plan, held)),
        StartingPoint("long-context", _long_context(plan)),
        StartingPoint("multi-tenant", _multi_tenant(plan, held)),
    )


def _interactive(plan: Plan, held: _Held) -> tuple[Choice, ...]:
    tokens, step_ns = _short_step(plan)
    seqs = held.seqs(min(128, tokens))
    said = "" if step_ns is None else f"; of {tokens:,} tokens, some {step_ns / 1e6:,.0f} ms here"
    return (
        Choice(
            "max_num_batched_tokens",
            str(tokens),
            f"a step with a prompt in it delays everybody's next token{said}. Long prompts take more steps",
        ),
        Choice(
            "max_num_seqs",
            str(seqs),
            f"{held}; more than 128 make each step slower. Those beyond wait: more, if TTFT is worse for it",
        ),
    )


def _short_step(plan: Plan) -> tuple[int, float | None]:
    """The most tokens of a few that one prompt computes fast enough, by first principles, and how fast."""
    if plan.deployment.pipeline_parallel_size > 1 or plan.memory.kv_cache <= 0:
        return _SMALL_STEPS[0], None  # in stages steps are not modelled, nor where memory is given by hand
    cost = Roofline(plan.deployment)
    tokens, step_ns = 0, 0.0
    for tokens in _SMALL_STEPS:
        pairs = tokens * (tokens + 1) // 2
        shape = StepShape(
            prefill_seqs=1, prefill_tokens=tokens, prefill_attention_pairs=pairs, sampled_seqs=1
        )
        step_ns = cost.step_ns(shape)
        if step_ns <= _SHORT_STEP_NS:
            break
    return tokens, step_ns


def _high_throughput(plan: Plan, held: _Held) -> tuple[Choice, ...]:
    tokens = _large_step(plan)
    why = "large steps keep the arithmetic busy; the price is TTFT and gaps between tokens"
    if tokens <= 2048:
        why = "more would leave too little KV cache for one request of full length"
    seqs = _Held(2 * held.at_once, held.of).seqs(min(_MANY_SEQS, tokens))
    return (
        Choice("max_num_batched_tokens", str(tokens), why),
        Choice(
            "max_num_seqs",
            str(seqs),
            f"{held}, so memory is the limit and never slots: weights are read once for all. Some are "
            "preempted and computed again",
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
        Choice("max_model_len", str(length), _length_said(plan, length)),
        Choice(
            "max_num_seqs",
            str(min(4 * at_once, plan.deployment.max_num_seqs)),
            f"as many of full length as fit at once: {at_once:,}; four times that for shorter ones. Fewer "
            "slots leave memory to the KV cache, and long answers are preempted less",
        ),
        _threshold(
            plan, length, 2, "one document may not fill a whole step: short requests get in beside it"
        ),
    ]
    if plan.deployment.kv_cache_dtype is Dtype.BF16 and reads_fp8(plan.deployment.gpu):
        choices.append(Choice("kv_cache_dtype", "fp8", "twice the context in the same memory; check quality"))
    return tuple(choices)


def _length_said(plan: Plan, length: int) -> str:
    if length >= plan.deployment.model.max_model_len:
        return "all that the model can; it reserves nothing, and bounds one request"
    return "the longest that this KV cache can hold"


def _threshold(plan: Plan, length: int, parts: int, why: str) -> Choice:
    """A part of a step; vLLM refuses one that is longer than `max_model_len`."""
    tokens = min(max(512, plan.deployment.max_num_batched_tokens // parts), length)
    return Choice("long_prefill_token_threshold", str(tokens), f"{why}. Its own TTFT is the price")


def _multi_tenant(plan: Plan, held: _Held) -> tuple[Choice, ...]:
    length = min(plan.longest, _LONG)
    part = max(
        1, plan.deployment.max_num_batched_tokens // max(512, plan.deployment.max_num_batched_tokens // 4)
    )
    return (
        Choice(
            "scheduling_policy",
            "priority",
            "a request that says a smaller `priority` goes before others, and is preempted after them; "
            "without any it is first come, first served",
        ),
        Choice("max_model_len", str(length), "bounds what one request can take from the others"),
        Choice("max_num_seqs", str(held.seqs(256)), f"{held}: hardly any is preempted for another"),
        _threshold(
            plan, length, 4, f"no tenant's prompt takes more than 1/{part} of a step while others wait"
        ),
    )
