"""How good each candidate is, by what the twin says and the runs have shown.

    Problem + runs  --belief_of-->  View(pace, ranking, [Belief, ...] best first)

A height counts steps of 5 %: for a capacity the rung of the highest load that meets, for a latency how
far the worst ratio is below 1. What was measured beats what is predicted: a capacity lies between the
loads that were met and missed, a latency is the mean of its runs. Latencies of settings that never ran
are corrected by what the runs were off by on average.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import log

from headrace.core.cost import Pace
from headrace.core.grade import Grade
from headrace.core.ports import Overrides
from headrace.core.trial import NoResult, Purpose, Run
from headrace.tune.evidence import (
    LARGEST_RATIO,
    OWN_LOAD,
    bracket_of,
    is_ruled_out,
    is_sound,
    mean_ratio,
)
from headrace.tune.explore import START, Candidate, Ranking, explore
from headrace.tune.pace import paces
from headrace.tune.problem import Problem
from headrace.tune.twin import LOWEST_RUNG, RUNG, Point, grades, load_of, rung_of, settings_key

WORTH_A_LOOK = 0.6
"""Steps by which a candidate that has not met yet must be believed better than one that has: 3 %."""
OUT = -1e9
"""Height of a setting that failed, or gave up too much for its latency."""


@dataclass(frozen=True, slots=True)
class Belief:
    """One candidate."""

    overrides: Overrides
    height: float
    shown: float | None
    """The height that runs have shown; None where none has met, or none was made."""

    @property
    def worth(self) -> float:
        """What candidates are ordered by."""
        return self.height if self.shown is not None else self.height - WORTH_A_LOOK


@dataclass(frozen=True, slots=True)
class View:
    """All that decides about the next run."""

    problem: Problem
    runs: tuple[Run, ...]
    pace: Pace
    ranking: Ranking
    beliefs: tuple[Belief, ...]
    """Best first, without those that failed; the start is not among them."""
    start: Belief
    seeks_capacity: bool
    """False for a goal of latency, and where no setting meets the objectives at any load."""

    @property
    def is_at_the_top(self) -> bool:
        """The start is believed to carry the highest load that may be tried."""
        return self.seeks_capacity and self.start.height >= self.problem.highest_rung

    def is_out(self, overrides: Overrides) -> bool:
        """Failed, or suspected to fail for the same reason."""
        return is_ruled_out(overrides, self.runs, self.problem.space.site.start)

    def load_at(self, height: float) -> float:
        """Where a candidate of that height is to be measured."""
        return load_of(round(height)) if self.seeks_capacity else OWN_LOAD


def view_of(problem: Problem, runs: Sequence[Run]) -> View:
    """`runs` begin with the baseline's. Those of further levers tell nothing of the twin, which does not know
    what they switch, so they lead to no other candidate. Nor do those of a proof mend it: they are of two
    settings, one of them drowned, and of two that are as good now this and now that one would be proven.
    """
    seen = [run for run in runs if run.purpose is not Purpose.LEVER]
    series = paces([run for run in seen if run.purpose is not Purpose.PROOF], problem.twin)
    baseline = sum(run.purpose is Purpose.BASELINE for run in seen[: _first_other(seen)])
    seeks = problem.goal.seeks_capacity
    ranking = explore(problem, series[baseline])
    if seeks and ranking.best is None:
        problem, seeks = problem.at_own_load(), False
        ranking = explore(problem, series[baseline])
    measured = [run.overrides for run in seen if run.overrides]
    last = series[baseline]
    for pace in series[baseline + 1 :]:
        if pace != last:
            ranking, last = explore(problem, pace, ranking, measured), pace
    if any(isinstance(run.outcome, NoResult) for run in seen):
        ranking = explore(
            problem, last, is_out=partial(is_ruled_out, runs=seen, start=problem.space.site.start)
        )
    beliefs = _beliefs(problem, seen, ranking, last)
    return View(problem, tuple(runs), last, ranking, beliefs, _start(problem, seen, ranking), seeks)


def _first_other(runs: Sequence[Run]) -> int:
    return next((at for at, run in enumerate(runs) if run.purpose is not Purpose.BASELINE), len(runs))


def _beliefs(problem: Problem, runs: Sequence[Run], ranking: Ranking, pace: Pace) -> tuple[Belief, ...]:
    off = 0.0 if problem.goal.seeks_capacity else _off_by(problem, runs, pace)
    candidates = {settings_key(each.overrides): each for each in ranking.candidates if each.overrides}
    choices = {settings_key(run.overrides): run.overrides for run in runs if run.overrides}
    choices |= {key: candidate.overrides for key, candidate in candidates.items()}
    believed = [
        _belief(problem, runs, overrides, candidates.get(key), off)
        for key, overrides in choices.items()
        if not is_ruled_out(overrides, runs, problem.space.site.start)
    ]
    place = {key: at for at, key in enumerate(candidates)}
    return tuple(
        sorted(believed, key=lambda each: (-each.worth, place.get(settings_key(each.overrides), len(place))))
    )


def _start(problem: Problem, runs: Sequence[Run], ranking: Ranking) -> Belief:
    return _belief(problem, runs, START, ranking.start, 0.0)


def _belief(
    problem: Problem, runs: Sequence[Run], overrides: Overrides, candidate: Candidate | None, off: float
) -> Belief:
    if problem.goal.seeks_capacity:
        return _capacity(runs, overrides, candidate)
    ratio = mean_ratio(runs, overrides, OWN_LOAD)
    if not is_sound(runs, overrides, problem.goal):
        return Belief(overrides, OUT, None)
    if ratio is not None:
        return Belief(overrides, _height(ratio), _height(ratio))
    said = candidate.grade.ratio if candidate else LARGEST_RATIO
    return Belief(overrides, _height(said) - off, None)


def _capacity(runs: Sequence[Run], overrides: Overrides, candidate: Candidate | None) -> Belief:
    bracket = bracket_of(runs, overrides)
    said = candidate.rung if candidate and candidate.rung is not None else LOWEST_RUNG - 1
    shown = None if bracket.met is None else rung_of(bracket.met)
    if shown is not None:
        said = max(said, shown)
    if bracket.missed is not None:
        said = min(said, rung_of(bracket.missed) - 1)
    return Belief(overrides, said, shown)


def _height(ratio: float) -> float:
    return -log(min(max(ratio, 1 / LARGEST_RATIO), LARGEST_RATIO)) / log(RUNG)


def _off_by(problem: Problem, runs: Sequence[Run], pace: Pace) -> float:
    """Steps by which the runs were worse than the twin says at this pace, on average over settings."""
    measured = [run for run in runs if isinstance(run.outcome, Grade) and run.load == OWN_LOAD]
    said = grades(problem.twin, [Point(run.overrides, run.load, pace) for run in measured])
    by_choice: dict[object, list[float]] = {}
    for run, grade in zip(measured, said, strict=True):
        if grade is not None and isinstance(run.outcome, Grade):
            off = _height(grade.ratio) - _height(run.outcome.ratio)
            by_choice.setdefault(settings_key(run.overrides), []).append(off)
    means = [sum(offs) / len(offs) for offs in by_choice.values()]
    return sum(means) / len(means) if means else 0.0
