"""One run in the numbers that a search compares.

    Measurement + Goal + what only its maker knows (Seen)  --grade-->  Grade

Percentiles are those of `measure.goodput`: one of the values themselves, the next higher where it falls
between two; a request that failed is later than any limit. The maker says whether the queue grew, since
a real server and the twin are asked in different ways.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from headrace.core.goal import Goal
from headrace.core.grade import Attained, ClassGrade, Grade
from headrace.core.measurement import Measurement
from headrace.core.objective import Metric, Objective, of_class
from headrace.core.slow import slow_bill
from headrace.core.timeline import Failure, Timeline

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Seen:
    """What a measurement does not say of itself. None: nobody knows."""

    is_steady: bool | None = None
    preemptions: int | None = None


NOTHING_SEEN = Seen()


def grade(measurement: Measurement, goal: Goal, seen: Seen = NOTHING_SEEN) -> Grade:
    """Objectives for classes that sent nothing are left out."""
    groups = _by_class(measurement)
    attained = tuple(
        Attained(objective, name, percentile_s(objective, results))
        for name, results in groups.items()
        for objective in of_class(goal.objectives, name)
    )
    timelines = measurement.timelines
    return Grade(
        attained=attained,
        classes=tuple(_class_grade(measurement, name, results) for name, results in groups.items()),
        due=len(measurement.measured),
        failed=len(measurement.failures),
        throughput_rps=measurement.per_s(len(timelines)),
        output_tokens_per_s=measurement.per_s(sum(len(timeline.token_at) for timeline in timelines)),
        is_steady=seen.is_steady,
        preemptions=seen.preemptions,
    )


def percentile_s(objective: Objective, results: Sequence[Timeline | Failure]) -> float:
    """Of all that were due, in seconds; infinite where failures are in it, or nothing was to be seen."""
    timelines = [result for result in results if isinstance(result, Timeline)]
    if objective.metric is Metric.ITL:
        failed = 1 - len(timelines) / len(results) if results else 1.0
        gaps_s = _gaps_s(timelines)
        if failed > 1 - objective.percentile / 100 or not gaps_s.size:
            return inf if failed or not timelines else 0.0
        return float(np.percentile(gaps_s, objective.percentile))
    values = [_value_s(objective.metric, timeline) for timeline in timelines]
    values += [inf] * (len(results) - len(timelines))
    return float(np.percentile(values, objective.percentile, method="higher")) if values else inf


def _value_s(metric: Metric, timeline: Timeline) -> float:
    match metric:
        case Metric.TTFT:
            return timeline.ttft_s
        case Metric.E2E:
            return timeline.e2e_s
        case _:
            return timeline.tpot_s or 0.0


def _by_class(measurement: Measurement) -> dict[str, list[Timeline | Failure]]:
    groups: dict[str, list[Timeline | Failure]] = {}
    for result in measurement.measured:
        groups.setdefault(result.request_class, []).append(result)
    return dict(sorted(groups.items()))


def _class_grade(measurement: Measurement, name: str, results: Sequence[Timeline | Failure]) -> ClassGrade:
    timelines = [result for result in results if isinstance(result, Timeline)]
    ttft = _quantiles_s(np.array([timeline.ttft_s for timeline in timelines]))
    itl = _quantiles_s(_gaps_s(timelines))
    return ClassGrade(
        request_class=name,
        requests=len(results),
        failed=len(results) - len(timelines),
        ttft_p50_s=ttft[0],
        ttft_p95_s=ttft[1],
        itl_p50_s=itl[0],
        itl_p95_s=itl[1],
        slow_bill_s=slow_bill(measurement, name),
    )


def _gaps_s(timelines: Sequence[Timeline]) -> Floats:
    gaps = [np.diff(np.asarray(timeline.token_at)) for timeline in timelines]
    return np.concatenate(gaps) if gaps else np.array([])


def _quantiles_s(values: Floats) -> tuple[float | None, float | None]:
    if not values.size:
        return None, None
    p50, p95 = np.percentile(values, (50, 95)).tolist()
    return p50, p95
