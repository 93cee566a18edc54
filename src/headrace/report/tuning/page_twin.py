"""The twin's picture around the answer: levers and their knees, the frontier, reflexes, and what to trust.

Tuning --twin_sections--> sections of the page
"""

from collections.abc import Callable, Iterator, Sequence
from math import inf

from headrace.core.conclusion import Curve, CurvePoint, Explanation, Predicted
from headrace.core.grade import Grade
from headrace.core.ports import Overrides
from headrace.core.trial import NoResult, Purpose, Run
from headrace.report.page import Section, Table
from headrace.report.tuning.charts import Dot, Marks, factor_lines, ratio_dots
from headrace.report.tuning.figures import START, same_settings
from headrace.report.tuning.moves import ENDLESS, WORSE, beside_start, move_words
from headrace.report.tuning.pools import pool_rows, pool_words
from headrace.report.tuning.tuning import PoolAdvice, Tuning
from headrace.report.tuning.words import (
    grade_words,
    load_words,
    named_words,
    pace_words,
    rate_words,
    sentence,
    twin_words,
    value_words,
)
from headrace.report.units import seconds

X_TITLES = {
    "max_num_batched_tokens": "tokens a step",
    "max_num_seqs": "requests at once",
    "long_prefill_token_threshold": "tokens of one prompt a step",
    "kv_cache_memory_bytes": "memory for keys and values",
}
"""What a lever counts, where its name does not say it."""


def twin_sections(tuning: Tuning) -> Iterator[Section]:
    explained = tuning.explanation
    load = 1.0 if tuning.conclusion is None else tuning.conclusion.load
    if explained is not None:
        yield from _curves(tuning, explained.curves, load)
        yield from _frontier(tuning, explained)
        yield from _moves(explained)
    if tuning.pools is not None:
        yield _pools(tuning, tuning.pools)
    if tuning.goal.seeks_capacity and tuning.runs:
        yield from _loads(tuning)
    if tuning.conclusion is not None and tuning.conclusion.predictions:
        yield _trust(tuning, tuning.conclusion.predictions)


# --- levers ------------------------------------------------------------------------------------


def _curves(tuning: Tuning, curves: Sequence[Curve], load: float) -> Iterator[Section]:
    drawn = [curve for curve in curves if len(curve.points) > 1 and _has_knee(curve)]
    idle = [curve.lever for curve in curves if curve.knee is None]
    if not curves:
        return
    said = [
        f"In the twin at {load_words(tuning, load)}: one setting moves, all others are the answer's.",
        "Lines are multiples of what the answer gives. A gap: no result, or a queue that grows without end.",
    ]
    if idle:
        said.append(f"Nothing here depends on {' or '.join(idle)}.")
    yield Section(
        "Each lever around the answer",
        sentences=tuple(said),
        parts=tuple(_curve(tuning, curve) for curve in drawn),
    )


def _curve(tuning: Tuning, curve: Curve) -> Section:
    winner = next((point for point in curve.points if point.value == curve.winner), None)
    series = _series(curve.points, winner)
    labels = [_marked(curve, point, tuning.server.start.get(curve.lever)) for point in curve.points]
    x_title = X_TITLES.get(curve.lever, curve.lever)
    return Section(
        curve.lever,
        sentences=(_knee_words(curve, is_capacity=tuning.goal.seeks_capacity),),
        charts=(factor_lines("Multiples of the answer's figures", x_title, labels, series),)
        if series
        else (),
        table=_figures(curve, labels),
    )


def _has_knee(curve: Curve) -> bool:
    return any(point.value == curve.knee for point in curve.points)


def _knee_words(curve: Curve, *, is_capacity: bool) -> str:
    """Whether more only gains nothing, or makes it worse again."""
    knee = next(place for place, point in enumerate(curve.points) if point.value == curve.knee)
    own, beyond = curve.points[knee], curve.points[knee + 1 :]
    said = value_words(curve.lever, curve.knee)
    worse = max((_times_worse(own, point, is_capacity=is_capacity) for point in beyond), default=1.0)
    if worse < WORSE:
        return f"From {said} on nothing more is gained: the knee."
    what = "the load within the limits falls" if is_capacity else "the worst latency grows"
    times = "without end" if worse > ENDLESS else f"up to {worse:.2g} times"
    return f"{said} is best, the knee: beyond it {what} {times}."


def _times_worse(own: CurvePoint, other: CurvePoint, *, is_capacity: bool) -> float:
    if is_capacity:
        return own.capacity / other.capacity if own.capacity and other.capacity else inf
    if isinstance(own.grade, NoResult) or isinstance(other.grade, NoResult) or not own.grade.ratio:
        return inf
    return other.grade.ratio / own.grade.ratio


