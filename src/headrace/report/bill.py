"""Bills in words: which budget a request's wait was a wait for, and how much of it.

    dict[Cause, seconds] -> bill_rows -> BillRow(words, budget, seconds, share, bar)

Used wherever a person is shown a bill. Knows nothing of tables or colours.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.core.bill import CAUSES, Cause

BAR_CHARS = 8


@dataclass(frozen=True, slots=True)
class Words:
    """What a person should understand by a cause."""

    what: str
    """What was going on while the request had no token, in at most 27 characters."""
    budget: str
    """The setting or resource that was short, under vLLM's name where it has one."""


WORDS: dict[Cause, Words] = {
    Cause.FRONT_END: Words("reading and tokenizing it", "CPU of the front end"),
    Cause.STEP_IN_FLIGHT: Words("the step already running", "max_num_batched_tokens"),
    Cause.TOKENS: Words("queued: steps were full", "max_num_batched_tokens"),
    Cause.DECODE_PACE: Words("queued: answers kept pace", "slo (itl)"),
    Cause.SLOTS: Words("queued: no sequence slot", "max_num_seqs"),
    Cause.KV: Words("queued: no KV-cache memory", "kv_cache_memory_bytes"),
    Cause.LONG_PREFILL_CAP: Words("own prompt cut small", "long_prefill_token_threshold"),
    Cause.RECOMPUTE: Words("recomputed after preemption", "kv_cache_memory_bytes"),
    Cause.SHARED_STEPS: Words("others' part of its steps", "max_num_batched_tokens"),
    Cause.OWN_PREFILL: Words("computing its own prompt", "compute"),
}


@dataclass(frozen=True, slots=True)
class BillRow:
    """One line of a bill."""

    cause: Cause
    what: str
    budget: str
    seconds: float
    share: float
    """Of the whole bill, 0 to 1."""
    bar: str
    """`share` drawn with up to `BAR_CHARS` characters; empty when it is too little to draw."""


def bill_rows(bill_s: Mapping[Cause, float]) -> tuple[BillRow, ...]:
    """The causes that cost anything, the largest first; equal ones in the order of `CAUSES`."""
    total_s = sum(bill_s.values())
    paid = [cause for cause in CAUSES if bill_s.get(cause, 0.0) > 0]
    paid.sort(key=lambda cause: -bill_s[cause])
    return tuple(_row(cause, bill_s[cause], total_s) for cause in paid)


def bar(share: float) -> str:
    """A bar of eighths: 0.5 is half of `BAR_CHARS`."""
    eighths = round(min(max(share, 0.0), 1.0) * BAR_CHARS * 8)
    whole, rest = divmod(eighths, 8)
    return "█" * whole + ("", *"▏▎▍▌▋▊▉")[rest]


def _row(cause: Cause, seconds: float, total_s: float) -> BillRow:
    words, share = WORDS[cause], seconds / total_s
    return BillRow(cause, words.what, words.budget, seconds, share, bar(share))
