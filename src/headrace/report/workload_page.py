"""A workload as one HTML page: the numbers of the terminal, and its shape at more depth."""

import numpy as np
from numpy.typing import NDArray

from headrace import __version__
from headrace.report.charts import cumulative_chart, stacked_bars
from headrace.report.page import Section, page
from headrace.report.units import seconds
from headrace.report.workload import class_table, facts, length_table, ticking
from headrace.workload.columns import Columns
from headrace.workload.features import Features
from headrace.workload.outline import over_time

BINS = 120
STEPS = 200
"""Of a cumulative curve."""


def workload_page(title: str, said: str, features: Features, columns: Columns) -> str:
    """`said` is what the workload was made of."""
    rates = over_time(columns, BINS)
    labels = [seconds(rates.bin_s * place) for place in range(BINS)]
    warning = ticking(features)
    sections = [
        Section("Lengths", table=length_table(features), charts=(_lengths(columns),)),
        Section(
            "Arrivals",
            facts=tuple(facts(features)),
            sentences=(warning,) if warning else (),
            charts=(stacked_bars("Requests a second over time", labels, BINS // 8, rates.rates),),
        ),
    ]
    if len(features.classes) > 1:
        sections.append(Section("Classes", table=class_table(features.classes), charts=(_by_class(columns),)))
    return page(title, said, tuple(sections), f"headrace {__version__}. Percentiles interpolate.")


def _lengths(columns: Columns) -> str:
    curves = {"prompt": _curve(columns.prompt_tokens), "output": _curve(columns.output_tokens)}
    held = np.sort(columns.prompt_tokens)
    shares = np.cumsum(held, dtype=np.float64) / held.sum(dtype=np.float64)
    places = _places(len(held))
    curves["prompt tokens held"] = list(zip(held[places].tolist(), shares[places].tolist(), strict=True))
    return cumulative_chart("Share of requests, and of all prompt tokens, up to a length", "tokens", curves)


def _by_class(columns: Columns) -> str:
    curves = {
        name: _curve(columns.prompt_tokens[columns.class_index == index])
        for index, name in enumerate(columns.classes)
    }
    return cumulative_chart("Prompts of each class up to a length", "tokens", curves)


def _curve(tokens: NDArray[np.int32]) -> list[tuple[float, float]]:
    ordered = np.sort(tokens)
    places = _places(len(ordered))
    return list(zip(ordered[places].tolist(), ((places + 1) / len(ordered)).tolist(), strict=True))


def _places(count: int) -> NDArray[np.int64]:
    return np.unique(np.linspace(0, count - 1, STEPS).astype(np.int64))
