"""Two servers beside each other as one HTML page: the table of the terminal, its picture, and every pair.

Comparison -> compare_page -> HTML
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from headrace import __version__
from headrace.core.measurement import ALL, Measurement
from headrace.measure.compare import Difference, Verdict
from headrace.measure.summary import ClassSummary, summarise
from headrace.report.compare import (
    Comparison,
    between,
    headline,
    invalid_lines,
    notes,
    ratio,
    value,
    what_was_sent,
)
from headrace.report.page import Lead, Section, Table, Tile, Tone, page
from headrace.report.run_charts import Factor, boxes, by_number, factors, gaps_chart, sample
from headrace.report.units import many, seconds

_TILES = ("TTFT P95", "ITL P95", "E2E P95", "output tokens/s")
_OVER_PAIRS = ("TTFT P95", "ITL P95")
_COLOURS = {
    Verdict.BETTER.value: "var(--good, #276749)",
    Verdict.WORSE.value: "var(--bad, #9b2c2c)",
    Verdict.SAME.value: "var(--plain, #2c5282)",
    Verdict.INCONCLUSIVE.value: "var(--faint, #a0aec0)",
}


def compare_page(comparison: Comparison) -> str:
    a, b = comparison.pairs[0]
    sections = [_figures(comparison)] if comparison.found else []
    sections.append(
        Section("The pairs, in their order", charts=tuple(_over_pairs(comparison)), table=_pairs(comparison))
    )
    if drawn := tuple(_distributions(comparison)):
        sections.append(Section("All slices together", charts=drawn))
    sections.append(
        Section("What was run", facts=tuple(_facts(comparison)), sentences=(what_was_sent(comparison),))
    )
    if comparison.invalid:
        lines = tuple(invalid_lines(comparison, len(comparison.invalid)))
        sections.append(Section("Slices that are invalid", sentences=lines[:1], items=lines[1:]))
    footer = f"headrace {__version__}. Latencies count from when a request was due. Percentiles interpolate."
    return page(
        f"headrace compare {a.target} {b.target}", a.workload, tuple(sections), footer, _lead(comparison)
    )


def _lead(comparison: Comparison) -> Lead:
    word, sentence = headline(comparison)
    tone = Tone.BAD if comparison.is_worse else Tone.PLAIN
    if comparison.count(Verdict.BETTER) and not comparison.is_worse:
        tone = Tone.GOOD
    if comparison.invalid:
        first = next(invalid_lines(comparison, 0))
        word, sentence, tone = f"INVALID; {word}", f"{first} {sentence[0].upper()}{sentence[1:]}", Tone.BAD
    else:
        sentence = f"{sentence[0].upper()}{sentence[1:]}"
    return Lead(word, sentence, tone, tuple(_tiles(comparison)))


def _tiles(comparison: Comparison) -> Iterator[Tile]:
    """Of all classes together, or of the only one."""
    whole = comparison.found[-1].request_class if comparison.found else ALL
    for each in comparison.found:
        if each.request_class == whole and each.figure in _TILES:
            said = f"{value(each, each.a)} to {value(each, each.b)}: {each.verdict}"
            yield Tile(f"{each.figure}, B / A", ratio(each.ratio), said)


def _figures(comparison: Comparison) -> Section:
    """By class: a picture of the ratios, and one table of all."""
    names = list(dict.fromkeys(each.request_class for each in comparison.found))
    charts = tuple(
        factors(
            f"B / A, {'all classes' if name == ALL else name}",
            [_row(each) for each in comparison.found if each.request_class == name],
            _COLOURS,
        )
        for name in names
    )
    rows = tuple(
        (
            *(each.request_class, each.figure, value(each, each.a), value(each, each.b)),
            *(ratio(each.ratio), between(each), each.verdict.value),
        )
        for each in comparison.found
    )
    head = ("class", "figure", "A", "B", "B / A", "95 % sure", "B is")
    return Section(
        "B beside A",
        sentences=tuple(notes(comparison)),
        charts=charts,
        table=Table(head, rows, texts=frozenset({0, 1, 6})),
    )


def _row(each: Difference) -> Factor:
    return Factor(each.figure, each.ratio, each.between, each.verdict.value)


def _over_pairs(comparison: Comparison) -> Iterator[str]:
    """Whether one pair made the difference, and whether both drifted."""
    for each in comparison.found:
        if each.figure in _OVER_PAIRS:
            said = "all classes" if each.request_class == ALL else each.request_class
            title = f"{each.figure}, {said}, ms"
            yield by_number(title, "pair", _sides(comparison, each), _OF_SIDES)


_OF_SIDES = ("var(--series-0, #2b6cb0)", "var(--series-1, #c05621)")


def _sides(comparison: Comparison, difference: Difference) -> dict[str, list[tuple[float, float]]]:
    sides: dict[str, list[tuple[float, float]]] = {"A": [], "B": []}
    for number, pair in enumerate(comparison.pairs, 1):
        for side, measurement in zip("AB", pair, strict=True):
            summary = summarise(measurement)[difference.request_class]
            found = summary.ttft_s if difference.figure.startswith("TTFT") else summary.itl_s
            if found is not None:
                sides[side].append((float(number), 1e3 * found.p95))
    return sides


def _pairs(comparison: Comparison) -> Table:
    rows = [
        (str(number), side, f"{measurement.seed}", *_of_slice(summarise(measurement)[ALL]))
        for number, pair in enumerate(comparison.pairs, 1)
        for side, measurement in (
            zip("AB", pair, strict=True) if number % 2 else zip("BA", pair[::-1], strict=True)
        )
    ]
    head = ("pair", "of", "seed", "requests", "failed", "TTFT P95", "ITL P95", "E2E P95", "output tokens/s")
    return Table(head, tuple(rows), texts=frozenset({1}))


def _of_slice(summary: ClassSummary) -> tuple[str, ...]:
    latencies = (summary.ttft_s, summary.itl_s, summary.e2e_s)
    p95 = (seconds(found.p95) if found else "-" for found in latencies)
    return (f"{summary.requests:,}", f"{summary.failed:,}", *p95, f"{summary.output_tokens_per_s:.1f}")


def _distributions(comparison: Comparison) -> Iterator[str]:
    gaps: dict[str, list[float]] = {}
    ttft: dict[str, Sequence[float]] = {}
    for place, side in enumerate("AB"):
        timelines = [each for pair in comparison.pairs for each in pair[place].timelines]
        for name in sorted({each.request_class for each in timelines}):
            mine = [each for each in timelines if each.request_class == name]
            ttft[f"{side} {name}"] = sample([1e3 * each.ttft_s for each in mine])
            gaps_ms = [1e3 * (b - a) for each in mine for a, b in pairwise(each.token_at)]
            if gaps_ms:
                gaps[f"{side} {name}"] = gaps_ms
    if ttft:
        yield boxes("TTFT, ms", ttft)
    if gaps:
        yield gaps_chart(gaps)


def _facts(comparison: Comparison) -> Iterator[tuple[str, str]]:
    pairs = comparison.pairs
    for side, measurement in zip("AB", pairs[0], strict=True):
        server = measurement.versions.get("server")
        yield side, f"{measurement.target}, {measurement.model}{f', server {server}' if server else ''}"
    yield "load", pairs[0][0].workload
    yield "slices", f"{many(len(pairs), 'pair')}, {_lasted(pairs[0][0])} each"


def _lasted(measurement: Measurement) -> str:
    return (
        f"about {seconds(measurement.duration_s)}, the first {seconds(measurement.warm_up_s)} of it warm-up,"
    )
