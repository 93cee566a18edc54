"""Tell a difference between repeated runs from noise.

    P95 of the baseline's runs + P95 of the contender's repeats  ->  Gain(ratio, ratio_at_most, spread)

The rule, and why:
  - The unit is the run, not the request. Requests of one run share its queues and whatever else the
    machine was doing, so resampling them would pretend to far more evidence than there is.
  - Latencies vary in proportion to their size, so their logarithms are compared: a difference of
    logarithms is a ratio.
  - Runs of one choice differ by noise only. Their spread, pooled over both choices, is the yardstick,
    and Student's t pays for knowing it from a handful of runs: the one-sided 95 % bound of the ratio
    is what may be claimed.
  - The contender's first run is left out. It was chosen for being low, so it is low by luck too;
    only runs made after the choice speak for it.
  - A gain counts when even that bound is at least `LEAST_GAIN` better: less is not worth a change.
"""

from collections.abc import Sequence

import numpy as np

from headrace.core.trial import Gain

LEAST_GAIN = 0.05

# One-sided 95 % points of Student's t for 1, 2, ... degrees of freedom (any statistics table).
_T95 = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812)


def gain_of(baseline_s: Sequence[float], repeats_s: Sequence[float]) -> Gain | None:
    """Compare the baseline's runs with the contender's repeats; None when too few to know the noise."""
    freedom = len(baseline_s) + len(repeats_s) - 2
    if not baseline_s or not repeats_s or freedom < 1:
        return None
    before, after = np.log(baseline_s), np.log(repeats_s)
    squares = float(((before - before.mean()) ** 2).sum() + ((after - after.mean()) ** 2).sum())
    deviation = (squares / freedom) ** 0.5
    error = deviation * (1 / len(before) + 1 / len(after)) ** 0.5
    shift = float(after.mean() - before.mean())
    t95 = _T95[min(freedom, len(_T95)) - 1]
    return Gain(
        ratio=float(np.exp(shift)),
        ratio_at_most=float(np.exp(shift + t95 * error)),
        spread=float(np.exp(deviation * 2**0.5)),
        baseline_runs=len(before),
        contender_runs=len(after),
    )


def is_beyond_noise(gain: Gain) -> bool:
    return gain.ratio_at_most <= 1 - LEAST_GAIN
