"""A measurement as one object for programs: the numbers of the tables, names with their units.

Measurement -> measurement_json -> {"target": …, "classes": {"short": {"ttft_s": {"p95": …}}}, …}
"""

from collections import Counter
from dataclasses import asdict
from typing import Any

from headrace.core.measurement import ALL, Measurement
from headrace.core.slow import slow_bill
from headrace.measure.summary import client_lag_s, summarise


def measurement_json(measurement: Measurement) -> dict[str, Any]:
    """Only what JSON knows: dicts, lists, strings, numbers, None."""
    summaries = summarise(measurement)
    lag_s = client_lag_s(measurement)
    bills = {
        name: {cause.value: seconds for cause, seconds in bill_s.items()}
        for name in summaries
        if name != ALL and (bill_s := slow_bill(measurement, name)) is not None
    }
    return {
        "target": measurement.target,
        "model": measurement.model,
        "settings": measurement.settings,
        "workload": measurement.workload,
        "seed": measurement.seed,
        "duration_s": measurement.duration_s,
        "classes": {name: asdict(summary) for name, summary in summaries.items()},
        "failures": {kind.value: n for kind, n in Counter(f.kind for f in measurement.failures).items()},
        "client_lag_s": asdict(lag_s) if lag_s else None,
        "slow_bill_s": bills,
        "percentile_method": "linear",
        "versions": measurement.versions,
    }
