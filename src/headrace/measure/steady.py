"""Did the server keep up with the load, or did what waits grow for as long as requests came?

    due and first-token instants --> unfinished waits by twelfth of the second half --> growth, and how sure

Where it grew, every latency is a matter of how long the run was, and a percentile of it says nothing.
The share of the arrivals that stayed behind is set against the scatter of its own steps. A failure
has left the queue when it failed.
"""

from dataclasses import dataclass

import numpy as np

from headrace.core.measurement import Measurement
from headrace.core.timeline import Timeline
from headrace.workload.backlog import backlog_trend

PARTS = 12
FEWEST_DUE = 2 * PARTS
MATERIAL_SHARE = 0.02
SURE_T = 3.0


@dataclass(frozen=True, slots=True)
class Steadiness:
    """None for a run too short to tell."""

    is_steady: bool | None
    stayed: float
    """Share of what came in the second half that stayed behind; negative where the queue shrank."""
    why: str


def steadiness(measurement: Measurement) -> Steadiness:
    results = measurement.measured
    due = np.array([result.due_at for result in results])
    begun = np.array([r.token_at[0] if isinstance(r, Timeline) else r.failed_at for r in results])
    end = float(due.max(initial=0.0))
    start = (float(due.min(initial=end)) + end) / 2
    came = int((due >= start).sum())
    if came < FEWEST_DUE or start == end:
        return Steadiness(None, 0.0, f"{came} requests in the second half show no trend")
    edges = np.linspace(start, end, PARTS + 1)
    trend = backlog_trend(due, begun, edges, came)
    grew = trend.share >= MATERIAL_SHARE and trend.t >= SURE_T
    why = f"from {trend.first:.1f} to {trend.last:.1f} requests waited for a first token in the second half"
    return Steadiness(not grew, trend.share, why)
