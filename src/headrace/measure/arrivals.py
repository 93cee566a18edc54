"""What a stream of arrivals is like: how many a second, how bursty, and whether gaps know of each other.

    instants --describe--> Arrivals(per_s, cv, dispersion, lag_1)

A Poisson stream has an index of dispersion of 1 (variance of the counts by window over their mean) and
a lag-1 autocorrelation of its gaps of 0. The distribution of the gaps alone does not show a broken
generator: one that uses each gap ten times has gaps as exponential as any.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

PER_WINDOW = 4.0
"""Arrivals of a window in the mean: few, so that there are many windows and little chance in the index."""
FEWEST = 40
"""With fewer arrivals neither index says anything."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """None where there are too few to tell."""

    count: int
    per_s: float | None
    cv: float | None
    """Standard deviation of the gaps over their mean."""
    dispersion: float | None
    lag_1: float | None
    windows: int = 0
    """That the dispersion is of."""


def describe(instants: Sequence[float]) -> Arrivals:
    """Of instants in any order."""
    at = np.sort(np.asarray(instants, dtype=np.float64))
    count = int(at.size)
    spanned = float(at[-1] - at[0]) if count else 0.0
    if count < FEWEST or spanned <= 0:
        return Arrivals(count, (count - 1) / spanned if spanned > 0 else None, None, None, None)
    gaps = np.diff(at)
    windows = max(2, int((count - 1) / PER_WINDOW))
    counts, _ = np.histogram(at, bins=windows, range=(float(at[0]), float(at[-1])))
    centred = gaps - gaps.mean()
    square = float(centred @ centred)
    return Arrivals(
        count,
        (count - 1) / spanned,
        float(gaps.std() / gaps.mean()),
        float(counts.var(ddof=1) / counts.mean()),
        # Gaps that are all alike but for rounding go with each other in nothing.
        float(centred[:-1] @ centred[1:]) / square if square > 1e-9 * float(gaps @ gaps) else 0.0,
        windows,
    )
