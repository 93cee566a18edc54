"""Charts of runs, in the manner of `report/charts.py`: values over time or load, and boxes."""

from collections.abc import Mapping, Sequence

import pygal

from headrace.report.charts import BLANK, COLOURS, Points, from_nothing, in_one_row, style_of, to_svg


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


def boxes(title: str, series: Mapping[str, Sequence[float]]) -> str:
    """A box for each name: quartiles, with whiskers to 1.5 times the box; what lies beyond is dots."""
    chart = pygal.Box(title=title, x_title=BLANK, box_mode="tukey", **in_one_row(series))
    chart.y_labels = from_nothing(value for values in series.values() for value in values)
    for name, values in series.items():
        chart.add(name, list(values))
    return to_svg(chart)
