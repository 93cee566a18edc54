"""What is best on a machine, by going through every setting; and one run there, with a server's noise.

    Case --Truth--> value(overrides), best()        run(overrides, load) -> Grade, noisy, counted

A capacity is told to 1 %, by bisection. Of the grid every setting is tried at 1 % more than the best of those
before it carries, in an order drawn once: whoever meets there is the best from then on.
"""

from dataclasses import dataclass, field, replace
from math import exp, inf, log
from pathlib import Path

import numpy as np

from bench.tune.cases import Case
from bench.tune.kept import kept
from bench.tune.twins import Twin
from headrace.core.goal import Aim
from headrace.core.grade import Attained, ClassGrade, Grade
from headrace.core.ports import Overrides
from headrace.core.trial import NoResult
from headrace.tune.twin import Point, Remembered, highest_rung, load_of, rung_of, settings_key

FINE = 0.01
"""Of a capacity."""
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

    def reaches(self, overrides: Overrides, value: float) -> bool:
        """Whether it is worth so much, told by one simulation."""
        if self.case.goal.aim is Aim.LATENCY:
            return self.value(overrides) >= value
        if value <= 0:
            return True  # so much is worth what does not start, and no load is as low as that
        return self.meets(self.case.space.canonical(overrides), float(f"{value:.6g}"))

    def best(self) -> tuple[Overrides, float]:
        """Of all settings: whichever reaches more than the best before it."""
        settings = self.grid()
        if self.case.goal.aim is Aim.LATENCY:
            best = max(settings, key=self.value)
            return best, self.value(best)
        best, value = dict[str, int | float | bool | str](), self.value({})
        for place in np.random.default_rng(0).permutation(len(settings)):
            overrides = settings[int(place)]
            if self.reaches(overrides, (1 + FINE) * value) and self.value(overrides) > value:
                best, value = overrides, self.value(overrides)
        return best, value

    def grid(self) -> list[Overrides]:
        return self.case.space.grid([lever.name for lever in self.case.space.levers], most=10**6)

    def _value(self, overrides: Overrides) -> float:
        if self.case.goal.aim is Aim.LATENCY:
            found = self.twin([Point(overrides)])[0]
            start = self.twin([Point({})])[0]
            assert isinstance(start, Grade), "the defaults start"
            if (
                isinstance(found, NoResult)
                or found.failed
                or found.throughput_rps < 0.95 * start.throughput_rps
            ):
                return 0.0
            return 1 / found.ratio
        near = rung_of(self.value({}) or 1.0) if overrides else 0
        rung = highest_rung(lambda rung: self.meets(overrides, load_of(rung)), near)
        if rung is None:
            return 0.0
        low, high = load_of(rung), load_of(rung + 1)
        while high / low > 1 + FINE:
            middle = round((low * high) ** 0.5, 6)
            low, high = (middle, high) if self.meets(overrides, middle) else (low, middle)
        return low


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
