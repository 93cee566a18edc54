"""Pictures of a search: bills side by side, a lever's curve, the frontier, the loads that were tried.

Amounts that vary a hundredfold stand on logarithmic axes, whose labels and tooltips are the plain numbers.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, inf, log10
from typing import Any

import pygal

from headrace.core.bill import CAUSES
from headrace.report.bill import WORDS
from headrace.report.charts import BLANK, COLOURS, COMMON, saying, style_of, to_svg
from headrace.report.tuning.figures import Bill
from headrace.report.units import seconds

MOST_RATIO = 100.0
"""Of a limit: a queue that grows reaches any; beyond this one it is drawn here."""
ROOM = 1.1
"""Beyond the first and last mark."""
CROWDED = 60
"""Characters of all labels, from which they are written slanting."""
BAR_HEIGHT, AROUND_BARS = 34, 130
_TICKS = tuple(digit * 10.0**exponent for exponent in range(-6, 9) for digit in (1, 2, 5))


@dataclass(frozen=True, slots=True)
class Dot:
    """One mark, and what is said where a pointer rests on it."""

    x: float
    y: float
    said: str


@dataclass(frozen=True, slots=True)
class Marks:
    """Marks of one kind."""

    name: str
    colour: int
    """The same in every chart of a page."""
    dots: tuple[Dot, ...]
    is_joined: bool = False


def bill_bars(title: str, bills: Mapping[str, Bill]) -> str:
    """A bar for each name, the first on top; every cause has one colour in all charts."""
    causes = [cause for cause in CAUSES if any(bill.get(cause, 0.0) > 0 for bill in bills.values())]
    options: dict[str, Any] = {
        **COMMON,
        "style": style_of([COLOURS[CAUSES.index(cause)] for cause in causes]),
        "height": AROUND_BARS + BAR_HEIGHT * len(bills) + 20 * _legend_rows(len(causes)),
    }
    chart = pygal.HorizontalStackedBar(
        title=title, x_title=BLANK, value_formatter=_duration, spacing=14, max_scale=9, **options
    )
    chart.x_labels = list(bills)[::-1]
    for cause in causes:
        chart.add(WORDS[cause].what, [bill.get(cause, 0.0) for bill in bills.values()][::-1])
    return to_svg(chart)


def factor_lines(
    title: str, x_title: str, labels: Sequence[str], series: Mapping[str, Sequence[float | None]]
) -> str:
    """One line a name, over the values of a lever, as factors on a logarithmic axis; gaps for None."""
    found = [value for values in series.values() for value in values if value]
    lowest, highest = min([*found, 0.9]), max([*found, 1.1])
    chart = pygal.Line(title=title, x_title=x_title, dots_size=3, margin_right=90, **COMMON)
    chart.x_labels = list(labels)
    chart.x_label_rotation = 20 if sum(map(len, labels)) > CROWDED else 0
    chart.y_labels = [{"value": log10(tick), "label": f"x {tick:g}"} for tick in _ticks(lowest, highest)]
    chart.range = (log10(lowest), log10(highest))
    for name, values in series.items():
        chart.add(
            name, [_logged(value, lambda v: f"x {v:.3g}") for value in values], allow_interruptions=True
        )
    return to_svg(chart)


def ratio_dots(title: str, x_title: str, series: Sequence[Marks]) -> str:
    """Ratios to a limit on a logarithmic axis. The other axis leaves room, so that what is nearly the same
    looks so.
    """
    drawn = [marks for marks in series if marks.dots]
    ratios = [_held(dot.y) for marks in drawn for dot in marks.dots]
    along = [dot.x for marks in drawn for dot in marks.dots]
    lowest, highest = min([*ratios, 0.9]), max([*ratios, 1.1])
    options = {**COMMON, "style": style_of([COLOURS[marks.colour] for marks in drawn])}
    chart = pygal.XY(title=title, x_title=x_title, **options)
    chart.y_labels = [{"value": log10(tick), "label": f"{tick:g}"} for tick in _ticks(lowest, highest)]
    chart.range = (log10(lowest), log10(highest))
    chart.xrange = (min(along, default=0.0) / ROOM, max(along, default=1.0) * ROOM)
    for marks in drawn:
        values = [
            {"value": (dot.x, log10(_held(dot.y))), "formatter": saying(dot.said)} for dot in marks.dots
        ]
        chart.add(marks.name, values, stroke=marks.is_joined, dots_size=2 if marks.is_joined else 5)
    return to_svg(chart)


def _legend_rows(names: int) -> int:
    """As pygal lays them out: as many columns as rows, or one more."""
    return ceil(names / ceil(names**0.5)) if names else 0


def _logged(value: float | None, said: Callable[[float], str]) -> dict[str, Any] | None:
    return {"value": log10(value), "formatter": saying(said(value))} if value else None


def _held(ratio: float) -> float:
    return min(max(ratio, 1 / MOST_RATIO), MOST_RATIO)


def _ticks(lowest: float, highest: float) -> Iterable[float]:
    """Some three to nine round numbers that have all between them."""
    inside = [tick for tick in _TICKS if lowest / 2.5 <= tick <= highest * 2.5]
    first = max((tick for tick in inside if tick <= lowest), default=inside[0])
    last = min((tick for tick in inside if tick >= highest), default=inside[-1])
    chosen = [tick for tick in inside if first <= tick <= last]
    if len(chosen) > 9:
        chosen = [tick for tick in chosen if log10(tick) == floor(log10(tick) + 1e-9)]
    return chosen or [1.0]


def _duration(amount_s: object) -> str:
    return seconds(amount_s) if isinstance(amount_s, int | float) and 0 <= amount_s < inf else ""
