"""What a search looks at in one measurement: the class that is to become faster, and what must not suffer.

Measurement -> Score(p95_ttft_s, throughput_rps, failed)
"""

from dataclasses import dataclass

import numpy as np

from headrace.core.measurement import SHORTEST_RUN_S, Measurement

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
    if not ttfts or measurement.duration_s < SHORTEST_RUN_S:
        return None
    return Score(
        p95_ttft_s=float(np.quantile(ttfts, SLOW_QUANTILE)),
        throughput_rps=measurement.per_s(len(measurement.timelines)),
        failed=len(measurement.failures),
    )
