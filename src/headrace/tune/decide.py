"""The next run that tells most, or the answer: a pure function of the runs so far.

    next_trial(problem, runs, room)  -->  Wanted | Conclusion

    baseline, baseline        the yardstick and its spread, at the workload's own load
    check, check, ...         the candidate believed best, where the twin says it just meets; each run mends
                              the twin, until nothing unmeasured is believed to be better
    baseline, contender, ...  in turns at one load, so that a drifting machine drifts for both; until clear
    lever, lever, ...         further levers, each alone on top of the contender

Since it remembers nothing, a search that was killed goes on from its journal as if nothing had happened.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from headrace.core.conclusion import Conclusion
from headrace.core.errors import TargetFailed
from headrace.core.trial import NoResult, Purpose, Run, Wanted
from headrace.tune.belief import OUT, Belief, View, view_of
from headrace.tune.conclude import conclude
from headrace.tune.evidence import OWN_LOAD, bracket_of
from headrace.tune.explore import START
from headrace.tune.levers import next_lever
from headrace.tune.problem import Problem
from headrace.tune.proof import next_proof, proof_of

BASELINES = 2
"""Runs of the start before anything else: two tell how far runs of one choice differ."""
MOST_CHECKS = 5
"""Candidates and loads tried before the best of them has to do."""
RECHECK = 2.0
"""Rungs that a candidate must be believed to carry beyond those it has shown, to run once more."""
SAFETY = 1
"""Rungs below the predicted capacity at which a candidate is first measured: met there, it is a finding."""


@dataclass(frozen=True, slots=True)
class Room:
    """How many more runs the budget has room for; infinite without one."""

    runs: float = inf


NO_LIMIT = Room()


def next_trial(problem: Problem, runs: Sequence[Run], room: Room = NO_LIMIT) -> Wanted | Conclusion:
    """Raises `TargetFailed` where not even the starting settings give a result to compare with."""
    _refuse_a_dead_baseline(runs)
    baselines = sum(run.purpose is Purpose.BASELINE for run in runs)
    if not runs or (baselines < BASELINES and len(runs) == baselines and room.runs >= 1):
        why = "the server as it is" if not runs else "again: how far apart are two runs of the same settings?"
        return Wanted(dict(START), OWN_LOAD, Purpose.BASELINE, why)
    view = view_of(problem, runs)
    wanted = _next(view)
    return wanted if wanted is not None and room.runs >= 1 else conclude(view, wanted)


def _next(view: View) -> Wanted | None:
    if (wanted := _check(view)) is not None:
        return wanted
    proof = proof_of(view)
    wanted = _closing(view) if proof is None else next_proof(view, proof)
    return next_lever(view, proof) if wanted is None else wanted


def _closing(view: View) -> Wanted | None:
    """The baseline once more, before it is said that nothing was better: a machine that became slower while
    candidates ran would hide what they gained.
    """
    if view.runs[-1].purpose is not Purpose.CHECK:
        return None
    return Wanted(dict(START), OWN_LOAD, Purpose.BASELINE, "has the machine changed meanwhile?")


def _check(view: View) -> Wanted | None:
    """The candidate believed best; None when it has shown what is believed of it, or is no better."""
    checks = sum(run.purpose is Purpose.CHECK for run in view.runs)
    if checks >= MOST_CHECKS or not view.beliefs or view.is_at_the_top:
        return None
    best = view.beliefs[0]
    is_no_better = best.worth <= view.start.height
    if best.height <= OUT or (is_no_better and checks):
        return None
    if best.shown is not None and not (view.seeks_capacity and best.height >= best.shown + RECHECK):
        return None
    height = _height_to_check(view, best)
    why = "the best in the twin" if best.shown is None else "it may carry more than was tried"
    if is_no_better:
        why = "the twin knows nothing better: is it right?"
    return Wanted(dict(best.overrides), view.load_at(height), Purpose.CHECK, why)


def _height_to_check(view: View, best: Belief) -> float:
    """Where it is believed to meet with a little to spare, and the start is not believed to."""
    above_start = view.start.height + 1
    least = above_start if best.shown is None else max(above_start, best.shown + 1)
    missed = bracket_of(view.runs, best.overrides).missed
    most = best.height if missed is not None else max(best.height, least)
    return min(max(best.height - SAFETY, least), most, view.problem.highest_rung)


def _refuse_a_dead_baseline(runs: Sequence[Run]) -> None:
    if not runs:
        return
    outcome = runs[0].outcome
    if isinstance(outcome, NoResult):
        raise TargetFailed(f"the starting settings gave no result: {outcome.cause}")
    if outcome.due == outcome.failed:
        raise TargetFailed(f"none of {outcome.due} requests was answered under the starting settings")
