"""Every run as a reader checks it: what was asked, whether to believe it, how sure its worst figure is.

Tuning --trials_of--> [Trial, ...]
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from headrace.core.grade import Attained, Grade
from headrace.core.measurement import Measurement
from headrace.core.objective import Metric
from headrace.core.timeline import Timeline
from headrace.core.trial import NoResult, Run
from headrace.measure.intervals import Interval, interval_of, interval_of_gaps
from headrace.measure.validity import check
from headrace.report.tuning.tuning import RunDetail, Tuning


@dataclass(frozen=True, slots=True)
class Trial:
    """One run."""

    number: int
    """From 1, as people count."""
    run: Run
    detail: RunDetail
    worst: Attained | None
    """The objective nearest to its limit, or furthest beyond it; None without a result."""
    interval_s: Interval | None
    """95 % of the worst figure by chance within this run; None where its record is not at hand, or short."""
    invalid: tuple[str, ...] | None
    """Why it is not to be believed, empty where it is; None where nobody knows."""

    @property
    def failed_because(self) -> str:
        """Empty where it gave a result."""
        return self.run.outcome.cause if isinstance(self.run.outcome, NoResult) else ""


def trials_of(tuning: Tuning) -> list[Trial]:
    return [_trial(number, run, tuning.detail(number)) for number, run in enumerate(tuning.runs)]


def invalid_numbers(trials: Sequence[Trial]) -> list[int]:
    return [trial.number for trial in trials if trial.invalid]


def _trial(number: int, run: Run, detail: RunDetail) -> Trial:
    worst = run.outcome.binding() if isinstance(run.outcome, Grade) else None
    record = detail.measurement
    interval_s = None if record is None or worst is None else _interval_s(record, worst)
    invalid = None if record is None else check(record).reasons
    return Trial(number + 1, run, detail, worst, interval_s, invalid)


def _interval_s(measurement: Measurement, attained: Attained) -> Interval | None:
    own = [each for each in measurement.timelines if each.request_class == attained.request_class]
    percentiles = [attained.objective.percentile]
    if attained.objective.metric is Metric.ITL:
        found = interval_of_gaps(own, percentiles)
    else:
        found = interval_of([_value_s(each, attained.objective.metric) for each in own], percentiles)
    return found[0] if found else None


def _value_s(timeline: Timeline, metric: Metric) -> float:
    match metric:
        case Metric.TTFT:
            return timeline.ttft_s
        case Metric.E2E:
            return timeline.e2e_s
        case _:
            return timeline.tpot_s or 0.0


def ranges(numbers: Sequence[int]) -> str:
    """`1-3, 7`."""
    found = [
        [number for _, number in group]
        for _, group in groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    ]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in found)
