"""Prometheus histograms over the scrapes: what was counted from the first one to the last.

    Evidence, name -> histogram -> Histogram(edges, counts)

A bucket says no more than that a value lies between two edges, so what is asked of it are edges.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.load import increase


@dataclass(frozen=True, slots=True)
class Bucket:
    """`count` values in (low, high]."""

    low: float
    high: float
    count: float


@dataclass(frozen=True, slots=True)
class Histogram:
    """Buckets that hold something, in order."""

    buckets: tuple[Bucket, ...]

    @property
    def count(self) -> float:
        return sum(bucket.count for bucket in self.buckets)

    def at(self, quantile: float) -> Bucket:
        """The bucket in which the quantile lies; of an empty histogram one without a count."""
        wanted, seen = quantile * self.count, 0.0
        for bucket in self.buckets:
            seen += bucket.count
            if seen >= wanted:
                return bucket
        return Bucket(0.0, 0.0, 0.0)

    def above(self, edge: float) -> float:
        """How many are surely larger."""
        return sum(bucket.count for bucket in self.buckets if bucket.low >= edge)


def histogram(e: Evidence, name: str) -> Histogram:
    """Empty where there is none of that name, or nothing was counted."""
    found = list[Bucket]()
    low = below = 0.0
    for high, cumulated in sorted(_cumulated(e, name)):
        if cumulated > below:
            found.append(Bucket(low, high, cumulated - below))
        low, below = high, max(below, cumulated)
    return Histogram(tuple(found))


def _cumulated(e: Evidence, name: str) -> Iterator[tuple[float, float]]:
    stem = f"{name}_bucket{{le="
    for reading in e.under(stem):
        edge = reading.name[len(stem) : -1]
        try:
            high = math.inf if edge in {"+Inf", "inf"} else float(edge)
        except ValueError:
            continue
        yield high, increase(e, reading.name) or 0.0
