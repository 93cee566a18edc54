"""A server in four formulas: what a search meets where the truth is known and a run costs nothing.

chunk        tokens of a long prompt that a short request waits behind
capacity     load that keeps up: more tokens and sequences a step help, less and less
ttft         of short requests: the chunk, stretched by how near the load is to the capacity
itl          grows with the tokens of a step
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import exp

import numpy as np

from headrace.core.cost import Pace
from headrace.core.goal import Aim, Goal
from headrace.core.grade import Attained, ClassGrade, Grade
from headrace.core.objective import parse_objectives
from headrace.core.ports import Overrides
from headrace.core.trial import NoResult, Run, Wanted
from headrace.tune.problem import Extra, Problem
from headrace.tune.space import Demand, Site, Space, space_of
from headrace.tune.twin import AS_FOUND, Point, Remembered

START: Overrides = {
    "max_num_batched_tokens": 2048,
    "max_num_seqs": 128,
    "long_prefill_token_threshold": 0,
    "max_model_len": 8192,
}
DEMAND = Demand(longest_tokens=5000, p99_tokens=4000, longest_prompt_tokens=4000, mean_tokens=400.0)
SLO = "short: p95 ttft < 400ms, p95 itl < 80ms"
CAPACITY = Goal(Aim.CAPACITY, parse_objectives(SLO))
LATENCY = Goal(Aim.LATENCY, parse_objectives(SLO))


def space() -> Space:
    return space_of(Site(START), DEMAND)


def grade_of(overrides: Overrides, load: float, pace: Pace = AS_FOUND, goal: Goal = CAPACITY) -> Grade:
    full = {**START, **overrides}
    tokens, seqs = int(full["max_num_batched_tokens"]), int(full["max_num_seqs"])
    chunk = min(tokens, int(full["long_prefill_token_threshold"]) or tokens)
    step_s = (0.010 * pace.decode + chunk * 2e-5 * pace.prefill) * (1 + seqs / 2048)
    capacity = 4 / pace.prefill * tokens / (tokens + 256) * seqs / (seqs + 16) * chunk / (chunk + 64)
    busy = load / capacity
    ttft_s = 2 * step_s / (1 - busy) if busy < 1 else 50.0 * busy
    return graded(ttft_s, step_s, min(load, capacity), goal, is_steady=busy < 1)


def graded(ttft_s: float, itl_s: float, rate: float, goal: Goal, *, is_steady: bool | None = True) -> Grade:
    values = {"ttft": ttft_s, "itl": itl_s}
    return Grade(
        attained=tuple(Attained(each, "short", values[each.metric]) for each in goal.objectives),
        classes=(ClassGrade("short", 200, 0, ttft_s / 2, ttft_s, itl_s / 2, itl_s, None),),
        due=200,
        failed=0,
        throughput_rps=rate,
        output_tokens_per_s=100 * rate,
        is_steady=is_steady,
        preemptions=0,
    )


Truth = Callable[[Overrides, float], Grade | NoResult]


@dataclass
class Server:
    """Answers as `truth` says, each run off by a factor exp(noise), later ones by `drift` more each."""

    truth: Truth
    noise: float = 0.03
    drift: float = 1.0
    seed: int = 0
    goal: Goal = CAPACITY
    runs: list[Run] = field(default_factory=list[Run])

    def __post_init__(self) -> None:
        self._chance = np.random.default_rng(self.seed)

    def judge(self, wanted: Wanted) -> Run:
        found = self.truth(wanted.overrides, wanted.load)
        if isinstance(found, Grade):
            factor = exp(float(self._chance.normal(0, self.noise))) * self.drift ** len(self.runs)
            ttft_s, itl_s = (
                (found.classes[0].ttft_p95_s or 0) * factor,
                (found.classes[0].itl_p95_s or 0) * factor,
            )
            found = graded(ttft_s, itl_s, found.throughput_rps, self.goal, is_steady=found.is_steady)
        run = Run(wanted.overrides, wanted.load, wanted.purpose, found, took_s=40.0)
        self.runs.append(run)
        return run


def problem(
    goal: Goal = CAPACITY,
    extras: tuple[Extra, ...] = (),
    twin: Callable[[Point], Grade | NoResult] | None = None,
) -> Problem:
    """The twin is the model itself, unless another one is given."""

    def predict(points: Sequence[Point]) -> list[Grade | NoResult]:
        if twin is not None:
            return [twin(point) for point in points]
        return [grade_of(point.overrides, point.load, point.pace, goal) for point in points]

    return Problem(goal, space(), Remembered(predict), extras)


def off_by(prefill: float, decode: float, goal: Goal = CAPACITY) -> Truth:
    """The same server, its steps slower than the twin thinks."""
    return lambda overrides, load: grade_of(overrides, load, Pace(prefill, decode), goal)
