"""Before and after, in figures that carry their uncertainty.

    Tuning --compared--> Compared: the runs of the start beside the contender's, at one load: latencies,
                         throughput and bills, for the tables, the charts and the JSON

The unit is the run: a side's figure is the geometric mean of its runs, and its 95 % interval follows from
what runs of one choice differ by, pooled over every choice that was repeated (Student's t on logarithms).
The contender's first run is left out where there are others: it was picked for being good.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import exp, inf, isfinite, log

from headrace.core.bill import CAUSES, Cause
from headrace.core.grade import Attained, ClassGrade, Grade
from headrace.core.objective import Metric, Objective
from headrace.core.ports import Overrides
from headrace.core.trial import Run
from headrace.measure.compare import t975
from headrace.report.tuning.tuning import Tuning

START: Overrides = {}
Pick = Callable[[Grade], float | None]
Bill = dict[Cause, float]


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of one side."""

    value: float
    """Infinite where more requests failed than the percentile leaves room for."""
    interval: tuple[float, float] | None
    """95 %; None where no choice was repeated."""


Pair = tuple[Figure | None, Figure | None]
"""Before and after."""


@dataclass(frozen=True, slots=True)
class Side:
    """One choice of settings at one load."""

    overrides: Overrides
    load: float
    numbers: tuple[int, ...]
    """Its runs, by their place in `Tuning.runs`."""
    grades: tuple[Grade, ...]

    @property
    def failed(self) -> int:
        return sum(grade.failed for grade in self.grades)

    @property
    def due(self) -> int:
        return sum(grade.due for grade in self.grades)

    @property
    def missed(self) -> int:
        """Of its runs, those that did not meet every objective."""
        return sum(not grade.meets for grade in self.grades)

    @property
    def fell_behind(self) -> bool:
        """In most of its runs the queue grew for as long as requests came."""
        return 2 * sum(grade.is_steady is False for grade in self.grades) > len(self.grades)


@dataclass(frozen=True, slots=True)
class Row:
    """One latency of one class, before and after."""

    request_class: str
    label: str
    """As "P95 TTFT"."""
    objective: Objective | None
    """None: nothing was asked of it."""
    before: Figure | None
    after: Figure | None


@dataclass(frozen=True, slots=True)
class Bills:
    """What the slowest twentieth of one class waited for, on average, in seconds."""

    request_class: str
    before: Bill
    after: Bill | None
    is_twin: bool
    """This server keeps no bills; these are the twin's, of the same runs."""


@dataclass(frozen=True, slots=True)
class Compared:
    """The start beside the contender."""

    before: Side | None
    """None: it was never measured at that load."""
    after: Side | None
    rows: tuple[Row, ...]
    """Class by class: first what was asked for, then the usual latencies that were not."""
    ratio: Pair
    """The worst of a run's ratios to a limit."""
    throughput_rps: Pair
    output_tokens_per_s: Pair
    bills: tuple[Bills, ...]
    """Of every class that has some: measured, or else in the twin."""
    worst: Row | None
    """The objective that the start was furthest beyond, or nearest to; where none can be met, that of the
    setting which came nearest.
    """

    @property
    def main_bill(self) -> Bills | None:
        """Of the class of `worst`."""
        worst = self.worst
        own = [each for each in self.bills if worst and each.request_class == worst.request_class]
        return next(iter(own or self.bills), None)


def compared(tuning: Tuning) -> Compared:
    before, after = sides_of(tuning)

    def both(pick: Pick) -> Pair:
        return _figure(tuning.runs, before, pick), _figure(tuning.runs, after, pick)

    rows = tuple(
        row
        for name in _names((before, after))
        for row in (*_asked(tuning, name, before, after), *_usual(tuning, name, before, after))
    )
    return Compared(
        before,
        after,
        rows,
        both(lambda grade: grade.ratio),
        both(lambda grade: grade.throughput_rps),
        both(lambda grade: grade.output_tokens_per_s),
        () if before is None else tuple(_bills(tuning, before, after)),
        _worst(rows, of_after=tuning.conclusion is not None and tuning.conclusion.nearest is not None),
    )


def _worst(rows: Iterable[Row], *, of_after: bool) -> Row | None:
    near = [
        (figure.value / row.objective.limit_s, row)
        for row in rows
        if row.objective and (figure := (row.after if of_after else None) or row.before)
    ]
    return max(near, key=lambda each: each[0])[1] if near else None


def sides_of(tuning: Tuning) -> tuple[Side | None, Side | None]:
    """The start, and the contender; of an objective out of reach the setting that came nearest to it."""
    found = tuning.conclusion
    load = 1.0 if found is None else found.load
    before = _side(tuning.runs, START, load)
    if found is None:
        return before, None
    if found.contender:
        return before, _without_first(_side(tuning.runs, found.contender, load))
    nearest = next((run for run in tuning.runs if found.nearest and run.outcome == found.nearest), None)
    return before, _side(tuning.runs, nearest.overrides, load) if nearest and nearest.overrides else None


def same_settings(one: Overrides, other: Overrides) -> bool:
    """In whatever order they are written."""
    return dict(sorted(one.items())) == dict(sorted(other.items()))


def _side(runs: Sequence[Run], overrides: Overrides, load: float) -> Side | None:
    own = [
        (number, run.outcome)
        for number, run in enumerate(runs)
        if same_settings(run.overrides, overrides) and run.load == load and isinstance(run.outcome, Grade)
    ]
    if not own:
        return None
    return Side(dict(overrides), load, tuple(number for number, _ in own), tuple(grade for _, grade in own))


