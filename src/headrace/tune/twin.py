"""The twin as a search sees it: many points at once in, a grade for each out.

    [Point(overrides, load, pace, share), ...]  --Predict-->  [Grade | NoResult, ...]     in that order

Who hands it over decides where simulations run. Nothing is simulated twice (`Remembered`), so a search
that is asked again after each real run, or resumed from a journal, repeats only what has changed.

Loads are whole rungs of a ladder, 5 % apart, so that searches meet at the same points:

    rung  -2     -1     0     1      2     ...
    load  0.907  0.952  1     1.05   1.1025
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import floor, inf, log

from headrace.core.cost import Pace
from headrace.core.grade import Grade
from headrace.core.ports import Overrides
from headrace.core.trial import NoResult

RUNG = 1.05
"""From one load to the next: less than that is not worth a change of settings."""
LOWEST_RUNG, HIGHEST_RUNG = -95, 95
"""A hundredth of the workload's rate, and a hundred times it."""
WHOLE = 1.0
AS_FOUND = Pace()


@dataclass(frozen=True, slots=True)
class Point:
    """One simulation."""

    overrides: Overrides
    """Settings that differ from the start."""
    load: float = 1.0
    """Multiple of the workload's rate."""
    pace: Pace = AS_FOUND
    share: float = WHOLE
    """The first share of the workload's requests: less is cheaper and tells less of the tail."""

    @property
    def key(self) -> tuple[object, ...]:
        return (settings_key(self.overrides), self.load, self.pace, self.share)


Predict = Callable[[Sequence[Point]], Sequence[Grade | NoResult]]


@dataclass(slots=True)
class Remembered:
    """A `Predict` that asks for nothing twice."""

    predict: Predict
    known: dict[tuple[object, ...], Grade | NoResult] = field(
        default_factory=dict[tuple[object, ...], Grade | NoResult]
    )

    def __call__(self, points: Sequence[Point]) -> list[Grade | NoResult]:
        new = {point.key: point for point in points if point.key not in self.known}
        if new:
            found = self.predict(list(new.values()))
            self.known.update(zip(new, found, strict=True))
        return [self.known[point.key] for point in points]

    @property
    def simulated(self) -> int:
        return len(self.known)


def settings_key(overrides: Overrides) -> tuple[tuple[str, int | float | bool | str], ...]:
    """Equal for equal settings, in whatever order they are written."""
    return tuple(sorted(overrides.items()))


def load_of(rung: int) -> float:
    return float(f"{RUNG**rung:.6g}")


def rung_of(load: float) -> int:
    """The highest rung of the ladder at or below a load."""
    return HIGHEST_RUNG if load == inf else min(floor(log(load) / log(RUNG) + 1e-4), HIGHEST_RUNG)


@dataclass(slots=True)
class Climb:
    """A search for the highest rung up to `most` that meets, if whatever meets at one meets at all below.

    Steps of 1, 2, 4, ... from the first rung towards the edge, then halving. The caller tries `rung` and
    `tell`s what came out, until `is_done`: so many climbs can be tried at once.
    """

    rung: int = 0
    most: int = HIGHEST_RUNG
    _met: int = LOWEST_RUNG - 1
    _missed: int = field(init=False)
    _stride: int = 1

    def __post_init__(self) -> None:
        self._missed = self.most + 1
        self._stay_between()

    @property
    def is_done(self) -> bool:
        return self._missed - self._met <= 1

    @property
    def highest(self) -> int | None:
        """So far; None: no rung."""
        return self._met if self._met >= LOWEST_RUNG else None

    def tell(self, meets: bool) -> None:
        if meets:
            self._met, self.rung = self.rung, self.rung + self._stride
        else:
            self._missed, self.rung = self.rung, self.rung - self._stride
        self._stride *= 2
        if self._met >= LOWEST_RUNG and self._missed <= self.most:
            self.rung = (self._met + self._missed) // 2
        self._stay_between()

    def _stay_between(self) -> None:
        self.rung = min(max(self.rung, self._met + 1), self._missed - 1)


def highest_rung(meets: Callable[[int], bool], start: int = 0, most: int = HIGHEST_RUNG) -> int | None:
    """Of one climb, tried rung by rung."""
    climb = Climb(start, most)
    while not climb.is_done:
        climb.tell(meets(climb.rung))
    return climb.highest


def grades(predict: Predict, points: Iterable[Point]) -> list[Grade | None]:
    """None for a point that gives no result."""
    return [found if isinstance(found, Grade) else None for found in predict(list(points))]
