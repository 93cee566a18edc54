"""What a search looks at in one measurement: the class that is to become faster, and what must not suffer.

Measurement -> Score(p95_ttft_s, throughput_rps, failed)      Measurement -> the bill of its slow requests
"""

from dataclasses import dataclass

import numpy as np

from headrace.core.bill import CAUSES, Cause
from headrace.core.measurement import Measurement

SLOW_QUANTILE = 0.95


@dataclass(frozen=True, slots=True)
class Score:
    """One run in three numbers."""

    p95_ttft_s: float
    """Of the target class, over the requests that were answered; failures count in `failed`."""
    throughput_rps: float
    """Answered requests of all classes a second."""
    failed: int


def score(measurement: Measurement, target_class: str) -> Score | None:
    """None when not one request of the target class was answered: there is nothing to compare."""
    ttfts = [line.ttft_s for line in measurement.timelines if line.request_class == target_class]
    if not ttfts or measurement.duration_s <= 0:
        return None
    return Score(
        p95_ttft_s=float(np.quantile(ttfts, SLOW_QUANTILE)),
        throughput_rps=len(measurement.timelines) / measurement.duration_s,
        failed=len(measurement.failures),
    )


def slow_bill(measurement: Measurement, target_class: str) -> dict[Cause, float] | None:
    """Mean seconds by cause over the target class's slowest requests; None from a server without bills."""
    billed = [
        (line.ttft_s, line.bill_s)
        for line in measurement.timelines
        if line.request_class == target_class and line.bill_s is not None
    ]
    if not billed:
        return None
    ttfts = [ttft for ttft, _ in billed]
    # Interpolation may round the bound a hair above the largest: the slowest always belongs.
    bound = min(float(np.quantile(ttfts, SLOW_QUANTILE)), max(ttfts))
    slow = [bill for ttft, bill in billed if ttft >= bound]
    return {cause: sum(bill.get(cause, 0.0) for bill in slow) / len(slow) for cause in CAUSES}
