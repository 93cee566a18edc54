"""A measurement as a person reads it: tables of 80 columns, and what to make of them.

Measurement -> print_measurement -> console
"""

from collections import Counter

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.core.bill import Cause
from headrace.core.measurement import ALL, Measurement
from headrace.core.objective import Objectives
from headrace.core.slow import mean_bill, slow_requests
from headrace.core.timeline import Timeline
from headrace.measure.intervals import Intervals, by_class
from headrace.measure.summary import ClassSummary, summarise
from headrace.report.bill import bar, bill_rows
from headrace.report.sparkline import sparkline
from headrace.report.trust import (
    delivery_notes,
    print_objectives,
    print_validity,
    queue_notes,
    server_notes,
    steady_notes,
    usage_notes,
)
from headrace.report.units import seconds

OVER_TIME = 26
"""Columns of the TTFT over time."""

FEW_ANSWERS = 20
"""With fewer, P95 lies between the two slowest."""

ROUNDING_S = 1e-6
"""Sums of floats differ by less; a network takes longer."""

CACHED_SHARE_WORTH_A_WARNING = 0.1


def print_measurement(
    measurement: Measurement,
    console: Console,
    objectives: Objectives | None = None,
    intervals: Intervals | None = None,
) -> None:
    """Everything that `headrace bench` shows after a run. `intervals` are drawn where nobody has them yet."""
    print_validity(measurement, console)
    if not measurement.measured:
        print_title(measurement, console)
        console.print(Text(_why_no_figures(measurement)))
        return
    summaries = summarise(measurement)
    shown = print_heading(measurement, summaries, console)
    if measurement.timelines:
        console.print(latencies_table(shown, intervals or by_class(measurement)))
        console.print(
            Text("Latencies count from when a request was due. Percentiles interpolate."), style="dim"
        )
        console.print(Text(ttft_line(measurement)))
    if objectives:
        print_objectives(measurement, objectives, console)
    for note in notes(measurement, summaries):
        console.print(Text(note))
    print_slow_bills(measurement, shown, console)


def print_heading(
    measurement: Measurement, summaries: dict[str, ClassSummary], console: Console
) -> list[ClassSummary]:
    """What was measured, and its rates. Returns whom to show: a single class is not shown twice."""
    shown = [s for s in summaries.values() if s.request_class != ALL or len(summaries) != 2]
    print_title(measurement, console)
    console.print(rates_table(shown))
    console.print()
    return shown


def print_title(measurement: Measurement, console: Console) -> None:
    console.print(Text(f"{measurement.target}  {measurement.model}", style="bold"))
    console.print(Text(measurement.workload))
    console.print()


def _why_no_figures(measurement: Measurement) -> str:
    """Of a run that ended in its warm-up: a table of zeros would look like a server that does nothing."""
    if not measurement.results:
        return "It ended before any request was due: there are no figures."
    return (
        f"Requests sent: {len(measurement.results)}, all due in the warm-up of the first "
        f"{seconds(measurement.warm_up_s)}, so no figure counts any. Let it run longer, or give --warm-up 0."
    )


def print_slow_bills(measurement: Measurement, shown: list[ClassSummary], console: Console) -> None:
    """Where the slow requests' time went, class by class."""
    for summary in shown:
        if summary.request_class != ALL:
            print_slow_bill(measurement, summary.request_class, console)


def notes(measurement: Measurement, summaries: dict[str, ClassSummary]) -> list[str]:
    """What a reader of the tables should know before believing them."""
    said = [*failure_notes(measurement), *steady_notes(measurement), *delivery_notes(measurement)]
    said += [*queue_notes(measurement), *server_notes(measurement)]
    few = [
        f"{answered} {name}"
        for name, summary in summaries.items()
        if name != ALL and 0 < (answered := summary.requests - summary.failed) < FEW_ANSWERS
    ]
    if few:
        said.append(f"Only {' and '.join(few)} answered: P95 and P99 are about the slowest of them.")
    said += usage_notes(measurement)
    prompt_tokens = sum(t.prompt_tokens for t in measurement.timelines)
    cached_tokens = sum(t.cached_tokens for t in measurement.timelines)
    cached, shared = cached_tokens / prompt_tokens if prompt_tokens else 0.0, measurement.shared_share
    if cached > shared + CACHED_SHARE_WORTH_A_WARNING:
        said.append(
            f"{cached:.0%} of the prompt tokens came from the server's prefix cache, and this load's "
            f"requests share {shared:.0%}: this seed was sent before, take another."
        )
    return said