def _figures(curve: Curve, labels: Sequence[str]) -> Table:
    """What the lines are drawn from."""
    points = curve.points
    names = sorted(
        {each.request_class for point in points if (grade := _calm(point)) for each in grade.classes}
    )
    seeks = any(point.capacity for point in points)
    head = (
        "value",
        *(("load within the limits",) if seeks else ()),
        "output tokens/s",
        *(f"P95 TTFT, {name or 'all'}" for name in names),
        "worst ratio",
        "beside the line above",
    )
    steps = dict(zip((point.value for point in curve.points[1:]), curve.steps, strict=False))
    rows = tuple(
        (
            label,
            *((("none" if point.capacity is None else f"{point.capacity:.3g}"),) if seeks else ()),
            rate_words(grade.output_tokens_per_s) if (grade := _calm(point)) else "-",
            *(_or_dash(_ttft_s(grade, name)) for name in names),
            grade_words(point.grade),
            steps.get(point.value, "").partition(": ")[2],
        )
        for label, point in zip(labels, points, strict=True)
    )
    return Table(head, rows, frozenset({0, len(head) - 1}))


def _or_dash(amount_s: float | None) -> str:
    return "-" if amount_s is None else seconds(amount_s)


def _marked(curve: Curve, point: CurvePoint, start: object) -> str:
    marks = [
        word
        for word, value in (("answer", curve.winner), ("start", start), ("knee", curve.knee))
        if value is not None and point.value == value
    ]
    said = value_words(curve.lever, point.value)
    return f"{said} ({', '.join(marks)})" if marks else said


def _series(points: Sequence[CurvePoint], winner: CurvePoint | None) -> dict[str, list[float | None]]:
    """Capacity, throughput, and P95 TTFT of each class, by the winner's."""
    if winner is None or isinstance(winner.grade, NoResult):
        return {}
    found: dict[str, list[float | None]] = {}
    if winner.capacity:
        found["load within the limits"] = [_ratio(point.capacity, winner.capacity) for point in points]
    found["output tokens/s"] = [
        _ratio(grade.output_tokens_per_s if grade else None, winner.grade.output_tokens_per_s)
        for grade in map(_calm, points)
    ]
    for own in winner.grade.classes:
        name = own.request_class
        found[f"P95 TTFT, {name}" if name else "P95 TTFT"] = [
            _ratio(_ttft_s(_calm(point), name), own.ttft_p95_s) for point in points
        ]
    gaps = [_itl_s(_calm(point)) for point in points]
    found["P95 ITL, worst class"] = [_ratio(gap_s, _itl_s(winner.grade)) for gap_s in gaps]
    return {name: values for name, values in found.items() if any(values)}


def _calm(point: CurvePoint) -> Grade | None:
    """The grade, unless its queue grew: then its waits tell only how long it lasted."""
    grade = point.grade
    return None if isinstance(grade, NoResult) or grade.is_steady is False else grade


def _ttft_s(grade: Grade | None, name: str) -> float | None:
    own = None if grade is None else grade.of_class(name)
    return None if own is None else own.ttft_p95_s


def _itl_s(grade: Grade | None) -> float | None:
    classes = () if grade is None else grade.classes
    return max((each.itl_p95_s for each in classes if each.itl_p95_s is not None), default=None)


def _ratio(value: float | None, winner: float | None) -> float | None:
    return value / winner if value and winner else None


# --- throughput against latency ----------------------------------------------------------------


def _frontier(tuning: Tuning, explained: Explanation) -> Iterator[Section]:
    twin = tuple(
        Dot(each.output_tokens_per_s, each.ratio, _said(each.overrides, each.load, each.ratio))
        for each in explained.frontier
        if each.ratio < inf
    )
    marks = [Marks("frontier in the twin", 0, twin, is_joined=True), *_marks(tuning, _tokens_per_s)]
    if not any(each.dots for each in marks):
        return
    rows = tuple(
        (
            named_words(each.overrides),
            f"{each.load:.3g}",
            rate_words(each.output_tokens_per_s),
            f"{each.ratio:.2f}",
        )
        for each in explained.frontier
    )
    title, x_title = "Worst ratio to a limit, by output tokens a second", "output tokens a second"
    yield Section(
        "Throughput against latency",
        sentences=(
            "Lower is better, and below 1 every limit is met; to the right more tokens are made.",
            "No setting at no load beats those on the frontier in both, in the twin.",
        ),
        charts=(ratio_dots(title, x_title, marks),),
        table=Table(("on the frontier", "load", "output tokens/s", "worst ratio"), rows) if rows else None,
    )


