"""What is best on a machine, by going through every setting; and one run there, with a server's noise.

    Case --Truth--> value(overrides), best()        run(overrides, load) -> Grade, noisy, counted

A capacity is the highest load, in steps of 1 %, up to which nothing is missed: latencies do not grow evenly
with load, and a load that happens to be met above one that is missed is nothing that a server can be given.
So who misses one step above the best of those before cannot be better, and of the grid every setting is
simulated once, in an order drawn once; who meets there is looked at as a whole.
"""

from dataclasses import dataclass, field, replace
from math import ceil, exp, inf, log
from pathlib import Path

import numpy as np

from bench.tune.cases import Case
from bench.tune.kept import kept
from bench.tune.twins import Twin
from headrace.core.goal import Aim
from headrace.core.grade import Attained, ClassGrade, Grade
from headrace.core.ports import Overrides
from headrace.core.trial import NoResult
from headrace.tune.twin import (
    LOWEST_RUNG,
    RUNG,
    Point,
    Remembered,
    highest_rung,
    load_of,
    rung_of,
    settings_key,
)

STEPS = 5
"""Of a capacity in a rung of the ladder of loads, 5 %."""
CLEAR, CLEAR_STEPS = 0.95, 3
"""Where so many neighbouring loads come to no more than this share of a limit, nothing is missed below."""
DEEPEST = 15
"""Steps met in a row after which nothing is missed below, however near the limit: a seventh less load."""
NOISE = 0.04
"""Deviation of a run's logarithm: two runs of one setting typically differ by a factor of 1.06."""


@dataclass(slots=True)
class Truth:
    """The server of a case."""

    case: Case
    twin: Remembered
    values: dict[object, float] = field(default_factory=dict[object, float])

    @classmethod
    def of(cls, case: Case, memory: Path | None = None) -> "Truth":
        """`memory`: a file of what twins said (bench/tune/kept.py)."""
        twin = Twin(case.requests, case.cost, case.space.site.start, case.goal)
        return cls(case, Remembered(kept(twin, memory)))

    def meets(self, overrides: Overrides, load: float) -> bool:
        found = self.twin([Point(overrides, load)])[0]
        return isinstance(found, Grade) and found.meets

    def value(self, overrides: Overrides) -> float:
        """Higher is better: the capacity, or how many times below its limit the worst objective stays."""
        key = settings_key(self.case.space.canonical(overrides))
        if key not in self.values:
            self.values[key] = self._value(self.case.space.canonical(overrides))
        return self.values[key]

    def is_worth(self, overrides: Overrides, value: float) -> bool:
        """Whether it is worth so much; who misses there is known not to be by one simulation."""
        overrides = self.case.space.canonical(overrides)
        if (
            self.case.goal.aim is not Aim.LATENCY
            and value > 0
            and not self.meets(overrides, _at_least(value))
        ):
            return False
        return self.value(overrides) >= value

    def best(self) -> tuple[Overrides, float]:
        """Of all settings: no other is worth more."""
        settings = self.grid()
        if self.case.goal.aim is Aim.LATENCY:
            best = max(settings, key=self.value)
            return best, self.value(best)
        best, value = dict[str, int | float | bool | str](), self.value({})
        for place in np.random.default_rng(0).permutation(len(settings)):
            overrides = settings[int(place)]
            if self.is_worth(overrides, _above(value)):
                best, value = overrides, self.value(overrides)
        return best, value

    def grid(self) -> list[Overrides]:
        return self.case.space.grid([lever.name for lever in self.case.space.levers], most=10**6)

    def _value(self, overrides: Overrides) -> float:
        if self.case.goal.aim is not Aim.LATENCY:
            return self._capacity(overrides)
        found = self.twin([Point(overrides)])[0]
        start = self.twin([Point({})])[0]
        assert isinstance(start, Grade), "the defaults start"
        if isinstance(found, NoResult) or found.failed or found.throughput_rps < 0.95 * start.throughput_rps:
            return 0.0
        return 1 / found.ratio

    def _capacity(self, overrides: Overrides) -> float:
        near = rung_of(self.value({}) or 1.0) if overrides else 0
        rung = highest_rung(lambda rung: self.meets(overrides, load_of(rung)), near)
        if rung is None:
            return 0.0
        low, high = STEPS * rung, STEPS * (rung + 1)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.meets(overrides, load_at(middle)) else (low, middle)
        return self._first_edge(overrides, low)

    def _first_edge(self, overrides: Overrides, edge: int) -> float:
        """Below `edge`, which is met, down to where there is room enough; 0 where that is nowhere."""
        step, met, clear = edge, 0, 0
        while clear < CLEAR_STEPS and met < DEEPEST:
            step -= 1
            if step < STEPS * LOWEST_RUNG:
                return 0.0
            found = self.twin([Point(overrides, load_at(step))])[0]
            if isinstance(found, Grade) and found.meets:
                met, clear = met + 1, clear + 1 if found.ratio <= CLEAR else 0
            else:
                edge, met, clear = step - 1, 0, 0
        return load_at(edge)


def load_at(step: int) -> float:
    return float(f"{RUNG ** (step / STEPS):.6g}")


def _at_least(load: float) -> float:
    """The step that is at it, or next above."""
    return load_at(ceil(STEPS * log(load) / log(RUNG) - _ROUNDED))


def _above(load: float) -> float:
    """One step more; of a load of nothing, the lowest."""
    return _at_least(load * (1 + _ROUNDED) * RUNG ** (0.5 / STEPS)) if load else load_at(STEPS * LOWEST_RUNG)


_ROUNDED = 1e-3
"""Of a step: loads are told to six digits."""


@dataclass(slots=True)
class Server:
    """The true machine as one who tunes meets it: a run at a time, each a little off, and counted."""

    truth: Truth
    seed: int
    runs: int = 0
    most: float = inf
    """Runs that may be made; more raise `Spent`."""
    _chance: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self._chance = np.random.default_rng(self.seed)

    def run(self, overrides: Overrides, load: float) -> Grade | NoResult:
        if self.runs >= self.most:
            raise Spent
        self.runs += 1
        factor = exp(float(self._chance.normal(0.0, NOISE)))
        found = self.truth.twin([Point(self.truth.case.space.canonical(overrides), load)])[0]
        return found if isinstance(found, NoResult) else slowed(found, factor)


class Spent(Exception):
    """No more runs are allowed."""


def slowed(grade: Grade, factor: float) -> Grade:
    """The same run, every latency of it times `factor`."""

    def times(amount_s: float | None) -> float | None:
        return None if amount_s is None else amount_s * factor

    return replace(
        grade,
        attained=tuple(Attained(a.objective, a.request_class, a.value_s * factor) for a in grade.attained),
        classes=tuple(
            ClassGrade(
                each.request_class,
                each.requests,
                each.failed,
                times(each.ttft_p50_s),
                times(each.ttft_p95_s),
                times(each.itl_p50_s),
                times(each.itl_p95_s),
                each.slow_bill_s,
            )
            for each in grade.classes
        ),
    )


def rungs_short(grade: Grade | NoResult) -> float:
    """By how many rungs a run missed, as far as its latencies tell; negative where it has room."""
    if isinstance(grade, NoResult):
        return 40.0
    ratio = min(max(grade.ratio, 1e-3), 8.0)
    return log(ratio if grade.meets else max(ratio, 1.05)) / log(1.05)