def failure_notes(measurement: Measurement) -> list[str]:
    failures = measurement.failures
    if not failures:
        return []
    without = "The percentiles are without them." if measurement.timelines else "So there are no latencies."
    said = [f"{len(failures)} of {len(measurement.measured)} failed. {without}"]
    for kind, count in Counter(failure.kind for failure in failures).most_common():
        reason, alike = Counter(f.reason for f in failures if f.kind is kind).most_common(1)[0]
        example = f"  {count} {kind.replace('_', ' ')}: {reason}"
        said.append(example if alike == count else f"{example} ({alike} of them)")
    return said


def print_slow_bill(measurement: Measurement, request_class: str, console: Console) -> None:
    """Where the TTFT of the slow requests of a class went; nothing where the server keeps no bills."""
    slow = [t for t in slow_requests(measurement, request_class) if t.bill_s is not None]
    bill_s = mean_bill(slow)
    if bill_s is None:
        return
    ttft_s = sum(t.ttft_s for t in slow) / len(slow)
    head = f"Where the slow {request_class} requests' TTFT went"
    console.print()
    console.print(Text(head, style="bold").append(f": {len(slow)} from P95 on, mean {seconds(ttft_s)}"))
    console.print(_bill_table(bill_s, ttft_s))


def _bill_table(bill_s: dict[Cause, float], ttft_s: float) -> Table:
    table = Table.grid(padding=(0, 1))
    for justify in ("left", "right", "right", "left", "left"):
        table.add_column(justify=justify, no_wrap=True)
    # A server's clock is not the client's: it may bill more than its client waited.
    whole_s = max(ttft_s, sum(bill_s.values()))
    for row in bill_rows(bill_s):
        share = row.seconds / whole_s if whole_s else 0.0
        table.add_row(
            row.what, seconds(row.seconds), f"{share:.0%}", bar(share), Text(row.budget, style="dim")
        )
    outside_s = ttft_s - sum(bill_s.values())
    if outside_s > ROUNDING_S:
        share = outside_s / whole_s
        table.add_row("outside the server", seconds(outside_s), f"{share:.0%}", bar(share), "")
    return table


def rates_table(summaries: list[ClassSummary]) -> Table:
    table = _table("class", "requests", "failed", "answers/s", "output tokens/s")
    for summary in summaries:
        table.add_row(
            Text(summary.request_class),
            str(summary.requests),
            Text(str(summary.failed), style="red" if summary.failed else ""),
            f"{summary.throughput_rps:.2f}",
            f"{summary.output_tokens_per_s:.1f}",
        )
    return table


def latencies_table(summaries: list[ClassSummary], intervals: Intervals | None = None) -> Table:
    """`intervals`: how sure each P95 is."""
    table = _table("class", "latency", "mean", "P50", "P95", *(["(95 % sure)"] if intervals else []), "P99")
    for summary in summaries:
        latencies = {
            "TTFT": ("ttft_s", summary.ttft_s),
            "ITL": ("itl_s", summary.itl_s),
            "TPOT": ("tpot_s", summary.tpot_s),
            "E2E": ("e2e_s", summary.e2e_s),
        }
        name = Text(summary.request_class)
        for label, (key, latency) in latencies.items():
            if latency is not None:
                sure = intervals.get(summary.request_class, {}).get(key, {}).get("p95") if intervals else None
                cells = [seconds(latency.mean), seconds(latency.p50), seconds(latency.p95)]
                cells += [f"{seconds(sure[0])} - {seconds(sure[1])}" if sure else ""] if intervals else []
                table.add_row(name, label, *cells, seconds(latency.p99))
                name = Text()
        table.add_section()
    return table


def ttft_line(measurement: Measurement) -> str:
    """The mean TTFT by when requests were due, warm-up included: a ramp, a stall, a queue that grows."""
    results = [result for result in measurement.results if isinstance(result, Timeline)]
    last = max((result.due_at for result in results), default=0.0)
    sums, counts = [0.0] * OVER_TIME, [0] * OVER_TIME
    for result in results:
        place = int(OVER_TIME * max(0.0, result.due_at) / last) if last > 0 else 0
        place = min(OVER_TIME - 1, place)
        sums[place] += result.ttft_s
        counts[place] += 1
    means = [total / count if count else 0.0 for total, count in zip(sums, counts, strict=True)]
    warm_up = f" (first {seconds(measurement.warm_up_s)}: warm-up)" if measurement.warm_up_s else ""
    return f"TTFT over time {sparkline(means, max(means))} up to {seconds(max(means))}{warm_up}"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
    for column in columns:
        is_word = column in ("class", "latency")
        table.add_column(column, justify="left" if is_word else "right", no_wrap=True, min_width=7)
    return table
