"""Our own search on a case, with a twin that is wrong about the machine.

Truth + how wrong -> Tuned(conclusion, runs)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.tune.kept import kept
from bench.tune.truth import Server, Truth
from bench.tune.twins import Twin, miscalibrated
from headrace.core.conclusion import Conclusion
from headrace.core.ports import Overrides
from headrace.core.trial import Run
from headrace.tune.decide import Room, next_trial
from headrace.tune.problem import Problem
from headrace.tune.twin import Remembered


@dataclass(frozen=True, slots=True)
class Tuned:
    conclusion: Conclusion
    runs: tuple[Run, ...]

    @property
    def chosen(self) -> Overrides:
        """What a person would be told to set: the defaults, unless something else was proven."""
        return self.conclusion.recommended


def tune(truth: Truth, off: Sequence[float], seed: int, most_runs: int, memory: Path | None = None) -> Tuned:
    """`memory`: a file of what twins said (bench/tune/kept.py)."""
    case = truth.case
    twin = Twin(case.requests, miscalibrated(case.cost, off), case.space.site.start, case.goal)
    problem = Problem(case.goal, case.space, Remembered(kept(twin, memory)))
    server, runs = Server(truth, seed), list[Run]()
    while True:
        step = next_trial(problem, runs, Room(most_runs - len(runs)))
        if isinstance(step, Conclusion):
            return Tuned(step, tuple(runs))
        outcome = server.run(step.overrides, step.load)
        runs.append(Run(step.overrides, step.load, step.purpose, outcome))
