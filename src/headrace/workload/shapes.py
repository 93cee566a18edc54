"""What a rate does over time: ramps, spikes and days, as factors of a base rate.

    [Ramp, Spike, Day, Points] --curve--> RateCurve

Several multiply. Between two knots the rate is a straight line; a day is drawn as 96 of them, which keeps
within 0.1 % of a cosine.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from headrace.workload.amounts import Number, number_of
from headrace.workload.arrivals import RateCurve

DAY_LINES = 96
MOST_KNOTS = 100_000


class Ramp(msgspec.Struct, forbid_unknown_fields=True, frozen=True, tag_field="kind", tag="ramp"):
    """From one factor to another; before `start` as at it, and after `end` likewise."""

    at_start: float
    at_end: float
    start: Number = 0
    end: Number | None = None
    """The workload's end where nothing is said."""

    def knots(self, duration_s: float) -> list[float]:
        return [number_of(self.start), self._end_s(duration_s)]

    def factor(self, at_s: float, duration_s: float) -> float:
        start_s, end_s = self.knots(duration_s)
        done = min(1.0, max(0.0, (at_s - start_s) / (end_s - start_s))) if end_s > start_s else 1.0
        return self.at_start + (self.at_end - self.at_start) * done

    def _end_s(self, duration_s: float) -> float:
        return duration_s if self.end is None else number_of(self.end)


class Spike(msgspec.Struct, forbid_unknown_fields=True, frozen=True, tag_field="kind", tag="spike"):
    """`times` the rate, from `at` on, for so long."""

    at: Number
    lasting: Number
    times: float

    def knots(self, duration_s: float) -> list[float]:
        del duration_s
        at_s = number_of(self.at)
        return [at_s, at_s + number_of(self.lasting)]

    def factor(self, at_s: float, duration_s: float) -> float:
        start_s, end_s = self.knots(duration_s)
        return self.times if start_s <= at_s < end_s else 1.0


class Day(msgspec.Struct, forbid_unknown_fields=True, frozen=True, tag_field="kind", tag="day"):
    """Up and down by `swing` around the rate, once a `period`, highest at `peak_at`."""

    swing: float
    peak_at: Number = "14h"
    period: Number = "24h"

    def knots(self, duration_s: float) -> list[float]:
        line_s = number_of(self.period) / DAY_LINES
        if not line_s > 0 or duration_s / line_s > MOST_KNOTS:
            raise ValueError(f"a period of {self.period} is too short for {duration_s:g} s")
        return [number * line_s for number in range(int(duration_s / line_s) + 1)]

    def factor(self, at_s: float, duration_s: float) -> float:
        del duration_s
        turn = (at_s - number_of(self.peak_at)) / number_of(self.period)
        return 1 + self.swing * math.cos(2 * math.pi * turn)


class Points(msgspec.Struct, forbid_unknown_fields=True, frozen=True, tag_field="kind", tag="points"):
    """Straight lines through factors at instants; before the first and after the last as at them."""

    through: tuple[tuple[Number, float], ...]

    def knots(self, duration_s: float) -> list[float]:
        del duration_s
        at_s = [number_of(at) for at, _ in self.through]
        if not at_s or any(b <= a for a, b in pairwise(at_s)):
            raise ValueError(f"points at {at_s} s: give at least one, each later than the one before")
        return at_s

    def factor(self, at_s: float, duration_s: float) -> float:
        knots = list(zip(self.knots(duration_s), (factor for _, factor in self.through), strict=True))
        for (start_s, low), (end_s, high) in pairwise(knots):
            if start_s <= at_s < end_s:
                return low + (high - low) * (at_s - start_s) / (end_s - start_s)
        return knots[0][1] if at_s < knots[0][0] else knots[-1][1]


Shape = Ramp | Spike | Day | Points


def curve(rate: float, duration_s: float, shapes: Sequence[Shape]) -> RateCurve:
    """Raises `ValueError` for a shape that makes no sense, or a rate below 0."""
    inner = {at_s for shape in shapes for at_s in shape.knots(duration_s) if 0 < at_s < duration_s}
    borders = [0.0, *sorted(inner), duration_s]
    knots: list[tuple[float, float]] = []
    for start_s, end_s in pairwise(borders):
        # Just before its end, so that a jump there belongs to the next piece.
        for at_s, seen_from_s in ((start_s, start_s), (end_s, math.nextafter(end_s, 0.0))):
            factor = math.prod(shape.factor(seen_from_s, duration_s) for shape in shapes)
            if not 0 <= rate * factor < math.inf:
                raise ValueError(f"{rate * factor:g} requests a second at {at_s:g} s")
            knots.append((at_s, rate * factor))
    return RateCurve.through(knots)
