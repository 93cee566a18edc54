"""The shape of a workload, as few numbers as a picture has: over time, and by length.

Columns --over_time, by_length--> bars
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.workload.columns import Columns


@dataclass(frozen=True, slots=True)
class OverTime:
    bin_s: float
    rates: dict[str, tuple[float, ...]]
    """Requests a second in each bin, by class."""

    def total(self) -> tuple[float, ...]:
        return tuple(sum(bin_rates) for bin_rates in zip(*self.rates.values(), strict=True))


@dataclass(frozen=True, slots=True)
class LengthBar:
    """Those of more than `over` and at most `up_to` tokens."""

    over: int
    up_to: int
    share: float
    """Of the requests."""
    token_share: float


def over_time(columns: Columns, bins: int) -> OverTime:
    since_ns = columns.at_ns - columns.at_ns[0]
    bin_ns = max(1, -(-(int(since_ns[-1]) + 1) // bins))
    places = since_ns // bin_ns
    rates: dict[str, tuple[float, ...]] = {}
    for index, name in enumerate(columns.classes):
        counts = np.bincount(places[columns.class_index == index], minlength=bins)
        rates[name] = tuple((counts / (bin_ns / 1e9)).tolist())
    return OverTime(bin_ns / 1e9, rates)


def by_length(tokens: NDArray[np.int32]) -> tuple[LengthBar, ...]:
    """Bars from one power of two to the next; none before the first request or behind the last."""
    exponents = np.ceil(np.log2(np.maximum(tokens, 1))).astype(np.int64)
    counts = np.bincount(exponents)
    held = np.bincount(exponents, weights=tokens)
    first = int(exponents.min())
    return tuple(
        LengthBar(
            over=(1 << exponent) // 2 if exponent else 0,
            up_to=1 << exponent,
            share=counts[exponent] / len(tokens),
            token_share=held[exponent] / held.sum(),
        )
        for exponent in range(first, len(counts))
    )
