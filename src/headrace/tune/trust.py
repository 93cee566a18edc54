"""How far the twin and the machine are to be trusted: prediction beside measurement, and drift.

View --predictions--> [Predicted, ...]        View --drift_of--> factor | None
"""

from collections.abc import Sequence
from itertools import pairwise
from math import exp, log

from headrace.core.conclusion import Predicted
from headrace.core.grade import Grade
from headrace.core.trial import NoResult, Purpose, Run
from headrace.tune.belief import View
from headrace.tune.evidence import deviation
from headrace.tune.pace import residuals
from headrace.tune.twin import Point

DRIFT = 1.25
"""Factor between early and late runs of the baseline from which the machine is said to have drifted."""
SOON = 1
"""Runs between two of the baseline that are taken to be made on the same machine."""
ASSUMED_DEVIATION = 0.1
"""Of two runs' logarithms, where none was repeated."""
SIGMAS = 2.0


def predictions(view: View) -> tuple[Predicted, ...]:
    """Every run beside the twin's account at the pace that all of them showed. It does not know what further
    levers switch, so that theirs are other is no disagreement.
    """
    spread = deviation(view.runs)
    noise = SIGMAS * (spread[0] if spread else ASSUMED_DEVIATION)
    return tuple(
        Predicted(
            number,
            run.overrides,
            run.load,
            run.purpose,
            said,
            run.outcome,
            is_beyond_noise=run.purpose is not Purpose.LEVER and _is_off(run.outcome, said, noise),
        )
        for number, (run, said) in enumerate(zip(view.runs, _said(view, view.runs), strict=True))
    )


def drift_of(view: View) -> float | None:
    """How many times as long the baseline's later runs took as its earlier ones, where that is drift: a
    factor of `DRIFT`, and more than runs soon after each other differ by.

    Each run is set against the twin's account of the same load, so that load is not taken for drift.
    """
    places = [at for at, run in enumerate(view.runs) if not run.overrides]
    runs = [view.runs[at] for at in places]
    pairs = zip(places, runs, _said(view, runs), strict=True)
    offs = [(at, off) for at, run, said in pairs if (off := _off(run.outcome, said)) is not None]
    if len(offs) < 3:
        return None
    half = len(offs) // 2
    values = [off for _, off in offs]
    shift = _mean(values[-half:]) - _mean(values[:half])
    noise = SIGMAS * _soon_after(offs) * (2 / half) ** 0.5
    return exp(shift) if abs(shift) > max(log(DRIFT), noise) else None


def _soon_after(offs: Sequence[tuple[int, float]]) -> float:
    """Deviation of runs with at most `SOON` others between them, which hardly drift; 0 without any."""
    squares = [(later - off) ** 2 for (at, off), (then, later) in pairwise(offs) if then - at <= SOON + 1]
    return (_mean(squares) / 2) ** 0.5 if squares else 0.0


def _said(view: View, runs: Sequence[Run]) -> list[Grade | NoResult]:
    return view.problem.twin([Point(run.overrides, run.load, view.pace) for run in runs])


def _is_off(measured: Grade | NoResult, said: Grade | NoResult, noise: float) -> bool:
    off = _off(measured, said)
    if off is None:
        return isinstance(measured, NoResult) is not isinstance(said, NoResult)
    return abs(off) > noise


def _off(measured: Grade | NoResult, said: Grade | NoResult) -> float | None:
    """Mean logarithm of measured by predicted; None where there is nothing to compare."""
    if isinstance(measured, NoResult) or isinstance(said, NoResult):
        return None
    found = [each for each in residuals(measured, said) if each is not None]
    return _mean(found) if found else None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