def _tokens_per_s(run: Run, grade: Grade) -> float:
    del run
    return grade.output_tokens_per_s


def _load(run: Run, grade: Grade) -> float:
    del grade
    return run.load


def _marks(tuning: Tuning, x_of: Callable[[Run, Grade], float]) -> list[Marks]:
    """Every run that gave a result."""
    answer = tuning.conclusion.contender if tuning.conclusion else None
    found: dict[str, list[Dot]] = {"start": [], "answer": [], "other": []}
    for number, run in enumerate(tuning.runs):
        grade = run.outcome
        if not isinstance(grade, Grade) or grade.ratio == inf:
            continue
        is_answer = answer is not None and same_settings(run.overrides, answer)
        name = "start" if same_settings(run.overrides, START) else "answer" if is_answer else "other"
        said = f"run {number + 1}, {_said(run.overrides, run.load, grade.ratio)}"
        found[name].append(Dot(x_of(run, grade), grade.ratio, said))
    return [
        Marks(f"{name}, measured", colour, tuple(dots))
        for colour, (name, dots) in enumerate(found.items(), 1)
    ]


def _said(overrides: Overrides, load: float, ratio: float) -> str:
    return f"{named_words(overrides)}, load {load:.3g}: {ratio:.2f}"


def _loads(tuning: Tuning) -> Iterator[Section]:
    marks = _marks(tuning, _load)
    if any(each.dots for each in marks):
        yield Section(
            "How near to the limits, by load",
            sentences=("Every run that gave a result. Below 1 it keeps every limit.",),
            charts=(ratio_dots("Worst ratio to a limit, by load", "multiple of the load", marks),),
        )


def _moves(explained: Explanation) -> Iterator[Section]:
    if not explained.obvious:
        return
    moves = tuple(
        (
            f"{move.name}: {named_words(move.overrides)}",
            grade_words(move.grade),
            beside_start(move, explained),
            move_words(move, explained),
        )
        for move in explained.obvious
    )
    start = ("the start", grade_words(explained.start), "", "")
    answer = ("the answer", grade_words(explained.answer), "", "")
    yield Section(
        "What one would try first, and what it gives here",
        table=Table(
            ("move", "worst ratio", "beside the start", "in the twin"),
            (start, *moves, answer),
            frozenset({0, 3}),
        ),
    )


def _pools(tuning: Tuning, advice: PoolAdvice) -> Section:
    head = (
        "pool",
        "of the requests",
        "settings",
        "one server carries",
        "servers, for what one for all carries",
    )
    return Section(
        "Servers of their own for short and long requests",
        sentences=(sentence(pool_words(tuning)),),
        table=Table(head, tuple(pool_rows(tuning, advice)), frozenset({0, 2})),
        commands=tuple(
            f"# {pool.name}, not proven\n{command}"
            for pool, command in zip(advice.found.apart, advice.commands, strict=True)
            if advice.found.pays_from is not None
        ),
    )


# --- trust -------------------------------------------------------------------------------------


def _trust(tuning: Tuning, predictions: Sequence[Predicted]) -> Section:
    rows = tuple(_predicted(each) for each in predictions)
    return Section(
        "Predicted and measured",
        sentences=(f"{twin_words(predictions).capitalize()}.", pace_words(tuning)),
        table=Table(
            ("run", "settings", "load", "figure", "predicted", "measured", "off by", "beyond the noise"),
            rows,
            frozenset({1, 3, 7}),
        ),
    )


def _predicted(each: Predicted) -> tuple[str, ...]:
    measured, predicted = each.measured, each.predicted
    worst = measured.binding() if isinstance(measured, Grade) else None
    figure, said, was, off = "worst ratio", grade_words(predicted), grade_words(measured), ""
    if worst is not None and isinstance(predicted, Grade):
        goal = worst.objective
        twin = next(
            (a for a in predicted.attained if (a.objective, a.request_class) == (goal, worst.request_class)),
            None,
        )
        if twin is not None and 0 < twin.value_s < inf and worst.value_s < inf:
            figure = f"P{goal.percentile:g} {goal.metric.upper()}, {worst.request_class or 'all'}"
            said, was = seconds(twin.value_s), seconds(worst.value_s)
            off = f"{worst.value_s / twin.value_s - 1:+.0%}"
    return (
        str(each.number + 1),
        named_words(each.overrides),
        f"{each.load:.3g}",
        figure,
        said,
        was,
        off,
        "not known to the twin" if each.purpose is Purpose.LEVER else "yes" if each.is_beyond_noise else "no",
    )
