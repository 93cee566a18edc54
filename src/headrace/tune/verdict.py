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
  - Who looks after every run, and stops when the bound is good enough, has several chances to be fooled. For
    those the bound is that of 98.75 %: four looks together then err as seldom as one at 95 % (Bonferroni).
  - A gain counts when even that bound is at least `LEAST_GAIN` better: less is not worth a change.
"""

from collections.abc import Sequence

import numpy as np

from headrace.core.trial import Gain

LEAST_GAIN = 0.05

# One-sided 95 % points of Student's t for 1, 2, ... degrees of freedom (any statistics table).
_T95 = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812)

_T9875 = (25.452, 6.205, 4.177, 3.495, 3.163, 2.969, 2.841, 2.752, 2.685, 2.634)
"""The same at 98.75 %."""


def gain_of(baseline_s: Sequence[float], repeats_s: Sequence[float]) -> Gain | None:
    """Compare the baseline's runs with the contender's repeats, once; None when too few to know the noise."""
    return _gain(baseline_s, repeats_s, (), _T95)


def gain_so_far(
    baseline_s: Sequence[float], repeats_s: Sequence[float], others_s: Sequence[Sequence[float]] = ()
) -> Gain | None:
    """The same for who looks up to four times. `others_s`: runs of other choices, each repeated, which tell
    of the noise and of nothing else.
    """
    return _gain(baseline_s, repeats_s, others_s, _T9875)


def _gain(
    baseline_s: Sequence[float],
    repeats_s: Sequence[float],
    others_s: Sequence[Sequence[float]],
    points: Sequence[float],
) -> Gain | None:
    groups = [np.log(group) for group in (baseline_s, repeats_s, *others_s) if len(group)]
    freedom = sum(len(group) - 1 for group in groups)
    if not baseline_s or not repeats_s or freedom < 1:
        return None
    before, after = groups[:2]
    squares = sum(float(((group - group.mean()) ** 2).sum()) for group in groups)
    deviation = (squares / freedom) ** 0.5
    error = deviation * (1 / len(before) + 1 / len(after)) ** 0.5
    shift = float(after.mean() - before.mean())
    bound = points[min(freedom, len(points)) - 1] * error
    return Gain(
        ratio=float(np.exp(shift)),
        ratio_at_most=float(np.exp(shift + bound)),
        spread=float(np.exp(deviation * 2**0.5)),
        baseline_runs=len(before),
        contender_runs=len(after),
    )


def is_beyond_noise(gain: Gain) -> bool:
    return gain.ratio_at_most <= 1 - LEAST_GAIN
