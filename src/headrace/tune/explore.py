"""The best settings by the twin's account: hundreds of simulations, in the order that tells most first.

    Problem + Pace  --explore-->  Ranking([Candidate, ...] best first, the start's own place)

For a capacity, settings race up the ladder of loads: all of a coarse grid begin, on half of the workload,
one rung above what the start itself can carry, and who meets every objective goes on, four rungs at a
time, then two, then one; the first of them race again on all of it. For a latency all are simulated once at
the workload's own load. Then the best is moved along one lever at a time, some values either way, until
no move helps. Everything is deterministic, and settings that the twin sees preempt in storms, fail or fall
behind are out, whatever their latency.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf, log

from headrace.core.cost import Pace
from headrace.core.grade import Grade
from headrace.core.ports import Overrides
from headrace.tune.problem import Problem
from headrace.tune.space import CAP, SEQS, TOKENS
from headrace.tune.twin import LOWEST_RUNG, WHOLE, Point, grades, load_of, settings_key

START: Overrides = {}
"""The starting settings: nothing overridden."""
MAIN = (TOKENS, CAP, SEQS)
"""The levers that depend on each other, and are searched together."""
COARSE = 64
"""Settings of the first grid, at most."""
SCOUTED = 0.5
"""Share of the workload that the grid is simulated on."""
FINALISTS = 12
"""Of the grid, who are simulated on the whole of it."""
STRIDE = 4
"""Rungs of the race's first strides: a fifth more load."""
CLIMBERS = 6
"""Neighbours of the best that are tried at a higher load, each unlike the others."""
WALKERS = 3
"""The best that are moved along the levers."""
REACH = 3
"""Values of a lever that the best is moved by, either way."""
MOST_PASSES = 8
"""Moves of the best."""
KEPT = 12
"""Candidates in a ranking."""
STORM = 0.05
"""Preemptions for each request, beyond which a setting is unsafe."""
ALIKE, ALIKE_AT_THE_EDGE = 0.03, 0.01
"""What the best gains by less than this is not worth a further change, nor longer waits of others. At the
edge of what it carries a little less latency may be much more load."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One setting in the twin."""

    overrides: Overrides
    rung: int | None
    """Highest load at which it was seen to meet, as a rung of the ladder; None: at none. 0 for a goal of
    latency."""
    grade: Grade
    """At that load; where it meets at none, at the workload's own."""

    @property
    def load(self) -> float:
        return load_of(self.rung or 0)

    @property
    def rank(self) -> tuple[float, float, int, str]:
        """Smaller is better: more load, then nearer to no wait, then fewer changes."""
        height = -inf if self.rung is None else self.rung
        return (-height, self.grade.ratio, len(self.overrides), str(settings_key(self.overrides)))

    @property
    def cost(self) -> tuple[int, float]:
        """What it asks for: changes, and how long everybody waits, a sum of logarithms."""
        waits_s = (each for own in self.grade.classes for each in (own.ttft_p95_s, own.itl_p95_s))
        return len(self.overrides), sum(log(wait_s) for wait_s in waits_s if wait_s)


@dataclass(frozen=True, slots=True)
class Ranking:
    """Best first. `start`: the starting settings' own account; None where they give no result."""

    candidates: tuple[Candidate, ...]
    start: Candidate | None

    @property
    def best(self) -> Candidate | None:
        return self.candidates[0] if self.candidates else None


IsOut = Callable[[Overrides], bool]
"""Of settings that are not to be looked at, as they crash."""


def nothing_is_out(_overrides: Overrides) -> bool:
    return False


def explore(
    problem: Problem,
    pace: Pace,
    warm: Ranking | None = None,
    also: Sequence[Overrides] = (),
    is_out: IsOut = nothing_is_out,
) -> Ranking:
    """`warm`: a ranking under another pace, whose candidates, and `also`, are looked at instead of a grid."""
    tour = _Tour(problem, pace, is_out=is_out)
    if warm is None:
        start = tour.place_start(0)
        settings, rung = _scout(
            problem, pace, is_out, 0 if start is None or start.rung is None else start.rung + 1
        )
    else:
        start = tour.place_start(0 if warm.start is None else warm.start.rung or 0)
        settings = [*also, *(each.overrides for each in warm.candidates)]
        rung = 0 if warm.best is None else warm.best.rung or 0
    tour.race([START, *settings], rung)
    tour.refine()
    alike = ALIKE_AT_THE_EDGE if problem.goal.seeks_capacity else ALIKE
    return Ranking(_without_trifles(tour.best(KEPT), alike), start)


def _scout(problem: Problem, pace: Pace, is_out: IsOut, rung: int) -> tuple[list[Overrides], int]:
    """The finalists of a coarse grid on a part of the workload, and how far up the best of them came."""
    scout = _Tour(problem, pace, SCOUTED, is_out)
    scout.place_start(rung)
    scout.race(problem.space.grid(MAIN, COARSE), rung)
    found = scout.best(FINALISTS)
    return [each.overrides for each in found], (found[0].rung or 0) if found else rung