def _without_first(side: Side | None) -> Side | None:
    if side is None or len(side.grades) == 1:
        return side
    return Side(side.overrides, side.load, side.numbers[1:], side.grades[1:])


def _names(sides: Iterable[Side | None]) -> list[str]:
    """Of the classes, in their order; first the one that the start was furthest off with."""
    known = [side for side in sides if side]
    found = sorted({each.request_class for side in known for grade in side.grades for each in grade.classes})
    worst = known[0].grades[0].binding() if known else None
    return sorted(found, key=lambda name: worst is None or name != worst.request_class)


def _asked(tuning: Tuning, name: str, before: Side | None, after: Side | None) -> Iterator[Row]:
    goals = {
        each.objective: None
        for side in (before, after)
        if side
        for grade in side.grades
        for each in grade.attained
        if each.request_class == name
    }
    for goal in goals:
        was, now = (_figure(tuning.runs, side, _attained(name, goal)) for side in (before, after))
        yield Row(name, f"P{goal.percentile:g} {goal.metric.upper()}", goal, was, now)


def _attained(name: str, objective: Objective) -> Pick:
    def pick(grade: Grade) -> float | None:
        found = (each for each in grade.attained if _is_of(each, name, objective))
        return next((each.value_s for each in found), None)

    return pick


def _is_of(attained: Attained, name: str, objective: Objective) -> bool:
    return attained.request_class == name and attained.objective == objective


_USUAL: tuple[tuple[str, Metric, float, Callable[[ClassGrade], float | None]], ...] = (
    ("P50 TTFT", Metric.TTFT, 50, lambda each: each.ttft_p50_s),
    ("P95 TTFT", Metric.TTFT, 95, lambda each: each.ttft_p95_s),
    ("P50 ITL", Metric.ITL, 50, lambda each: each.itl_p50_s),
    ("P95 ITL", Metric.ITL, 95, lambda each: each.itl_p95_s),
)


def _usual(tuning: Tuning, name: str, before: Side | None, after: Side | None) -> Iterator[Row]:
    asked = {
        (each.objective.metric, each.objective.percentile)
        for side in (before, after)
        if side
        for grade in side.grades
        for each in grade.attained
        if each.request_class == name
    }
    for label, metric, percentile, of in _USUAL:
        if (metric, percentile) in asked:
            continue
        was, now = (_figure(tuning.runs, side, _of_class(name, of)) for side in (before, after))
        if was or now:
            yield Row(name, label, None, was, now)


def _of_class(name: str, of: Callable[[ClassGrade], float | None]) -> Pick:
    def pick(grade: Grade) -> float | None:
        found = grade.of_class(name)
        return None if found is None else of(found)

    return pick


def _figure(runs: Sequence[Run], side: Side | None, pick: Pick) -> Figure | None:
    values = [] if side is None else [value for grade in side.grades if (value := pick(grade)) is not None]
    if not values:
        return None
    if not all(isfinite(value) and value > 0 for value in values):
        return Figure(inf if inf in values else sum(values) / len(values), None)
    mean = sum(log(value) for value in values) / len(values)
    scatter = _scatter(runs, pick)
    if scatter is None:
        return Figure(exp(mean), None)
    deviation, freedom = scatter
    error = t975(freedom) * deviation / len(values) ** 0.5
    return Figure(exp(mean), (exp(mean - error), exp(min(mean + error, 700.0))))


def _scatter(runs: Sequence[Run], pick: Pick) -> tuple[float, int] | None:
    """Deviation of the logarithm within repeated choices, and its degrees of freedom. Runs that fell behind
    are left out: their waits tell how long they were.
    """
    groups: dict[object, list[float]] = {}
    for run in runs:
        if not isinstance(run.outcome, Grade) or run.outcome.is_steady is False:
            continue
        value = pick(run.outcome)
        if value is not None and isfinite(value) and value > 0:
            key = (tuple(sorted(run.overrides.items())), run.load)
            groups.setdefault(key, []).append(log(value))
    freedom = sum(len(group) - 1 for group in groups.values())
    if freedom < 1:
        return None
    squares = sum((each - sum(group) / len(group)) ** 2 for group in groups.values() for each in group)
    return (squares / freedom) ** 0.5, freedom


def _bills(tuning: Tuning, before: Side, after: Side | None) -> Iterator[Bills]:
    for name in _names((before, after)):
        for is_twin, grades_of in ((False, _measured), (True, _predicted)):
            was = _mean_bill(grades_of(tuning, before), name)
            now = _mean_bill(grades_of(tuning, after), name) if after else None
            if was and (now or after is None or after.grades[0].of_class(name) is None):
                yield Bills(name, was, now, is_twin)
                break


def _measured(tuning: Tuning, side: Side) -> list[Grade]:
    del tuning
    return list(side.grades)


def _predicted(tuning: Tuning, side: Side) -> list[Grade]:
    found = tuning.conclusion
    said = () if found is None else found.predictions
    return [p.predicted for p in said if p.number in side.numbers and isinstance(p.predicted, Grade)]


def _mean_bill(grades: Sequence[Grade], name: str) -> Bill | None:
    bills = [found.slow_bill_s for grade in grades if (found := grade.of_class(name)) and found.slow_bill_s]
    if not bills:
        return None
    mean = {cause: sum(bill.get(cause, 0.0) for bill in bills) / len(bills) for cause in CAUSES}
    return mean if sum(mean.values()) > 0 else None
