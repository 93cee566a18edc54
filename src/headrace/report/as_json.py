"""A measurement as one object for programs: the numbers of the tables, names with their units.

Measurement -> measurement_json -> {"target": …, "classes": {"short": {"ttft_s": {"p95": …}}}, …}
"""

from collections import Counter
from dataclasses import asdict
from math import isfinite
from typing import Any

from headrace.core.measurement import ALL, Measurement
from headrace.core.objective import Objectives
from headrace.core.slow import slow_bill
from headrace.measure.goodput import goodput, judged, overall
from headrace.measure.intervals import Intervals, by_class
from headrace.measure.queueing import queue_shares
from headrace.measure.server_metrics import Quantity, growth, told
from headrace.measure.steady import steadiness
from headrace.measure.summary import client_lag_s, summarise
from headrace.measure.validity import check


def measurement_json(
    measurement: Measurement, objectives: Objectives | None = None, intervals: Intervals | None = None
) -> dict[str, Any]:
    """Only what JSON knows: dicts, lists, strings, numbers, None."""
    summaries = summarise(measurement)
    lag_s = client_lag_s(measurement)
    bills = {
        name: {cause.value: seconds for cause, seconds in bill_s.items()}
        for name in summaries
        if name != ALL and (bill_s := slow_bill(measurement, name)) is not None
    }
    checked = check(measurement)
    steady = steadiness(measurement)
    return {
        "target": measurement.target,
        "model": measurement.model,
        "settings": measurement.settings,
        "workload": measurement.workload,
        "seed": measurement.seed,
        "duration_s": measurement.duration_s,
        "load": measurement.load.value,
        "warm_up_s": measurement.warm_up_s,
        "valid": checked.is_valid,
        "invalid_because": list(checked.reasons),
        "arrivals": {"asked": asdict(checked.asked), "delivered": asdict(checked.delivered)},
        "client": asdict(measurement.client) if measurement.client else None,
        "steady": steady.is_steady,
        "classes": {name: asdict(summary) for name, summary in summaries.items()},
        "intervals_95": intervals or by_class(measurement),
        "queue_share": {name: each.share for name, each in queue_shares(measurement).items()},
        "slo": _objectives(measurement, objectives) if objectives else None,
        "failures": {kind.value: n for kind, n in Counter(f.kind for f in measurement.failures).items()},
        "client_lag_s": asdict(lag_s) if lag_s else None,
        "slow_bill_s": bills,
        "usage_wrong": sum(
            t.usage_tokens is not None and t.usage_tokens != len(t.token_at) for t in measurement.timelines
        ),
        "prompts_exact": sum(t.asked_prompt_tokens > 0 for t in measurement.timelines),
        "prompts_counted_otherwise": sum(
            0 < t.asked_prompt_tokens != t.prompt_tokens for t in measurement.timelines
        ),
        "short_answers": sum(timeline.is_short for timeline in measurement.timelines),
        "server": _server(measurement),
        "percentile_method": "linear",
        "versions": measurement.versions,
    }


def _objectives(measurement: Measurement, objectives: Objectives) -> dict[str, Any]:
    """Infinite, where more requests failed than a percentile leaves room for, is None."""
    judgements = judged(measurement, objectives)
    return {
        "verdict": overall(judgements).value,
        "objectives": [
            {
                "objective": str(each.objective),
                "class": each.request_class,
                "value_s": _finite(each.value_s),
                "interval_s": [_finite(end) for end in each.interval_s] if each.interval_s else None,
                "verdict": each.verdict.value,
            }
            for each in judgements
        ],
        "goodput": {
            name: {"due": each.due, "good": each.good, "per_s": each.per_s, "attainment": each.attainment}
            for name, each in goodput(measurement, objectives).items()
        },
    }


def _server(measurement: Measurement) -> dict[str, Any] | None:
    """Peaks of gauges and growth of counters; None for what this server does not tell."""
    server = measurement.server
    if server is None:
        return None
    gauges = (Quantity.RUNNING, Quantity.WAITING, Quantity.KV_USED)
    counters = (Quantity.PREEMPTIONS, Quantity.OUTPUT_TOKENS, Quantity.PROMPT_TOKENS, Quantity.PREFIX_HITS)
    peaks = {
        f"{each.name.lower()}_max": max((v for v in told(server, each) or () if v is not None), default=None)
        for each in gauges
    }
    return {
        "scrapes": len(server.at),
        **peaks,
        **{each.name.lower(): growth(server, each) for each in counters},
    }


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None