@dataclass(slots=True)
class _Tour:
    """The candidates seen so far, and what is asked of them."""

    problem: Problem
    pace: Pace
    share: float = WHOLE
    is_out: IsOut = nothing_is_out
    seen: dict[object, Candidate] = field(default_factory=dict[object, Candidate])
    start: Candidate | None = None

    def place_start(self, rung: int) -> Candidate | None:
        """Where the start stands; first of all, since others are measured against it."""
        if not self.problem.goal.seeks_capacity:
            self.start = self._candidate(START, 0, self._grades([START], 0)[0])
        else:
            self.race([START], rung)
            at_home = self._grades([START], 0)[0]
            self.start = self.seen.get(settings_key(START)) or self._candidate(START, None, at_home)
        return self.start

    def race(self, settings: Sequence[Overrides], rung: int) -> None:
        """Note for each how far up it came; a goal of latency has one rung only."""
        if not self.problem.goal.seeks_capacity:
            self._met(settings, 0)
            return
        rung, missed = min(rung, self.problem.highest_rung), self.problem.highest_rung + 1
        met, stride = self._met(settings, rung), 1
        while not met and rung > LOWEST_RUNG:
            missed, rung, stride = rung, max(LOWEST_RUNG, rung - stride), 2 * stride
            met = self._met(settings, rung)
        stride = STRIDE
        while met and stride:
            higher = rung + stride
            above = self._met(met, higher) if higher < missed else []
            if above:
                met, rung = above, higher
            else:
                stride //= 2

    def refine(self) -> None:
        """Move the best few along each lever until nothing is better. Where two levers must move together,
        as a smaller step that allows a larger cap, the way leads over one that is not the best.
        """
        for _ in range(MOST_PASSES):
            found = self.best(WALKERS)
            if not found:
                return
            best = found[0]
            walks = [self.problem.space.neighbours(each.overrides, REACH) for each in found]
            near = list({settings_key(each): each for walk in walks for each in walk}.values())
            rung = best.rung or 0
            met = self._met(near, rung)
            if self.problem.goal.seeks_capacity:
                climbers = _distinct([self.seen[settings_key(each)] for each in met], CLIMBERS)
                self.race([each.overrides for each in climbers], rung)
            if self.best(WALKERS) == found:
                return

    def best(self, count: int) -> tuple[Candidate, ...]:
        return _distinct(self.seen.values(), count)

    def _met(self, settings: Sequence[Overrides], rung: int) -> list[Overrides]:
        """Those that are good enough at a rung; they are noted."""
        found: list[Overrides] = []
        settings = [each for each in settings if not self.is_out(each)]
        for overrides, grade in zip(settings, self._grades(settings, rung), strict=True):
            candidate = self._candidate(overrides, rung, grade)
            if candidate is None or not self._is_good(candidate.grade):
                continue
            key = settings_key(overrides)
            before = self.seen.get(key)
            if before is None or (before.rung or 0) < rung:
                self.seen[key] = candidate
            found.append(overrides)
        return found

    def _is_good(self, grade: Grade) -> bool:
        """To meet, for a capacity; for a latency, to be no less safe than the start and keep throughput."""
        start = self.start.grade if self.start else None
        storm = max(STORM, start.preempted_share if start else 0.0)
        if grade.preempted_share > storm:
            return False
        if self.problem.goal.seeks_capacity:
            return grade.meets
        if start is None:
            return not grade.failed
        keeps = grade.throughput_rps >= self.problem.goal.least_throughput * start.throughput_rps
        falls_behind = grade.is_steady is False and start.is_steady is not False
        return keeps and grade.failed <= start.failed and not falls_behind

    def _grades(self, settings: Sequence[Overrides], rung: int) -> list[Grade | None]:
        load = load_of(rung)
        return grades(self.problem.twin, [Point(each, load, self.pace, self.share) for each in settings])

    @staticmethod
    def _candidate(overrides: Overrides, rung: int | None, grade: Grade | None) -> Candidate | None:
        return None if grade is None else Candidate(overrides, rung, grade)


def _distinct(candidates: Iterable[Candidate], count: int) -> tuple[Candidate, ...]:
    """The best, without those that come to the same as a better one, as where no slot was ever short: a
    handful of values of a lever that does nothing would leave no room for another idea.
    """
    found: list[Candidate] = []
    for each in sorted(candidates, key=lambda candidate: candidate.rank):
        if not any(other.rung == each.rung and other.grade == each.grade for other in found):
            found.append(each)
        if len(found) == count:
            break
    return tuple(found)


def _without_trifles(ranked: tuple[Candidate, ...], alike: float) -> tuple[Candidate, ...]:
    """From the one on that asks for least, of those that are all but as good as the best."""
    good = [
        each
        for each in ranked
        if each.rung == ranked[0].rung and each.grade.ratio <= (1 + alike) * ranked[0].grade.ratio
    ]
    return ranked[ranked.index(min(good, key=lambda each: each.cost)) :] if good else ranked
