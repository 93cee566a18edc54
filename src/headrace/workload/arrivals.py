"""When requests arrive: a rate that changes over time, and how regular the gaps are.

    RateCurve(knots)   gaps with mean 1 --arrivals--> 0.31, 0.84, … seconds

Gaps are drawn at a rate of one and then stretched by the rate: where the curve is at 5 a second, five of
them pass in a second. So a Poisson process stays one under any curve, and burstiness keeps its
meaning. Nothing is rescaled afterwards: the number of arrivals is as random as the process has it.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate, chain, pairwise
from math import sqrt

from numpy.random import RandomState

from headrace.workload.chance import forever


class Regularity(StrEnum):
    """What the gaps are like."""

    CONSTANT = "constant"
    POISSON = "poisson"
    GAMMA = "gamma"


@dataclass(frozen=True, slots=True)
class RateCurve:
    """Requests a second over time: straight lines between knots; two at one instant are a jump."""

    knots: tuple[tuple[float, float], ...]
    """Instants and rates."""
    _passed: tuple[float, ...]
    """Expected arrivals up to each knot."""

    @classmethod
    def through(cls, knots: Sequence[tuple[float, float]]) -> "RateCurve":
        areas = ((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(knots))
        return cls(tuple(knots), tuple(accumulate(areas, initial=0.0)))

    @property
    def expected(self) -> float:
        """Arrivals from the first knot to the last, on average."""
        return self._passed[-1]

    def when(self, passed: float) -> float:
        """The instant up to which `passed` arrivals are expected; less than `expected`."""
        place = min(bisect_right(self._passed, passed), len(self.knots) - 1)
        (start, rate), (end, rate_at_end) = self.knots[place - 1], self.knots[place]
        left = passed - self._passed[place - 1]
        slope = (rate_at_end - rate) / (end - start)
        # left = rate * t + slope / 2 * t^2, solved so that a slope of 0 and a rate of 0 do no harm.
        root = sqrt(max(0.0, rate * rate + 2 * slope * left))
        return min(end, start + (2 * left / (rate + root) if rate + root > 0 else 0.0))


def arrivals(curve: RateCurve, gaps: Iterator[float]) -> Iterator[float]:
    passed = 0.0
    for gap in gaps:
        passed += gap
        if passed >= curve.expected:
            return
        yield curve.when(passed)


def gaps_of(regularity: Regularity, cv: float, chance: RandomState) -> Iterator[float]:
    """Gaps with mean 1; `cv`, their deviation over their mean, is only for `gamma`.

    The first one is what is left of a gap that began before the start, so that nothing happens more or less
    often near it; constant arrivals begin at the start.
    """
    if regularity is Regularity.CONSTANT:
        return chain((0.0,), forever(lambda count: chance.uniform(1.0, 1.0, count)))
    shape = 1.0 if regularity is Regularity.POISSON else 1 / cv**2
    first = float(chance.standard_gamma(shape + 1) / shape * chance.random_sample())
    return chain((first,), forever(lambda count: chance.standard_gamma(shape, count) / shape))
