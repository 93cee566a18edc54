"""Multipliers of the first-principles model, found by simulation from requests alone.

A server tells when tokens came, not how long its steps took. So the model is simulated, its times are
laid beside those observed, and the multipliers are moved until the logarithms of the ratios are
small: Gauss and Newton's steps with differences for derivatives. What the observations cannot
tell apart (a fixed time by step and a fixed time for the weights) a weak pull towards 1 settles.
"""

from collections.abc import Callable
from dataclasses import astuple, dataclass

import numpy as np
import numpy.typing as npt

from bench.fidelity.reference import Lives
from headrace.capacity.roofline import Multipliers
from headrace.core.cost import Residual

Floats = npt.NDArray[np.float64]

_ROUNDS = 8
_NUDGE = 0.05
_LONGEST_STEP = 0.4
_TTFT_NOISE, _TPOT_NOISE = 0.2, 0.02
"""Shares by which a request's times scatter though the model be right. A first token's time hangs on the step
that its request arrived in, and simulated and real steps do not begin at the same instants."""
_PULL = 2.0
"""A multiplier e^0.5 off weighs as much as an observation one noise off."""
_HUBER = 1.345


@dataclass(frozen=True, slots=True)
class Calibration:
    """What came out, on the observations it was given."""

    multipliers: Multipliers
    residual: Residual
    simulations: int


def calibrate(observed: Lives, simulated: Callable[[Multipliers], Lives]) -> Calibration:
    """`simulated` gives the same requests as `observed`, under given multipliers."""
    noise = np.repeat([_TTFT_NOISE, _TPOT_NOISE], len(observed.due_at))
    seen = _times(observed)
    logs = np.zeros(len(Multipliers.names()))
    runs = 0

    def off(at: Floats) -> Floats:
        nonlocal runs
        runs += 1
        return np.log(_times(simulated(_multipliers(at))) / seen) / noise

    here = off(logs)
    for _ in range(_ROUNDS):
        slopes = np.column_stack([(off(logs + _NUDGE * unit) - here) / _NUDGE for unit in np.eye(len(logs))])
        logs, here, moved = _downhill(off, logs, here, _step(slopes, logs, here))
        if moved < 1e-3:
            break
    errors = np.abs(np.exp(here * noise) - 1.0)
    residual = Residual(len(errors), float(np.median(errors)), float(np.quantile(errors, 0.95)))
    return Calibration(_multipliers(logs), residual, runs)


def _step(slopes: Floats, logs: Floats, here: Floats) -> Floats:
    """To where the linearised sum of squares is least, outliers counting less."""
    weights = np.sqrt(np.minimum(1.0, _HUBER / np.maximum(np.abs(here), 1e-12)))
    rows = np.vstack([slopes * weights[:, None], _PULL * np.eye(len(logs))])
    wanted = np.concatenate([-here * weights, -_PULL * logs])
    step: Floats = np.linalg.lstsq(rows, wanted, rcond=None)[0].astype(np.float64)
    return np.clip(step, -_LONGEST_STEP, _LONGEST_STEP)


def _downhill(
    off: Callable[[Floats], Floats], logs: Floats, here: Floats, step: Floats
) -> tuple[Floats, Floats, float]:
    """Go the step, or half of it, or a quarter: simulations are not smooth."""
    for share in (1.0, 0.5, 0.25):
        there = logs + share * step
        ahead = off(there)
        if _badness(ahead, there) < _badness(here, logs):
            return there, ahead, float(np.max(np.abs(share * step)))
    return logs, here, 0.0


def _badness(off: Floats, logs: Floats) -> float:
    """Huber's sum: a first request that met a cold server must not pull the rest."""
    far = np.abs(off)
    sums = np.where(far <= _HUBER, far**2, 2 * _HUBER * far - _HUBER**2)
    return float(np.sum(sums) + np.sum((_PULL * logs) ** 2))


def _times(lives: Lives) -> Floats:
    return np.concatenate([lives.ttft_s, lives.tpot_s])


def _multipliers(logs: Floats) -> Multipliers:
    return Multipliers(*(float(value) for value in np.exp(logs)))


def as_text(multipliers: Multipliers) -> str:
    pairs = zip(Multipliers.names(), astuple(multipliers), strict=True)
    return ", ".join(f"{name} {value:.3f}" for name, value in pairs)
