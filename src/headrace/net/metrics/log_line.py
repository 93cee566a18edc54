"""The periodic line, in vLLM's words as far as they go, and then what was waited for.

Totals then, Totals now -> "Engine 000: Avg prompt throughput: ..., Waited for: KV blocks 71%, tokens 29% ..."
"""

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.core.bill import Cause

WORTH_A_WORD = 0.05
"""Requests that waited, on average: less is the beat of the steps."""

NAMES = {
    Cause.TOKENS: "tokens",
    Cause.DECODE_PACE: "pace of decodes",
    Cause.SLOTS: "slots",
    Cause.KV: "KV blocks",
    Cause.STEP_IN_FLIGHT: "the step in flight",
}


@dataclass(frozen=True, slots=True)
class Totals:
    """Gauges of now and counters from the start."""

    prefill_tokens: float
    generation_tokens: float
    running: int
    waiting: int
    kv_cache_usage: float
    prefix_cache_queries: float
    prefix_cache_hits: float
    preemptions: int
    waited_s: Mapping[Cause, float]


def log_line(then: Totals, now: Totals, took_s: float) -> str | None:
    """What happened in `took_s` seconds; None when nothing did."""
    prefilled = now.prefill_tokens - then.prefill_tokens
    generated = now.generation_tokens - then.generation_tokens
    if not (prefilled or generated or now.running or now.waiting):
        return None
    parts = [
        f"Avg prompt throughput: {prefilled / took_s:.1f} tokens/s",
        f"Avg generation throughput: {generated / took_s:.1f} tokens/s",
        f"Running: {now.running} reqs",
        f"Waiting: {now.waiting} reqs",
    ]
    if preempted := now.preemptions - then.preemptions:
        parts.append(f"Preemptions: {preempted}")
    parts.append(f"CPU KV cache usage: {now.kv_cache_usage:.1%}")
    if looked_up := now.prefix_cache_queries - then.prefix_cache_queries:
        found = now.prefix_cache_hits - then.prefix_cache_hits
        parts.append(f"Prefix cache hit rate: {found / looked_up:.1%}")
    waited_s = {cause: now.waited_s[cause] - then.waited_s[cause] for cause in NAMES}
    return "Engine 000: " + ", ".join([*parts, *_waited_for(waited_s, took_s)])


def _waited_for(waited_s: Mapping[Cause, float], took_s: float) -> list[str]:
    """The budgets that were short, the worst first, with how much of the waiting each explains."""
    in_all_s = sum(waited_s.values())
    if in_all_s < WORTH_A_WORD * took_s:
        return []
    worst_first = sorted(waited_s.items(), key=lambda item: -item[1])
    parts = [(NAMES[cause], seconds / in_all_s) for cause, seconds in worst_first]
    shares = [f"{name} {share:.0%}" for name, share in parts if share >= 0.005]
    return [f"Waited for: {', '.join(shares)} ({in_all_s / took_s:.1f} reqs on average)"]
