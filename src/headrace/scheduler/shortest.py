"""`shortest`: who has the least left to compute before its first token comes first.

The clock counts tokens of prompts, computed for anybody. A request with P tokens to compute when it came
is overdue once `PATIENCE` times P have been computed since; whoever comes after that never overtakes it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.core.plan import Chunk, Plan, Work
from headrace.scheduler.policy import OVERDUE, YOUNG, Rank, rank_of_overdue, tokens_left

PATIENCE = 16
"""8 lets the slowest short prompts near the knee wait up to twice as long; 32 gains little (docs/log.md)."""


@dataclass(slots=True)
class _Claim:
    overdue_at: int
    prompt_tokens: int


class Shortest:
    """Shortest remaining prefill first, with ageing by work done."""

    def __init__(self) -> None:
        self.clock = 0
        self._claims: dict[int, _Claim] = {}

    def begin_step(self, now_ns: int) -> None:
        """Time does not matter here."""

    def join(self, work: Work, prompt_tokens: int) -> None:
        claim = self._claims.get(work.arrival)
        if claim is None:
            overdue_at = self.clock + PATIENCE * prompt_tokens
            self._claims[work.arrival] = _Claim(overdue_at, prompt_tokens)
        else:
            claim.prompt_tokens = prompt_tokens

    def leave(self, work: Work) -> None:
        del self._claims[work.arrival]

    def rank(self, work: Work) -> Rank:
        claim = self._claims[work.arrival]
        overdue = rank_of_overdue(work, claim.overdue_at, self.clock)
        return overdue or (YOUNG, tokens_left(work, claim.prompt_tokens), work.arrival)

    def rank_changes_at(self, work: Work) -> int | None:
        return None if self.rank(work)[0] == OVERDUE else self._claims[work.arrival].overdue_at

    def prefill_share(self, decodes: Sequence[Chunk], budget: int) -> int:
        """All of it."""
        del decodes
        return budget

    def planned(self, prefill_tokens: int) -> None:
        self.clock += prefill_tokens

    def finished(self, plan: Plan, took_ns: int) -> None:
        """Nothing is to be learnt."""
