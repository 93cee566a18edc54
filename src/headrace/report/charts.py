"""Charts as SVG for pages that stand alone: no script, no network, readable where scripts are forbidden.

pygal draws; here is only what all of this project's charts have in common (docs/decisions/0011).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from math import ceil, floor, log10
from typing import Any
from xml.etree.ElementTree import tostring

import pygal
from pygal.style import Style

WIDTH, HEIGHT = 900, 300
BLANK = " "
"""A title of the axis that only makes room: without one, pygal puts the legend on the labels."""
_LIGHT = (
    *("#2b6cb0", "#c05621", "#2f855a", "#6b46c1", "#b7791f"),
    *("#0987a0", "#b83280", "#4a5568", "#9b2c2c", "#68a36f"),
)
COLOURS = tuple(f"var(--series-{place}, {light})" for place, light in enumerate(_LIGHT))
"""A page may say others, as it does where it is dark; a picture that stands alone has these."""


def style_of(colours: Sequence[str]) -> Style:
    """All charts' style, with colours of one's own for the series, in their order."""
    return Style(
        background="transparent",
        plot_background="transparent",
        foreground="var(--soft, #4a5568)",
        foreground_strong="var(--ink, #1a202c)",
        foreground_subtle="var(--faint, #a0aec0)",
        colors=tuple(colours),
        opacity=".85",
        font_family="system-ui, sans-serif",
        label_font_size=13,
        major_label_font_size=13,
        legend_font_size=13,
        title_font_size=15,
        guide_stroke_color="var(--line, #e2e8f0)",
        guide_stroke_dasharray="0",
        major_guide_stroke_color="var(--line, #e2e8f0)",
        major_guide_stroke_dasharray="0",
        stroke_width=2,
    )


COMMON = {
    "style": style_of(COLOURS),
    "js": [],
    "width": WIDTH,
    "height": HEIGHT,
    "explicit_size": True,
    "legend_at_bottom": True,
    "truncate_label": -1,
    "truncate_legend": -1,
}
WIDE_DECADES = 4
"""From so many on, a logarithmic axis has room for the powers of ten alone."""
MOST_TICKS = 6

Points = Sequence[tuple[float, float]]


def cumulative_chart(title: str, x_title: str, series: Mapping[str, Points]) -> str:
    """Shares up to a value, over values of more than 0 on a logarithmic axis."""
    values = [value for points in series.values() for value, _ in points]
    chart = pygal.XY(title=title, x_title=x_title, show_dots=False, range=(0, 1), **in_one_row(series))
    ticks = _log_ticks(min(values), max(values))
    chart.x_labels = [{"value": log10(tick), "label": _plain(tick)} for tick in ticks]
    chart.y_labels = [{"value": share / 4, "label": f"{share * 25} %"} for share in range(5)]
    for name, points in series.items():
        chart.add(name, [(log10(value), share) for value, share in points])
    return to_svg(chart)


def stacked_bars(title: str, labels: Sequence[str], every: int, series: Mapping[str, Sequence[float]]) -> str:
    """One bar a label; every so many labels is shown."""
    chart = pygal.StackedBar(title=title, x_title=BLANK, show_minor_x_labels=False, spacing=1, **COMMON)
    chart.x_labels = list(labels)
    chart.x_labels_major = list(labels[::every])
    for name, values in series.items():
        chart.add(name, list(values))
    return to_svg(chart)


def in_one_row(series: Mapping[str, object]) -> dict[str, Any]:
    """What all charts have in common, and the names of the series beside each other."""
    return COMMON | {"legend_at_bottom_columns": max(1, min(len(series), 4))}


def from_nothing(values: Iterable[float]) -> list[dict[str, float | str]]:
    """Labels of an axis from 0 to the largest of `values`, few enough to stand apart."""
    most = max((value for value in values if value > 0), default=1.0)
    step = next(step for step in _steps(most / MOST_TICKS) if most / step <= MOST_TICKS)
    places = (step * number for number in range(ceil(most / step) + 1))
    return [{"value": place, "label": _plain(place)} for place in places]


def _steps(least: float) -> list[float]:
    """1, 2 and 5 times powers of ten, from below `least` on."""
    exponent = floor(log10(least))
    return [digit * 10.0**power for power in (exponent, exponent + 1) for digit in (1, 2, 5)]


def _log_ticks(low: float, high: float) -> list[float]:
    first, last = floor(log10(low)), floor(log10(high)) + 1
    digits = (1,) if last - first > WIDE_DECADES else (1, 2, 5)
    ticks = [digit * 10.0**power for power in range(first, last + 1) for digit in digits]
    below = max(tick for tick in ticks if tick <= low)
    above = min(tick for tick in ticks if tick >= high)
    return [tick for tick in ticks if below <= tick <= above]


def _plain(value: float) -> str:
    return f"{value:,.10g}"


def saying(said: str) -> Callable[[object], str]:
    """What is shown where a pointer rests on a mark, whatever its value."""
    return lambda _: said


def to_svg(chart: pygal.Graph) -> str:
    """The picture without its script; browsers show a value where the pointer rests. Equal charts are equal
    texts: the name of its style is made of itself.
    """
    chart.setup()
    root = chart.render_tree()
    for parent in list(root.iter()):
        for child in list(parent):
            kind = child.tag.rpartition("}")[2] if isinstance(child.tag, str) else ""
            if kind == "desc" and child.get("class") == "value":
                child.tag = "title"
            elif kind in {"script", "desc"}:
                parent.remove(child)
    svg = tostring(root, encoding="unicode")
    return svg.replace(chart.uuid, sha256(svg.replace(chart.uuid, "").encode()).hexdigest()[:16])
