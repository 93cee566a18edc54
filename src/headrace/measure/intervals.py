"""How sure a percentile is: confidence intervals by resampling the run's own requests.

    results in order of due times --> blocks of neighbours, drawn again and again --> 95 % of what comes out

Requests that were in the queue together are slow together, so single ones must not be drawn as if each
were news of its own. Whole blocks of neighbours are (the circular block bootstrap: Politis and Romano
1992, after Künsch 1989), as long as the cube root of their number. A request brings all of its token
gaps along. The interval is of the percentiles that come out (Efron's percentile interval). It is about
chance within this run: it knows nothing of another day, nor of the machine's other guests; and near the
knee, where one queue makes a hundred neighbours slow, it is too narrow (docs/measuring.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log

import numpy as np
from numpy.typing import NDArray

from headrace.core.measurement import ALL, Measurement
from headrace.core.timeline import Timeline

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

CONFIDENCE = 0.95
PERCENTILES = (50, 95, 99)
FEWEST = 20
"""Requests. From fewer the tail cannot be drawn again: it is one or two of them."""
MOST_DRAWN = 20_000_000
FEWEST_ROUNDS, MOST_ROUNDS = 200, 1_000

Interval = tuple[float, float]
Latencies = dict[str, dict[str, Interval]]
Intervals = dict[str, Latencies]
"""Class, latency, percentile."""


@dataclass(frozen=True, slots=True)
class Resampled:
    """Which requests each round has drawn: a row a round."""

    drawn: Ints

    @classmethod
    def of(cls, count: int, samples: int, seed: int = 0) -> "Resampled":
        """Of `count` requests with so many samples among them all."""
        rounds = int(np.clip(MOST_DRAWN // max(1, samples), FEWEST_ROUNDS, MOST_ROUNDS))
        length = max(1, round(count ** (1 / 3)))
        blocks = -(-count // length)
        starts = np.random.default_rng(seed).integers(0, count, (rounds, blocks, 1))
        drawn = (starts + np.arange(length)) % count
        return cls(drawn.reshape(rounds, -1)[:, :count])


def fewest(percentile: float) -> int:
    """Requests from which on the slowest of all is beyond the percentile as surely as an interval's end is.

    Of n that know nothing of each other all are below it with a chance of (percentile / 100)^n.
    """
    outside = (1 - CONFIDENCE) / 2
    return max(FEWEST, ceil(log(outside) / log(percentile / 100)))


def interval_of(values: Sequence[float], percentiles: Sequence[float]) -> list[Interval] | None:
    """Of one value a request, in order of due times; None of too few."""
    if len(values) < FEWEST:
        return None
    sample = np.asarray(values, dtype=np.float64)
    drawn = Resampled.of(len(values), len(values)).drawn
    found = np.percentile(sample[drawn], percentiles, axis=1, method="linear")
    return [_middle(row) for row in found]


def interval_of_gaps(timelines: Sequence[Timeline], percentiles: Sequence[float]) -> list[Interval] | None:
    """Of all gaps of all requests, drawn request by request."""
    gaps = [np.diff(np.asarray(timeline.token_at)) for timeline in timelines]
    counts = np.array([gap.size for gap in gaps])
    total = int(counts.sum())
    if len(timelines) < FEWEST or total < FEWEST:
        return None
    pooled = np.concatenate(gaps)
    order = np.argsort(pooled)
    ordered, owner = pooled[order], np.repeat(np.arange(len(gaps)), counts)[order]
    drawn = Resampled.of(len(timelines), total).drawn
    found = np.array([_weighted(ordered, owner, row, percentiles) for row in drawn])
    return [_middle(column) for column in found.T]


def _weighted(ordered: Floats, owner: Ints, drawn: Ints, percentiles: Sequence[float]) -> Floats:
    """Percentiles of the gaps, each as often as its request was drawn."""
    times = np.bincount(drawn, minlength=int(owner.max()) + 1)[owner]
    reached = np.cumsum(times)
    if reached[-1] == 0:
        return np.full(len(percentiles), np.nan)
    places = np.searchsorted(reached, np.asarray(percentiles) / 100 * reached[-1], side="left")
    return ordered[np.minimum(places, ordered.size - 1)]


def _middle(values: Floats) -> Interval:
    outside = 100 * (1 - CONFIDENCE) / 2
    low, high = np.nanpercentile(values, (outside, 100 - outside), method="linear").tolist()
    return low, high


def by_class(measurement: Measurement) -> Intervals:
    """Class, latency, percentile, as "short", "ttft_s", "p95"; without those that have too few requests."""
    groups: dict[str, list[Timeline]] = {}
    for timeline in measurement.timelines:
        groups.setdefault(timeline.request_class, []).append(timeline)
    found = {name: each for name, group in groups.items() if (each := _latencies(group))}
    # A single class is all there is: drawing it again would say the same at the same cost.
    of_all = found.get(next(iter(groups), "")) if len(groups) == 1 else _latencies(measurement.timelines)
    return found | ({ALL: of_all} if of_all else {})


def _latencies(timelines: Sequence[Timeline]) -> Latencies:
    found = {
        "ttft_s": interval_of([timeline.ttft_s for timeline in timelines], PERCENTILES),
        "itl_s": interval_of_gaps(timelines, PERCENTILES),
        "tpot_s": interval_of([t for each in timelines if (t := each.tpot_s) is not None], PERCENTILES),
        "e2e_s": interval_of([timeline.e2e_s for timeline in timelines], PERCENTILES),
    }
    return {
        latency: {
            f"p{percentile}": each
            for percentile, each in zip(PERCENTILES, intervals, strict=True)
            if latency == "itl_s" or len(timelines) >= fewest(percentile)
        }
        for latency, intervals in found.items()
        if intervals is not None
    }
