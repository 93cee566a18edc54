"""The slow requests of a measurement, and what they waited for.

Measurement -> slow_requests -> mean_bill -> {cause: seconds}
"""

import math
from collections.abc import Sequence

from headrace.core.bill import CAUSES, Cause
from headrace.core.measurement import ALL, Measurement
from headrace.core.timeline import Timeline


def slow_requests(
    measurement: Measurement, request_class: str, quantile: float = 0.95
) -> tuple[Timeline, ...]:
    """The answered requests of a class whose TTFT is at or above that quantile of it.

    The quantile interpolates between neighbouring samples, as numpy's "linear" does.
    """
    timelines = [t for t in measurement.timelines if request_class in (ALL, t.request_class)]
    if not timelines:
        return ()
    ttft_s = sorted(t.ttft_s for t in timelines)
    place = quantile * (len(ttft_s) - 1)
    below, above = ttft_s[math.floor(place)], ttft_s[math.ceil(place)]
    # Interpolation may round the bound a hair above the larger one: the slowest always belongs.
    bound_s = min(below + (above - below) * (place % 1), above)
    return tuple(t for t in timelines if t.ttft_s >= bound_s)


def mean_bill(timelines: Sequence[Timeline]) -> dict[Cause, float] | None:
    """Cause by cause over those that have a bill; None where none has."""
    bills = [t.bill_s for t in timelines if t.bill_s is not None]
    if not bills:
        return None
    return {cause: sum(bill.get(cause, 0.0) for bill in bills) / len(bills) for cause in CAUSES}


def slow_bill(
    measurement: Measurement, request_class: str, quantile: float = 0.95
) -> dict[Cause, float] | None:
    """The mean bill of the slow requests of a class; None where the server keeps no bills."""
    return mean_bill(slow_requests(measurement, request_class, quantile))
