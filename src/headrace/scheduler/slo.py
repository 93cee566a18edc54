"""`slo`: who must start soonest to have its first token in time comes first, and decodes keep their pace.

    arrived                    must start by                       goal                       overdue
    |--------------------------|-- its prompt, at the pace learnt --|-- PATIENCE times the goal --|

Past the instant by which it had to start a request cannot make its goal any more. It then has until
`PATIENCE` times its goal, so that it does not make those late who still can: under overload some
are late instead of all. Past that it is overdue.

Beside decodes, prompts get as many tokens as fit into the tightest of the decodes' ITL goals.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.core.plan import Chunk, Plan, Work
from headrace.core.settings import Settings
from headrace.core.slo import parse_goals
from headrace.scheduler.policy import OVERDUE, YOUNG, Rank, rank_of_overdue, tokens_left
from headrace.scheduler.step_times import StepTimes

PATIENCE = 4
LEAST_SHARE = 32
"""Of a step's tokens one in so many is for prompts whatever the decodes' goals: nobody waits for ever."""
AIM = 0.8
"""The part of an ITL goal that a step is planned to take: the next one is never quite like the last."""


@dataclass(slots=True)
class _Claim:
    goal_ns: int
    overdue_ns: int
    itl_ns: int
    prompt_tokens: int


class LeastSlack:
    """Least slack first. The clock is what the engine is told, in nanoseconds."""

    def __init__(self, settings: Settings) -> None:
        self.clock = 0
        self._goals = parse_goals(settings.slo)
        self._claims: dict[int, _Claim] = {}
        self._times = StepTimes()
        self._block_size = settings.block_size
        self._least_tokens = max(settings.block_size, settings.max_num_batched_tokens // LEAST_SHARE)

    def begin_step(self, now_ns: int) -> None:
        self.clock = now_ns

    def join(self, work: Work, prompt_tokens: int) -> None:
        claim = self._claims.get(work.arrival)
        if claim is None:
            request = work.request
            goal = self._goals.of(request.request_class)
            ttft_ns = goal.first_token_ns(work.num_prompt_tokens)
            begin = request.arrived_ns
            claim = _Claim(begin + ttft_ns, begin + PATIENCE * ttft_ns, goal.itl_ns, prompt_tokens)
            self._claims[work.arrival] = claim
        claim.prompt_tokens = prompt_tokens

    def leave(self, work: Work) -> None:
        del self._claims[work.arrival]

    def rank(self, work: Work) -> Rank:
        claim = self._claims[work.arrival]
        overdue = rank_of_overdue(work, claim.overdue_ns, self.clock)
        if overdue is not None:
            return overdue
        start_by = self._start_by(work, claim)
        if start_by < self.clock:
            start_by += claim.overdue_ns - claim.goal_ns
        return YOUNG, start_by, work.arrival

    def rank_changes_at(self, work: Work) -> int | None:
        if self.rank(work)[0] == OVERDUE:
            return None
        claim = self._claims[work.arrival]
        start_by = self._start_by(work, claim)
        return claim.overdue_ns if start_by < self.clock else start_by + 1

    def prefill_share(self, decodes: Sequence[Chunk], budget: int) -> int:
        """As much as the tightest goal of `decodes` leaves, in whole blocks."""
        if not decodes:
            return budget
        itl_ns = min(self._claims[chunk.work.arrival].itl_ns for chunk in decodes)
        tokens = self._times.prefill_tokens_within(AIM * itl_ns) or 0
        whole = tokens // self._block_size * self._block_size
        return min(budget, max(whole, self._least_tokens))

    def planned(self, prefill_tokens: int) -> None:
        """Time passes by itself."""

    def finished(self, plan: Plan, took_ns: int) -> None:
        if plan.num_scheduled_tokens == len(plan.chunks):
            return
        decodes = sum(chunk.tokens == 1 for chunk in plan.chunks)
        self._times.learn(decodes, plan.num_scheduled_tokens - decodes, took_ns)

    def _start_by(self, work: Work, claim: _Claim) -> int:
        return claim.goal_ns - int(self._times.ns_per_token * tokens_left(work, claim.prompt_tokens))
