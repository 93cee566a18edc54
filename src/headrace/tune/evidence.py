"""What runs of the real server have shown: which loads were met, how settings compare, what runs differ by.

    [Run, ...]  -->  Bracket of a setting, ratios at a load, spread, settings that are out

A load is met where most runs at it met every objective, or the mean of their ratios does: where latency
hardly grows with load, single runs are a matter of luck.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from math import exp, inf, log

import numpy as np

from headrace.core.conclusion import Bracket
from headrace.core.goal import Goal
from headrace.core.grade import Grade
from headrace.core.ports import Overrides
from headrace.core.trial import NoResult, Purpose, Run
from headrace.tune.space import CAP, KV_BYTES, SEQS, TOKENS, Value
from headrace.tune.twin import settings_key

OWN_LOAD = 1.0
"""The workload's own rate."""
HUNGRY = (TOKENS, SEQS, KV_BYTES)
"""Levers that take memory when they grow."""
LARGEST_RATIO = 1e6
"""Stands for an infinite one, of which no logarithm can be compared."""


def runs_of(runs: Iterable[Run], overrides: Overrides, load: float | None = None) -> list[Run]:
    """Of one choice of settings, at one load or all."""
    key = settings_key(overrides)
    return [run for run in runs if settings_key(run.overrides) == key and load in (None, run.load)]


def grades_of(runs: Iterable[Run], overrides: Overrides, load: float | None = None) -> list[Grade]:
    return [run.outcome for run in runs_of(runs, overrides, load) if isinstance(run.outcome, Grade)]


def ratios_of(runs: Iterable[Run], overrides: Overrides, load: float) -> list[float]:
    """The worst ratio to a limit of each run, in order; always finite."""
    return [min(grade.ratio, LARGEST_RATIO) for grade in grades_of(runs, overrides, load)]


def bracket_of(runs: Iterable[Run], overrides: Overrides) -> Bracket:
    """Of a setting's capacity. What is missed at a load counts as missed above it."""
    made: dict[float, list[Run]] = {}
    for run in runs_of(runs, overrides):
        made.setdefault(run.load, []).append(run)
    is_met = {load: _is_met(runs_here, overrides, load) for load, runs_here in made.items()}
    missed = min((load for load, met in is_met.items() if not met), default=None)
    met = max(
        (load for load, met in is_met.items() if met and (missed is None or load < missed)), default=None
    )
    return Bracket(met, missed)


def _is_met(runs: Sequence[Run], overrides: Overrides, load: float) -> bool:
    votes = [isinstance(run.outcome, Grade) and run.outcome.meets for run in runs]
    if 2 * sum(votes) > len(votes):
        return True
    are_whole = all(
        isinstance(run.outcome, Grade) and not run.outcome.failed and run.outcome.is_steady is not False
        for run in runs
    )
    mean = mean_ratio(runs, overrides, load)
    return are_whole and mean is not None and mean < 1


def mean_ratio(runs: Iterable[Run], overrides: Overrides, load: float) -> float | None:
    """Geometric: ratios vary in proportion to their size."""
    ratios = ratios_of(runs, overrides, load)
    return exp(sum(log(ratio) for ratio in ratios) / len(ratios)) if ratios else None


def is_sound(runs: Iterable[Run], overrides: Overrides, goal: Goal) -> bool:
    """Every run gave a result; at the workload's own load none lost more requests, nor more than the goal
    allows of the throughput, than the baseline did.
    """
    made = runs_of(runs, overrides)
    if any(isinstance(run.outcome, NoResult) for run in made):
        return False
    before, after = grades_of(runs, {}, OWN_LOAD), grades_of(runs, overrides, OWN_LOAD)
    if not before or not after:
        return True
    tolerated = max(grade.failed for grade in before)
    kept = _mean(grade.throughput_rps for grade in after)
    asked = goal.least_throughput * _mean(grade.throughput_rps for grade in before)
    return kept >= asked and max(grade.failed for grade in after) <= tolerated


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


def deviation(runs: Sequence[Run]) -> tuple[float, int] | None:
    """Of the logarithm of a run's ratio, pooled over repeated choices, and the degrees of freedom.

    None where nothing was repeated. Runs that fell behind are left out: theirs tell how long they were.
    """
    groups: dict[object, list[float]] = {}
    for run in runs:
        if isinstance(run.outcome, Grade) and run.outcome.is_steady is not False:
            ratio = min(run.outcome.ratio, LARGEST_RATIO)
            groups.setdefault((settings_key(run.overrides), run.load), []).append(log(ratio))
    repeated = [np.array(group) for group in groups.values() if len(group) > 1]
    freedom = sum(len(group) - 1 for group in repeated)
    if not freedom:
        return None
    squares = sum(float(((group - group.mean()) ** 2).sum()) for group in repeated)
    return (squares / freedom) ** 0.5, freedom


def is_ruled_out(overrides: Overrides, runs: Iterable[Run], start: Mapping[str, Value]) -> bool:
    """Whether the server failed under these settings, or may fail for the same reason.

    A failure does not say which lever was too much. What takes memory may go no further than halfway
    (geometrically) from the start to where it failed. Of any levers, what two settings that failed have in
    common, and none that gave a result, is taken for the reason.
    """
    made = [run for run in runs if run.overrides and run.purpose is not Purpose.LEVER]
    failed = [
        (run.overrides, _moves(run.overrides, start)) for run in made if isinstance(run.outcome, NoResult)
    ]
    if not failed:
        return False
    full = {**start, **overrides}
    if any(_may_fail_too(full, each, start) for each in _unexplained(failed)):
        return True
    worked = [_moves(run.overrides, start) for run in made if isinstance(run.outcome, Grade)]
    ours = _moves(overrides, start)
    return any(reason <= ours and not any(reason <= each for each in worked) for reason in _reasons(failed))


Moves = set[tuple[str, Value]]


def _unexplained(failed: Sequence[tuple[Overrides, Moves]]) -> list[Overrides]:
    """Without those that move more than another one that failed, too: what that moved was enough."""
    return [each for each, moves in failed if not any(other < moves for _, other in failed)]


def _reasons(failed: Sequence[tuple[Overrides, Moves]]) -> list[Moves]:
    """What each two different settings that failed have in common."""
    different = {settings_key(each): moves for each, moves in failed}
    return [common for one, other in combinations(different.values(), 2) if (common := one & other)]


def _moves(overrides: Overrides, start: Mapping[str, Value]) -> Moves:
    """Each lever that is not as at the start, with whether it is above it; a word is a way of its own."""
    return {
        (name, value if isinstance(value, str) else _height(name, value) > _height(name, start.get(name, 0)))
        for name, value in overrides.items()
    }


def _height(name: str, value: Value) -> float:
    """A cap of 0 is none."""
    return inf if name == CAP and value == 0 else float(value)


def _may_fail_too(full: Mapping[str, Value], failed: Overrides, start: Mapping[str, Value]) -> bool:
    raised = [name for name in HUNGRY if name in failed and float(failed[name]) > float(start.get(name, 0))]
    if not raised:
        return all(full.get(name) == value for name, value in {**start, **failed}.items())
    return any(
        float(full.get(name, 0)) ** 2 > float(start.get(name, 0)) * float(failed[name]) for name in raised
    )
