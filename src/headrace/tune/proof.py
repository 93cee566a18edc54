"""Is the contender better than the baseline, beyond what runs of one choice differ by?

    View -> contender_of -> Proof(load, gain, is_settled)

Both run in turns at one load. Only runs made after the contender was chosen count: it was chosen for a
run that was low, and the baseline passed over for runs that were high, both by luck too. For a latency
the worst ratios to the limits are compared. For a capacity the load is the highest that the contender has
met, and the claim is that it meets it while the baseline does not; how far a drowning baseline is off
depends on how long it was drowned, so ratios are held at `DROWNED`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, log

from headrace.core.grade import Grade
from headrace.core.ports import Overrides
from headrace.core.trial import Gain, Purpose, Run, Wanted
from headrace.tune.belief import WORTH_A_LOOK, Belief, View
from headrace.tune.evidence import LARGEST_RATIO, bracket_of, grades_of, runs_of
from headrace.tune.explore import START
from headrace.tune.verdict import LEAST_GAIN, gain_so_far, is_beyond_noise

REPEATS = 2
"""Of the contender beyond its first run, after which a gain that is none is given up."""
MOST_REPEATS = 4
"""After which a gain that cannot be told from noise is none."""
DROWNED = 4.0
"""Of a capacity's ratios: four times the limit is as bad as forty."""


@dataclass(frozen=True, slots=True)
class Proof:
    """Where the comparison stands."""

    contender: Overrides
    load: float
    gain: Gain | None
    """None before there are enough runs."""
    is_shown: bool
    """The gain is beyond the noise; of a capacity, the contender's repeats meet and the baseline does not."""
    is_settled: bool
    """More runs are not wanted."""
    runs: int
    """Of contender and baseline made for it."""


def contender_of(view: View) -> Belief | None:
    """The best of the candidates that have shown themselves better than the start is believed to be."""
    shown = [(each.shown, each) for each in view.beliefs if each.shown is not None]
    if not shown:
        return None
    height, best = max(shown, key=lambda each: each[0])
    needed = 1.0 if view.seeks_capacity else WORTH_A_LOOK
    return best if height >= view.start.height + needed else None


def proof_of(view: View) -> Proof | None:
    """None where there is nothing to prove."""
    contender = contender_of(view)
    if contender is None or contender.shown is None:
        return None
    load = view.load_at(contender.shown)
    proofs = [run for run in view.runs if run.purpose is Purpose.PROOF and run.load == load]
    baseline, repeats = _ratios(view, proofs, START), _ratios(view, proofs, contender.overrides)
    gain = gain_so_far(baseline, repeats, _yardstick(view))
    of_baseline = len(runs_of(proofs, START))
    of_contender = len(runs_of(proofs, contender.overrides))
    is_shown = (
        gain is not None
        and is_beyond_noise(gain)
        and _is_edge_between(view, contender.overrides, load)
        and (not view.seeks_capacity or _mean(repeats) < 1)
    )
    in_turns = of_baseline >= 1 and of_contender >= 1
    is_hopeless = of_contender >= REPEATS and gain is not None and gain.ratio > 1 - LEAST_GAIN / 2
    return Proof(
        contender.overrides,
        load,
        gain,
        is_shown,
        is_settled=in_turns and (is_shown or is_hopeless or of_contender >= MOST_REPEATS),
        runs=of_baseline + of_contender,
    )


def next_proof(view: View, proof: Proof) -> Wanted | None:
    """The baseline first, then in turns; None when it is settled. Where the gain is beyond the noise and only
    the limits are not kept yet, the baseline has nothing more to tell.
    """
    if proof.is_settled:
        return None
    proofs = [run for run in view.runs if run.purpose is Purpose.PROOF and run.load == proof.load]
    of_baseline, of_contender = len(runs_of(proofs, START)), len(runs_of(proofs, proof.contender))
    is_gain_clear = proof.gain is not None and is_beyond_noise(proof.gain)
    if of_baseline <= of_contender and not is_gain_clear:
        return Wanted(dict(START), proof.load, Purpose.PROOF, "the baseline, in turns with the contender")
    return Wanted(dict(proof.contender), proof.load, Purpose.PROOF, "the contender again: was it luck?")


def _is_edge_between(view: View, contender: Overrides, load: float) -> bool:
    """Of a capacity: the load is one that the contender carries and the baseline does not."""
    if not view.seeks_capacity:
        return True
    ours, theirs = bracket_of(view.runs, contender), bracket_of(view.runs, START)
    return (ours.met or 0.0) >= load and (theirs.missed or inf) <= load


def _mean(ratios: Sequence[float]) -> float:
    """Geometric: ratios vary in proportion to their size."""
    return exp(sum(map(log, ratios)) / len(ratios))


def _ratios(view: View, runs: Sequence[Run], overrides: Overrides) -> list[float]:
    return [ratio_for(grade, is_capacity=view.seeks_capacity) for grade in grades_of(runs, overrides)]


def _yardstick(view: View) -> list[list[float]]:
    """The first runs of the baseline. Near its capacity a server's runs differ more than at the load that
    it is used to, so of a capacity they tell too little.
    """
    if view.seeks_capacity:
        return []
    return [_ratios(view, [run for run in view.runs if run.purpose is Purpose.BASELINE], START)]


def ratio_for(grade: Grade, *, is_capacity: bool) -> float:
    """What is compared of one run."""
    if not is_capacity:
        return min(grade.ratio, LARGEST_RATIO)
    return min(grade.ratio if grade.meets else max(grade.ratio, 1.0), DROWNED)
