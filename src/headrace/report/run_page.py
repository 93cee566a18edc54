"""A measurement as one HTML page: the tables of the terminal, and what happened over time.

Measurement, Objectives -> run_page -> HTML
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headrace import __version__
from headrace.core.errors import BadInput
from headrace.core.measurement import ALL, Measurement
from headrace.core.objective import Objectives
from headrace.core.timeline import Failure, Timeline
from headrace.measure.goodput import goodput, judged
from headrace.measure.intervals import by_class
from headrace.measure.server_metrics import Quantity, told
from headrace.measure.summary import ClassSummary, summarise
from headrace.report.charts import Points
from headrace.report.page import Section, Table, page
from headrace.report.run_charts import MOST_DOTS, boxes, gaps_chart, lines_over, sample
from headrace.report.run_lead import run_lead
from headrace.report.terminal import notes
from headrace.report.trust import between, bounded
from headrace.report.units import seconds

BINS = 120
_LATENCIES = (("TTFT", "ttft_s"), ("ITL", "itl_s"), ("TPOT", "tpot_s"), ("E2E", "e2e_s"))

Floats = NDArray[np.float64]


def run_page(measurement: Measurement, objectives: Objectives | None = None) -> str:
    summaries = summarise(measurement)
    sections = [
        Section("What was measured", facts=(("model", measurement.model),), table=_rates(measurement))
    ]
    if objectives:
        sections.append(_promises(measurement, objectives))
    if measurement.timelines:
        sections += [
            Section("Latencies", table=_latencies(measurement)),
            Section("Over time", charts=tuple(_over_time(measurement))),
            Section(
                "Latency against load",
                sentences=("Each dot is a request, by how many were unfinished when it was due.",),
                charts=(_against_load(measurement),),
            ),
            Section("Gaps between tokens, and requests by class", charts=tuple(_distributions(measurement))),
        ]
    sections.append(Section("Notes", sentences=tuple(notes(measurement, summaries))))
    footer = f"headrace {__version__}. Latencies count from when a request was due. Percentiles interpolate."
    title = f"headrace bench {measurement.target}"
    return page(title, measurement.workload, tuple(sections), footer, run_lead(measurement, objectives))


def _shown(measurement: Measurement) -> list[tuple[str, ClassSummary]]:
    """A single class is not shown twice."""
    found = list(summarise(measurement).items())
    return found[:1] if len(found) == 2 else found


def _rates(measurement: Measurement) -> Table:
    return Table(
        ("class", "requests", "failed", "answers/s", "output tokens/s"),
        tuple(
            (
                name,
                f"{summary.requests:,}",
                f"{summary.failed:,}",
                f"{summary.throughput_rps:.2f}",
                f"{summary.output_tokens_per_s:.1f}",
            )
            for name, summary in _shown(measurement)
        ),
    )


def _latencies(measurement: Measurement) -> Table:
    intervals = by_class(measurement)
    rows: list[tuple[str, ...]] = []
    for name, summary in _shown(measurement):
        for label, key in _LATENCIES:
            found = getattr(summary, key)
            if found is None:
                continue
            sure = intervals.get(name, {}).get(key, {}).get("p95")
            between = f"{seconds(sure[0])} to {seconds(sure[1])}" if sure else ""
            cells = (found.mean, found.p50, found.p95)
            rows.append((name, label, *map(seconds, cells), between, seconds(found.p99)))
    head = ("class", "latency", "mean", "P50", "P95", "P95, 95 % sure", "P99")
    return Table(head, tuple(rows), texts=frozenset({0, 1}))


def _promises(measurement: Measurement, objectives: Objectives) -> Section:
    rows = tuple(
        (
            each.request_class,
            str(each.objective).rpartition(": ")[2],
            bounded(each.value_s),
            between(each),
            each.verdict.value,
        )
        for each in judged(measurement, objectives)
    )
    said = tuple(
        f"Goodput, {name}: {good.per_s:.2f} a second, {good.attainment:.1%} of {good.due} due."
        for name, good in goodput(measurement, objectives).items()
        if name != ALL
    )
    if len(measurement.timelines) < len(measurement.measured):
        said += ("What failed counts here as later than any limit, and in no percentile of the next table.",)
    head = ("class", "objective", "measured", "95 % sure", "verdict")
    return Section("Promises", table=Table(head, rows, texts=frozenset({0, 1, 4})), sentences=said)


def _over_time(measurement: Measurement) -> Iterator[str]:
    """TTFT with the queue under it, on the same axis of time."""
    timelines = [each for each in measurement.results if isinstance(each, Timeline)]
    classes = sorted({each.request_class for each in timelines})
    ttft = {
        name: _thinned([(t.due_at, 1e3 * t.ttft_s) for t in timelines if t.request_class == name])
        for name in classes
    }
    whole = (0.0, max(_ended_at(each) for each in measurement.results))
    yield lines_over("TTFT by when a request was due, ms", "seconds", ttft, dots_only=True, x_range=whole)
    title = "Requests waiting for a first token, and unfinished"
    yield lines_over(title, "seconds", _queues(measurement), x_range=whole)


def _queues(measurement: Measurement) -> dict[str, Points]:
    results = measurement.results
    due = np.array([each.due_at for each in results])
    begun = np.array([each.token_at[0] if isinstance(each, Timeline) else each.failed_at for each in results])
    ended = np.array([_ended_at(each) for each in results])
    at = np.linspace(0.0, float(ended.max(initial=1.0)), BINS)
    shown: dict[str, Points] = {
        "waiting": list(zip(at.tolist(), _between(due, begun, at).tolist(), strict=True)),
        "unfinished": list(zip(at.tolist(), _between(due, ended, at).tolist(), strict=True)),
    }
    server = measurement.server
    for label, quantity in (("server: running", Quantity.RUNNING), ("server: waiting", Quantity.WAITING)):
        values = told(server, quantity) if server is not None else None
        if server is not None and values is not None:
            points = zip(server.at, values, strict=True)
            shown[label] = [(instant, value) for instant, value in points if value is not None]
    return shown


def _against_load(measurement: Measurement) -> str:
    due = np.array([each.due_at for each in measurement.results])
    ended = np.array([_ended_at(each) for each in measurement.results])
    at = np.array([each.due_at for each in measurement.timelines])
    found = np.maximum(_between(due, ended, at) - 1, 0)  # itself is none of them
    dots: dict[str, list[tuple[float, float]]] = {}
    for each, unfinished in zip(measurement.timelines, found.tolist(), strict=True):
        dots.setdefault(each.request_class, []).append((float(unfinished), 1e3 * each.ttft_s))
    series = {name: _thinned(points) for name, points in sorted(dots.items())}
    return lines_over("TTFT, ms, against requests unfinished", "unfinished", series, dots_only=True)


def _distributions(measurement: Measurement) -> Iterator[str]:
    gaps: dict[str, list[float]] = {}
    ttft: dict[str, list[float]] = {}
    for name in sorted({each.request_class for each in measurement.timelines}):
        timelines = [each for each in measurement.timelines if each.request_class == name]
        ttft[name] = [1e3 * each.ttft_s for each in timelines]
        gaps_ms = [1e3 * (b - a) for each in timelines for a, b in pairwise(each.token_at)]
        if gaps_ms:
            gaps[name] = gaps_ms
    if gaps:
        yield gaps_chart(gaps)
    yield boxes("TTFT by class, ms", {name: sample(values) for name, values in ttft.items()})


def _between(begin: Floats, end: Floats, at: Floats) -> NDArray[np.int64]:
    return np.searchsorted(np.sort(begin), at, side="right") - np.searchsorted(np.sort(end), at, side="right")


def _ended_at(result: Timeline | Failure) -> float:
    return result.token_at[-1] if isinstance(result, Timeline) else result.failed_at


def _thinned(points: Sequence[tuple[float, float]]) -> Points:
    """Evenly, but with the slowest of them all: they are what is looked for."""
    if len(points) <= MOST_DOTS:
        return points
    slow = sorted(points, key=lambda point: point[1])[-MOST_DOTS // 10 :]
    return [*points[:: len(points) // MOST_DOTS + 1], *slow]


def write_page(path: Path, html: str) -> None:
    """Raises `BadInput` where nothing can be written."""
    try:
        path.write_text(html, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}") from error
