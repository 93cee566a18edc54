"""Asks for runs and makes them until there is an answer: the only loop of a search.

Problem + judge + Budget  --drive-->  Conclusion
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.core.conclusion import Conclusion
from headrace.core.trial import Run, Wanted
from headrace.tune.decide import Room, next_trial
from headrace.tune.problem import Problem

RealJudge = Callable[[Wanted], Run]
"""Makes one run on the real server. A server that would not start, or left, is a run without a result."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How long, and how many runs, a search may take. None: no limit of that kind."""

    ends_at: float | None = None
    """On the clock that `drive` is given."""
    max_trials: int | None = None

    def room(self, runs: Sequence[Run], now: float) -> Room:
        """How many more runs fit, each taken to be as long as the longest so far."""
        longest_s = max((run.took_s for run in runs), default=0.0)
        in_number = math.inf if self.max_trials is None else self.max_trials - len(runs)
        in_time = math.inf if self.ends_at is None or longest_s == 0 else (self.ends_at - now) // longest_s
        return Room(max(0.0, min(in_number, in_time)))


class Observer(Protocol):
    """Is told what happens while it happens."""

    def starting(self, wanted: Wanted, number: int) -> None: ...

    def ended(self, run: Run, number: int) -> None: ...


def drive(
    problem: Problem,
    judge: RealJudge,
    budget: Budget,
    clock: Callable[[], float],
    observer: Observer,
    runs: Sequence[Run] = (),
) -> Conclusion:
    """`runs` are those of an earlier attempt, in order; none of them is made again."""
    made = list(runs)
    while True:
        step = next_trial(problem, made, budget.room(made, clock()))
        if isinstance(step, Conclusion):
            return step
        observer.starting(step, len(made) + 1)
        run = judge(step)
        made.append(run)
        observer.ended(run, len(made))
