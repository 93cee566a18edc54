"""Does a queue grow? How many requests are in it, part by part of a span of time.

instants of entering and leaving --backlog_trend--> Trend(first and last part, growth, how sure)
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Trend:
    first: float
    """Requests in the queue in the first part, on average over it; likewise `last`."""
    last: float
    share: float
    """Of the arrivals, how many stayed; negative where the queue shrank."""
    t: float
    """The mean step from part to part over the standard error of that mean."""


def backlog_trend(begin: Floats, end: Floats, edges: Floats, arrivals: int) -> Trend:
    """How the number of requests that are between `begin` and `end` moves from part to part.

    `edges` bound the parts, at least three of them; `arrivals` came within all parts together.
    """
    spent = np.clip(end[:, None], edges[:-1], edges[1:]) - np.clip(begin[:, None], edges[:-1], edges[1:])
    means = spent.sum(axis=0) / np.diff(edges)
    moves = np.diff(means)
    scatter = float(moves.std(ddof=1)) / len(moves) ** 0.5
    first, last, mean = float(means[0]), float(means[-1]), float(moves.mean())
    share = (last - first) / (arrivals * len(moves) / len(means))
    return Trend(first, last, share, mean / scatter if scatter > 0 else (np.inf if mean > 0 else 0.0))
