"""A simulation as a person reads it: the tables of a real run, the load's verdict, and the budgets over time.

Where the queue grew without bound there are no latencies: they would be a matter of the run's length.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.core.measurement import ALL, Measurement
from headrace.core.settings import Settings
from headrace.core.slow import slow_bill
from headrace.measure.summary import summarise
from headrace.report.as_json import measurement_json
from headrace.report.bill import bill_rows
from headrace.report.sparkline import sparkline
from headrace.report.terminal import failure_notes, latencies_table, print_heading, print_slow_bills
from headrace.report.units import seconds
from headrace.sim.budgets import BudgetSample
from headrace.sim.overload import Load, Verdict
from headrace.sim.run import Simulated

COLUMNS = 44
_LATENCIES = ("ttft_s", "itl_s", "tpot_s", "e2e_s")


def print_simulated(
    measurement: Measurement, simulated: Simulated, load: Load, settings: Settings, console: Console
) -> None:
    """Everything that `headrace simulate` shows."""
    shown = print_heading(measurement, summarise(measurement), console)
    if failed := failure_notes(measurement):
        console.print(Text("\n".join((*failed, ""))))
    if not measurement.timelines:
        return
    if load.verdict is Verdict.OVERLOADED:
        _print_overloaded(measurement, load, console)
    else:
        console.print(latencies_table(shown))
        console.print(Text(f"{_VERDICTS[load.verdict]}: {load.why}."))
        print_slow_bills(measurement, shown, console)
    console.print()
    _print_budgets(simulated, settings, console)
    console.print(Text(_counters(measurement, simulated)))


_VERDICTS = {
    Verdict.KEPT_UP: "It kept up",
    Verdict.OVERLOADED: "OVERLOADED",
    Verdict.UNSETTLED: "Unsettled, so the latencies may depend on the run's length",
}


def simulated_json(measurement: Measurement, simulated: Simulated, load: Load) -> dict[str, Any]:
    """As `bench --json`, and what only a simulation knows. No latencies under overload."""
    said = measurement_json(measurement)
    if load.verdict is Verdict.OVERLOADED:
        for summary in said["classes"].values():
            summary.update(dict.fromkeys(_LATENCIES))
    return said | {
        "load": asdict(load),
        "preemptions": simulated.preemptions,
        "steps": simulated.steps,
        "budgets": {
            "bin_s": simulated.bin_s,
            "replicas": [_columns(samples) for samples in simulated.budgets],
        },
    }


def _columns(samples: Sequence[BudgetSample]) -> dict[str, list[float]]:
    rows = [asdict(sample) for sample in samples]
    return {name: [round(row[name], 6) for row in rows] for name in (rows[0] if rows else ())}


def _print_overloaded(measurement: Measurement, load: Load, console: Console) -> None:
    console.print(Text(f"OVERLOADED: {load.why}.", style="bold red"))
    console.print(Text("The queue would grow for as long as this load goes on, so latencies are left out."))
    bill_s = slow_bill(measurement, ALL)
    if bill_s is None:
        return
    console.print()
    console.print(Text("What those who wait longest wait for", style="bold"))
    table = Table.grid(padding=(0, 1))
    for row in bill_rows(bill_s):
        table.add_row(row.what, f"{row.share:.0%}", row.bar, Text(row.budget, style="dim"))
    console.print(table)


def _print_budgets(simulated: Simulated, settings: Settings, console: Console) -> None:
    """One line a budget. Each column is a stretch of time, as high as the most in it."""
    replicas = len(simulated.budgets)
    end_s = max((ends[-1] for ends in simulated.step_ends_ns if len(ends)), default=0) / 1e9
    slots = settings.max_num_seqs * replicas

    def line(
        value: Callable[[BudgetSample], float], combine: Callable[[Iterable[float]], float]
    ) -> list[float]:
        each = [_resampled(simulated, replica, value, end_s) for replica in range(replicas)]
        return [combine(column) for column in zip(*each, strict=True)]

    tokens = line(lambda sample: sample.tokens_per_s, sum)
    running = line(lambda sample: sample.running, sum)
    usage = line(lambda sample: sample.kv_cache_usage, max)
    waiting = line(lambda sample: sample.waiting, sum)
    rows = (
        ("tokens", tokens, max(tokens), f"peak {max(tokens):,.0f} a second"),
        ("slots", running, slots, f"peak {max(running):,.0f} of {slots:,}"),
        ("KV", usage, 1.0, f"peak {max(usage):.0%}"),
        ("queue", waiting, max(waiting), f"peak {max(waiting):,.0f}"),
    )
    console.print(
        Text("Budgets over time", style="bold").append(f": 0 to {seconds(end_s)}", style="not bold")
    )
    for name, values, top, said in rows:
        console.print(Text(f"{name:<7}│{sparkline(values, top)}│ {said}"))


def _resampled(
    simulated: Simulated, replica: int, value: Callable[[BudgetSample], float], end_s: float
) -> list[float]:
    """The most of `value` in each of `COLUMNS` stretches; short runs repeat a bin."""
    columns = [0.0] * COLUMNS
    for sample in simulated.budgets[replica]:
        first = int(sample.at_s / end_s * COLUMNS)
        last = int((sample.at_s + 0.999 * simulated.bin_s) / end_s * COLUMNS)
        for column in range(first, min(last, COLUMNS - 1) + 1):
            columns[column] = max(columns[column], value(sample))
    return columns


def _counters(measurement: Measurement, simulated: Simulated) -> str:
    cached = sum(timeline.cached_tokens for timeline in measurement.timelines)
    prompts = sum(timeline.prompt_tokens for timeline in measurement.timelines)
    return (
        f"{simulated.steps:,} steps, {simulated.preemptions:,} preemptions, "
        f"{cached / prompts:.0%} of the prompt tokens found in the prefix cache"
    )
