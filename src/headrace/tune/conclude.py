"""What may be said after these runs, whether or not the search came to its end.

View + what would have come next (None: nothing)  --conclude-->  Conclusion
"""

from collections.abc import Iterator
from math import exp

from headrace.core.conclusion import Bracket, Conclusion
from headrace.core.goal import Aim
from headrace.core.trial import NoResult, Purpose, Verdict, Wanted
from headrace.tune.belief import View
from headrace.tune.evidence import OWN_LOAD, bracket_of, deviation
from headrace.tune.explore import START
from headrace.tune.levers import levers_found
from headrace.tune.proof import REPEATS, Proof, proof_of
from headrace.tune.reach import nearest, out_of_reach
from headrace.tune.trust import drift_of, predictions
from headrace.tune.twin import load_of

Found = tuple[Verdict, str]


def conclude(view: View, untried: Wanted | None = None) -> Conclusion:
    """`untried`: the run that there was no room for."""
    proof = proof_of(view)
    levers = levers_found(view, proof)
    kept = [lever for lever in levers if lever.is_kept]
    verdict, why = _verdict(view, proof, untried)
    if kept and verdict is Verdict.NOTHING_BETTER:
        verdict, why = Verdict.IMPROVED, "; ".join(f"{lever.name}: {lever.why}" for lever in kept)
        proof = None
    contender = {} if proof is None else dict(proof.contender)
    for lever in kept:
        contender |= lever.overrides
    spread = deviation(view.runs)
    return Conclusion(
        verdict=verdict,
        why=why,
        contender=contender or None,
        load=OWN_LOAD if proof is None else proof.load,
        gain=None if proof is None else proof.gain,
        baseline_bracket=bracket_of(view.runs, START),
        baseline_believed=load_of(round(view.start.height)) if view.seeks_capacity else None,
        contender_bracket=Bracket(None, None) if proof is None else bracket_of(view.runs, proof.contender),
        levers=levers,
        predictions=predictions(view),
        pace=view.pace,
        simulated=view.problem.twin.simulated,
        spread=None if spread is None else exp(spread[0] * 2**0.5),
        nearest=nearest(view) if verdict is Verdict.UNREACHABLE else None,
        notes=tuple(_notes(view)),
    )


def _verdict(view: View, proof: Proof | None, untried: Wanted | None) -> Found:
    is_open = untried is not None and untried.purpose is not Purpose.LEVER
    if not is_open and (missed := out_of_reach(view)) is not None:
        return Verdict.UNREACHABLE, missed
    if proof is not None and proof.is_shown and proof.is_settled:
        return Verdict.IMPROVED, _improved(view, proof)
    if (factor := drift_of(view)) is not None:
        why = f"late runs of the baseline took {factor:.2f} times as long as early ones, at equal settings"
        return Verdict.DRIFTED, why
    return _without_contender(view, is_open=is_open) if proof is None else _not_shown(proof)


def _without_contender(view: View, *, is_open: bool) -> Found:
    checks = sum(run.purpose is Purpose.CHECK for run in view.runs)
    if is_open:
        ran = f"after {_many(checks, 'run')} of candidates, none of them better" if checks else ""
        return Verdict.INCONCLUSIVE, f"the budget ended {ran or 'before a candidate had run'}"
    simulated = view.problem.twin.simulated
    if view.is_at_the_top:
        most = f"{load_of(view.problem.highest_rung):.3g} times the load"
        why = f"the start carries {most} in the twin, and this workload is too short to tell of more"
        return Verdict.NOTHING_BETTER, why
    if checks and view.beliefs and view.beliefs[0].worth > view.start.height:
        tried = "the best candidates were run" if checks > 1 else "the best candidate was run"
        return Verdict.NOTHING_BETTER, f"{tried}, {_many(checks, 'run')}, and none was 5 % better"
    tried = f"nor in {_many(checks, 'run')} of candidates" if checks else "so none was worth a run"
    return Verdict.NOTHING_BETTER, f"no setting was 5 % better in {simulated:,} simulations, {tried}"


def _improved(view: View, proof: Proof) -> str:
    assert proof.gain is not None, "shown by a gain"
    bound = f"with 95 % confidence at most {proof.gain.ratio_at_most:.2f} times as near to the limits"
    if not view.seeks_capacity:
        return bound
    missed = bracket_of(view.runs, START).missed or proof.load
    said = f"at {proof.load:.3g} times the load its repeats meet every objective on average"
    return f"{said}, the baseline misses at {missed:.3g}; there it is {bound}{_replicas(view, proof)}"


def _replicas(view: View, proof: Proof) -> str:
    """For a goal of cost: how many servers the workload's own load takes, before and after."""
    if view.problem.goal.aim is not Aim.COST:
        return ""
    before = bracket_of(view.runs, START).replicas()
    after = bracket_of(view.runs, proof.contender).replicas()
    price = view.problem.goal.price_per_hour
    money = "" if price is None or after is None else f" at {after * price:.4g} an hour"
    return f"; {after} replicas{money} instead of {'more than can be said' if before is None else before}"


def _not_shown(proof: Proof) -> Found:
    gain = proof.gain
    if gain is None:
        why = "the budget ended before there were enough runs in turns to tell a gain from noise"
        return Verdict.INCONCLUSIVE, why
    why = (
        f"the best candidate came to {gain.ratio:.2f} times the baseline's ratio, and runs of the same "
        f"settings differ by a factor of {gain.spread:.2f}: it may be anything up to {gain.ratio_at_most:.2f}"
    )
    is_enough = proof.is_settled or min(gain.contender_runs, gain.baseline_runs) > REPEATS
    return (Verdict.NOTHING_BETTER if is_enough else Verdict.INCONCLUSIVE), why


def _notes(view: View) -> Iterator[str]:
    pace = view.pace
    if max(abs(pace.prefill - 1), abs(pace.decode - 1)) > 0.02:
        yield (
            f"the twin was corrected by the runs: steps with prompts take {pace.prefill:.2f} times, steps "
            f"that only decode {pace.decode:.2f} times as long as it was told"
        )
    causes = [run.outcome.cause for run in view.runs if isinstance(run.outcome, NoResult)]
    if causes:
        yield f"{len(causes)} of {_many(len(view.runs), 'run')} gave no result: {causes[0]}"
    if (factor := drift_of(view)) is not None:
        yield f"the machine drifted: the baseline's late runs took {factor:.2f} times as long"


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
