"""How much slower or faster the machine is than its twin: two factors, from the runs so far.

    runs + twin  --paces-->  (Pace before any run, after the first, after the second, ...)

Medians of what was measured are compared with what the twin says for the same settings and load, as
logarithms: TTFT and time between tokens, class by class. One Gauss-Newton step for each run, from the pace
before it, finds the two factors that explain them best; that they are near 1 is taken to be likely from the
start (a normal prior on the logarithm), so that one odd run does not overturn a calibration. Waits of a run
whose queue grew tell how long it lasted and nothing of steps; of such a run only the gaps count.

The factors are rounded to two per cent, so that the twin is asked anew only when they have changed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log

import numpy as np
from numpy.typing import NDArray

from headrace.core.cost import Pace
from headrace.core.grade import ClassGrade, Grade
from headrace.core.trial import Run
from headrace.tune.twin import AS_FOUND, Point, Predict, grades

Floats = NDArray[np.float64]

PRIOR = 0.2
"""Standard deviation of each factor's logarithm before any run: what calibrations are off by."""
NOISE = 0.1
"""Of a median's logarithm, from run to run."""
HUBER = 3.0
"""Residuals beyond so many `NOISE` pull no harder."""
NUDGE = 0.05
"""Change of a factor's logarithm from which its effect is told."""
FURTHEST = log(4.0)
FINENESS = 0.02


@dataclass(frozen=True, slots=True)
class _Seen:
    """One run with a result."""

    run: Run
    grade: Grade


def paces(runs: Sequence[Run], twin: Predict) -> list[Pace]:
    """One more than there are runs. Each follows from the one before it and the runs up to it."""
    found = [AS_FOUND]
    for count in range(1, len(runs) + 1):
        outcome = runs[count - 1].outcome
        found.append(_next(found[-1], runs[:count], twin) if isinstance(outcome, Grade) else found[-1])
    return found


def residuals(measured: Grade, predicted: Grade) -> list[float | None]:
    """Logarithms of measured by predicted, four for each class: 0.1 is a tenth more than the twin said.

    None for what one of the two does not have, and for waits where a queue grew.
    """
    in_step = measured.is_steady is not False and predicted.is_steady is not False
    found: list[float | None] = []
    for each in measured.classes:
        twin = predicted.of_class(each.request_class)
        found += [None] * _FIGURES if twin is None else _logs(each, twin, in_step)
    return found


_FIGURES = 4


def _logs(measured: ClassGrade, predicted: ClassGrade, in_step: bool) -> list[float | None]:
    gaps = [(measured.itl_p50_s, predicted.itl_p50_s), (measured.itl_p95_s, predicted.itl_p95_s)]
    waits = [(measured.ttft_p50_s, predicted.ttft_p50_s), (measured.ttft_p95_s, predicted.ttft_p95_s)]
    logs = [log(was / said) if was and said else None for was, said in (*gaps, *waits)]
    return logs if in_step else [*logs[:2], None, None]


def _next(pace: Pace, runs: Sequence[Run], twin: Predict) -> Pace:
    seen = [_Seen(run, run.outcome) for run in runs if isinstance(run.outcome, Grade)]
    here = _residuals_at(pace, seen, twin)
    prefill = _residuals_at(_moved(pace, NUDGE, 0.0), seen, twin)
    decode = _residuals_at(_moved(pace, 0.0, NUDGE), seen, twin)
    rows = [
        (off, (before - off) / NUDGE, (other - off) / NUDGE)
        for off, before, other in zip(here, prefill, decode, strict=True)
        if off is not None and before is not None and other is not None
    ]
    if not rows:
        return pace
    table = np.array(rows)
    step = _gauss_newton(table[:, 0], table[:, 1:], np.log([pace.prefill, pace.decode]))
    return _moved(pace, float(step[0]), float(step[1]))


def _gauss_newton(off: Floats, slopes: Floats, log_pace: Floats) -> Floats:
    """The change of the two logarithms that leaves least unexplained, outliers held down."""
    weights = 1.0 / np.maximum(1.0, np.abs(off) / (HUBER * NOISE)) / NOISE**2
    normal = (slopes * weights[:, None]).T @ slopes + np.eye(2) / PRIOR**2
    target = -(slopes * weights[:, None]).T @ off - log_pace / PRIOR**2
    return np.linalg.solve(normal, target).astype(np.float64)


def _residuals_at(pace: Pace, seen: Sequence[_Seen], twin: Predict) -> list[float | None]:
    """In one order for every pace; None where the twin gives no result."""
    points = [Point(each.run.overrides, each.run.load, pace) for each in seen]
    found: list[float | None] = []
    for each, predicted in zip(seen, grades(twin, points), strict=True):
        nothing: list[float | None] = [None] * (_FIGURES * len(each.grade.classes))
        found += nothing if predicted is None else residuals(each.grade, predicted)
    return found


def _moved(pace: Pace, prefill: float, decode: float) -> Pace:
    return Pace(_rounded(log(pace.prefill) + prefill), _rounded(log(pace.decode) + decode))


def _rounded(log_factor: float) -> float:
    held = min(max(log_factor, -FURTHEST), FURTHEST)
    return round(exp(FINENESS * round(held / FINENESS)), 6)
