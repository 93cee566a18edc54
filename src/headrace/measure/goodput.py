"""Did a run meet its objectives, and how many requests a second kept within them?

    Measurement, Objectives --judged--> [Met(objective, class, value, interval, verdict), ...]
                            --goodput-> {class: Goodput}

A request that failed kept nothing: it is later than any limit. Goodput is that of DistServe: requests a
second that were answered whole and within every limit of their class.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf

import numpy as np

from headrace.core.measurement import ALL, Measurement
from headrace.core.objective import Metric, Objective, Objectives, is_good, of_class
from headrace.core.timeline import Failure, Timeline
from headrace.measure.intervals import FEWEST, Floats, Interval, Resampled, fewest, interval_of_gaps

FEW = 5
"""Requests, from which on a median beyond the limit is a promise missed, though no interval can be drawn."""
LATE = 1e12
"""Seconds: what a failure counts as. A number, because percentiles interpolate."""


class Verdict(StrEnum):
    """Of one objective."""

    MET = "met"
    MISSED = "missed"
    UNDECIDED = "undecided"
    """Its interval has the limit in it, or there were too few requests for an interval of that percentile."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One objective and one class that it is for."""

    objective: Objective
    request_class: str
    value_s: float
    """The percentile; infinite where more requests failed than it leaves room for."""
    interval_s: Interval | None
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Goodput:
    """Of one class, or all together."""

    due: int
    good: int
    per_s: float

    @property
    def attainment(self) -> float:
        return self.good / self.due if self.due else 0.0


def judged(measurement: Measurement, objectives: Objectives) -> list[Judged]:
    """Every class against its objectives, in order of names."""
    classes = sorted({result.request_class for result in measurement.measured})
    return [
        _judge(objective, name, [r for r in measurement.measured if r.request_class == name])
        for name in classes
        for objective in of_class(objectives, name)
    ]


def meets(measurement: Measurement, objectives: Objectives) -> bool:
    """Whether every percentile of the run lies within its limit, however sure that is of another run."""
    classes = {result.request_class for result in measurement.measured}
    return all(
        _seen(objective, [r for r in measurement.measured if r.request_class == name]) < objective.limit_s
        for name in classes
        for objective in of_class(objectives, name)
    )


def overall(judgements: Sequence[Judged]) -> Verdict:
    """Missed where one is; met where all are."""
    verdicts = {each.verdict for each in judgements}
    for verdict in (Verdict.MISSED, Verdict.UNDECIDED):
        if verdict in verdicts:
            return verdict
    return Verdict.MET if verdicts else Verdict.UNDECIDED


def goodput(measurement: Measurement, objectives: Objectives) -> dict[str, Goodput]:
    due: dict[str, int] = {}
    good: dict[str, int] = {}
    for result in measurement.measured:
        name = result.request_class
        due[name] = due.get(name, 0) + 1
        if isinstance(result, Timeline) and is_good(result, of_class(objectives, name)):
            good[name] = good.get(name, 0) + 1
    counts = {name: (due[name], good.get(name, 0)) for name in sorted(due)}
    counts[ALL] = (sum(due.values()), sum(good.values()))
    return {name: Goodput(d, g, measurement.per_s(g)) for name, (d, g) in counts.items()}


def _judge(objective: Objective, name: str, results: Sequence[Timeline | Failure]) -> Judged:
    value_s, interval_s, median_s = _percentile(objective, results)
    if interval_s is None and len(results) >= FEW and median_s >= objective.limit_s:
        verdict = Verdict.MISSED
    else:
        verdict = _verdict(objective.limit_s, value_s, interval_s)
    if objective.metric is not Metric.ITL and len(results) < fewest(objective.percentile):
        # its upper end would be the slowest, which is too low
        verdict = Verdict.UNDECIDED if verdict is Verdict.MET else verdict
        interval_s = None
    return Judged(objective, name, value_s, interval_s, verdict)


def _verdict(limit_s: float, value_s: float, interval_s: Interval | None) -> Verdict:
    if interval_s is None:
        return Verdict.MISSED if value_s == inf else Verdict.UNDECIDED
    low, high = interval_s
    if high < limit_s:
        return Verdict.MET
    return Verdict.MISSED if low >= limit_s else Verdict.UNDECIDED


_Seen = tuple[float, Interval | None, float]
"""The percentile, its interval, and of the same the median, or the percentile if that is lower."""


def _percentile(objective: Objective, results: Sequence[Timeline | Failure]) -> _Seen:
    if objective.metric is Metric.ITL:
        return _gaps(objective, results)
    values = np.array([_value(objective.metric, result) for result in results])
    value = float(np.percentile(values, objective.percentile, method="higher"))
    median = min(value, float(np.median(values)))
    if values.size < FEWEST:
        return _late(value), None, median
    drawn = values[Resampled.of(values.size, values.size).drawn]
    found = np.percentile(drawn, objective.percentile, axis=1, method="higher")
    low, high = np.percentile(found, (2.5, 97.5), method="nearest").tolist()
    return _late(value), (_late(low), _late(high)), median


def _seen(objective: Objective, results: Sequence[Timeline | Failure]) -> float:
    """The percentile alone."""
    if objective.metric is Metric.ITL:
        gaps_s, failed = _gaps_of(results)
        return (
            float(np.percentile(gaps_s, objective.percentile)) if _tells(gaps_s, failed, objective) else inf
        )
    values = [_value(objective.metric, result) for result in results]
    return _late(float(np.percentile(values, objective.percentile, method="higher")))


def _gaps_of(results: Sequence[Timeline | Failure]) -> tuple[Floats, float]:
    """Of whole answers, and the share that failed."""
    gaps = [np.diff(result.token_at) for result in results if isinstance(result, Timeline)]
    return np.concatenate([*gaps, np.empty(0)]), 1 - len(gaps) / len(results)


def _tells(gaps_s: Floats, failed: float, objective: Objective) -> bool:
    return gaps_s.size > 0 and failed <= 1 - objective.percentile / 100


def _gaps(objective: Objective, results: Sequence[Timeline | Failure]) -> _Seen:
    """Of the gaps of whole answers: of a failure it is not known how many there would have been, so
    failures beyond the percentile's room miss it at once.
    """
    gaps_s, failed = _gaps_of(results)
    if not _tells(gaps_s, failed, objective):
        return inf, None, 0.0
    value = float(np.percentile(gaps_s, objective.percentile))
    timelines = [result for result in results if isinstance(result, Timeline)]
    found = interval_of_gaps(timelines, [objective.percentile])
    return value, found[0] if found else None, min(value, float(np.median(gaps_s)))


def _value(metric: Metric, result: Timeline | Failure) -> float:
    if isinstance(result, Failure):
        return LATE
    match metric:
        case Metric.TTFT:
            return result.ttft_s
        case Metric.E2E:
            return result.e2e_s
        case _:
            return result.tpot_s or 0.0


def _late(value: float) -> float:
    return inf if value >= LATE else value
