"""Charts of runs, in the manner of `report/charts.py`: values over time or load, and boxes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log10

import numpy as np
import pygal

from headrace.report.charts import (
    BLANK,
    COLOURS,
    Points,
    cumulative_chart,
    from_nothing,
    in_one_row,
    saying,
    style_of,
    to_svg,
)

MOST_DOTS = 1_500
"""A page of a hundred thousand circles opens on no machine."""
STEPS = 200
SHORTEST_MS = 0.01
MOST_NUMBERS = 20
ROW_HEIGHT, AROUND_ROWS = 26, 120
_FACTORS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.8, 0.9, 1.0, 1.1, 1.25, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
WIDE = 4.0
"""From such a range on, labels near 1 would run into each other."""


@dataclass(frozen=True, slots=True)
class Factor:
    """One ratio in a picture of many, with its interval where it has one."""

    name: str
    times: float
    between: tuple[float, float] | None
    group: str
    """Of one colour."""


def lines_over(
    title: str,
    x_title: str,
    series: Mapping[str, Points],
    *,
    dots_only: bool = False,
    x_range: tuple[float, float] | None = None,
    colours: Sequence[str] = COLOURS,
) -> str:
    """Values over time or any other number, one line a name; or their dots alone."""
    chart = pygal.XY(
        title=title,
        x_title=x_title,
        stroke=not dots_only,
        show_dots=dots_only,
        dots_size=3,
        include_x_axis=True,
        xrange=x_range,
        **in_one_row(series) | {"style": style_of(colours)},
    )
    chart.y_labels = from_nothing(value for points in series.values() for _, value in points)
    for name, points in series.items():
        chart.add(name, list(points))
    return to_svg(chart)


def by_number(title: str, x_title: str, series: Mapping[str, Points], colours: Sequence[str]) -> str:
    """Values of things that are counted from 1, such as runs: dots, joined."""
    chart = pygal.XY(
        title=title, x_title=x_title, dots_size=3, **in_one_row(series) | {"style": style_of(colours)}
    )
    values = [point for points in series.values() for point in points]
    last = round(max((number for number, _ in values), default=1))
    chart.x_labels = list(range(1, last + 1, last // MOST_NUMBERS + 1))
    chart.range = (0, max((value for _, value in values), default=1.0))
    chart.y_labels = from_nothing(value for _, value in values)
    for name, points in series.items():
        chart.add(name, list(points))
    return to_svg(chart)


def boxes(title: str, series: Mapping[str, Sequence[float]]) -> str:
    """A box for each name: quartiles, with whiskers to 1.5 times the box; what lies beyond is dots."""
    chart = pygal.Box(title=title, x_title=BLANK, box_mode="tukey", **in_one_row(series))
    chart.y_labels = from_nothing(value for values in series.values() for value in values)
    for name, values in series.items():
        chart.add(name, list(values))
    return to_svg(chart)


def factors(title: str, rows: Sequence[Factor], colours: Mapping[str, str]) -> str:
    """Ratios as dots beneath each other, on a logarithmic axis, in the order given; a line is an interval.
    What lies beyond a hundredth and a hundredfold is drawn there.
    """
    ends = [_held(end) for row in rows for end in (row.times, *(row.between or ()))]
    low, high = min([*ends, 0.9]), max([*ends, 1.1])
    groups = [group for group in colours if any(row.group == group for row in rows)]
    options = in_one_row(dict.fromkeys(groups)) | {
        "style": style_of([colours[group] for group in groups]),
        "height": AROUND_ROWS + ROW_HEIGHT * len(rows),
    }
    chart = pygal.XY(title=title, x_title="B / A", dots_size=4, allow_interruptions=True, **options)
    chart.range, chart.xrange = (0.5, len(rows) + 0.5), (log10(low), log10(high))
    chart.x_labels = [{"value": log10(each), "label": f"{each:g}"} for each in _shown_factors(low, high)]
    places = {len(rows) - place: row for place, row in enumerate(rows)}
    chart.y_labels = [{"value": place, "label": row.name} for place, row in places.items()]
    chart.y_labels_major = [0]  # none of them: pygal would print each fifth in bold
    for group in groups:
        marks = [mark for place, row in places.items() if row.group == group for mark in _marks(place, row)]
        chart.add(group, marks)
    return to_svg(chart)


def _marks(place: int, row: Factor) -> list[object]:
    """A line with a dot in the middle, and a gap behind."""
    said = f"{row.name}: {row.times:.3g} times"
    ends = [log10(_held(end)) for end in row.between or (row.times, row.times)]
    if row.between:
        said += f", {row.between[0]:.3g} to {row.between[1]:.3g}"
    shown = {"value": (log10(_held(row.times)), place), "formatter": saying(said)}
    hidden = {"node": {"r": 0}, "formatter": saying(said)}
    first, last = ({"value": (end, place)} | hidden for end in ends)
    return [first, shown, last, (None, None)]


def _held(times: float) -> float:
    return min(max(times, _FACTORS[0]), _FACTORS[-1])


def _shown_factors(low: float, high: float) -> list[float]:
    """Near 1 only where there is room for them."""
    inside = [each for each in _FACTORS if low <= each <= high]
    return inside if high / low < WIDE else [each for each in inside if each == 1 or not 0.5 < each < 2]


def gaps_chart(gaps_ms: Mapping[str, Sequence[float]]) -> str:
    title = "Share of the gaps between tokens (ITL) up to a length"
    return cumulative_chart(title, "ms", {name: _curve(values) for name, values in gaps_ms.items()})


def _curve(values: Sequence[float]) -> Points:
    ordered = np.sort(np.asarray(values))
    # Tokens of one event have no gap, which a logarithmic axis does not know; nor is it to begin there.
    ordered = np.maximum(ordered, max(SHORTEST_MS, float(np.percentile(ordered, 1))))
    places = np.unique(np.linspace(0, len(ordered) - 1, STEPS).astype(np.int64))
    shares = (places + 1) / len(ordered)
    return list(zip(ordered[places].tolist(), shares.tolist(), strict=True))


def sample(values: Sequence[float]) -> Sequence[float]:
    """As many as a picture bears."""
    return values if len(values) <= MOST_DOTS else values[:: len(values) // MOST_DOTS + 1]
