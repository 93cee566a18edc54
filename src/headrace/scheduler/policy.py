"""The seam between how a step is filled and who comes first: what a ranked policy decides.

A policy ranks requests that have a prompt to compute, waiting and running alike. It ages them: past
a bound of its own a request is *overdue*, and the overdue come first, in the order in which they became
so. Whoever comes after that cannot overtake it any more, so nobody is overtaken for ever.
"""

from collections.abc import Sequence
from typing import Protocol

from headrace.core.plan import Chunk, Plan, Status, Work

Rank = tuple[int, int, int]
"""(tier, value, arrival), the smallest first. No two are equal."""
OVERDUE, YOUNG = 0, 1
"""Tiers. Who lost its blocks in the middle of its answer comes before all overdue: somebody is reading."""


class Policy(Protocol):
    """Who comes first. The scheduler says what happens; only `begin_step` moves the clock."""

    @property
    def clock(self) -> int:
        """What requests age by: tokens or nanoseconds."""
        ...

    def begin_step(self, now_ns: int) -> None: ...
    def join(self, work: Work, prompt_tokens: int) -> None:
        """`work` queues, new or preempted, with so many tokens to compute."""
        ...

    def leave(self, work: Work) -> None:
        """`work` has ended."""
        ...

    def rank(self, work: Work) -> Rank: ...
    def rank_changes_at(self, work: Work) -> int | None:
        """The clock at which a waiting `work` gets another rank; None: never, as it is."""
        ...

    def prefill_share(self, decodes: Sequence[Chunk], budget: int) -> int:
        """How many of the `budget` tokens left prompts may have beside `decodes`; at least one, if any."""
        ...

    def planned(self, prefill_tokens: int) -> None:
        """A step was planned that computes so many tokens of prompts."""
        ...

    def finished(self, plan: Plan, took_ns: int) -> None:
        """A step came back."""
        ...


def tokens_left(work: Work, when_queued: int) -> int:
    """Of the prompt of `work`; of a waiting one, what an admission would compute, by the time it queued."""
    if work.status is Status.RUNNING:
        return work.expected_tokens - work.num_computed_tokens
    return when_queued


def has_begun_to_answer(work: Work) -> bool:
    return work.num_tokens > work.num_prompt_tokens


def rank_of_overdue(work: Work, overdue_at: int, clock: int) -> Rank | None:
    """The rank of who comes before all young ones, by when that began; None while `work` is young."""
    if has_begun_to_answer(work):
        return OVERDUE, 0, work.arrival
    if overdue_at <= clock:
        return OVERDUE, overdue_at, work.arrival
    return None
