"""A workload as a person reads it: what decides tuning, in numbers and in bars, within 80 columns."""

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from headrace.report.page import Table
from headrace.report.sparkline import sparkline
from headrace.report.units import many, seconds
from headrace.workload.features import ClassMix, Features, Groups, Lengths
from headrace.workload.outline import LengthBar, OverTime

COLUMNS = 78
BAR_WIDTH = 22
MOST_CLASSES_SHOWN = 12
TICKING = 0.5
"""With fewer instants than this share of the requests the clock has ticked, not the users."""


def features_json(features: Features) -> dict[str, Any]:
    """Names with their units; shares between 0 and 1."""
    return asdict(features) | {
        "load": {
            "prompt_tokens_per_s": features.prompt_tokens_per_s,
            "computed_tokens_per_s": features.computed_tokens_per_s,
            "output_tokens_per_s": features.output_tokens_per_s,
        },
        "percentile_method": "linear",
    }


def print_features(features: Features, console: Console) -> None:
    """Without the picture."""
    console.print(_rich(length_table(features)))
    console.print()
    listed = RichTable.grid(padding=(0, 2))
    for name, said in facts(features):
        listed.add_row(Text(name, style="bold"), Text(said))
    console.print(listed)
    if len(features.classes) > 1:
        console.print()
        console.print(_rich(class_table(features.classes)))


def _rich(table: Table) -> RichTable:
    shown = RichTable(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    shown.add_column(table.head[0], header_style="bold", overflow="ellipsis", max_width=20)
    for head in table.head[1:]:
        shown.add_column(head, justify="right", header_style="bold")
    for row in table.rows:
        shown.add_row(*map(Text, row))
    return shown


def length_table(features: Features) -> Table:
    rows = (("prompt", features.prompt), ("output", features.output))
    return Table(
        ("tokens", "mean", "P50", "P95", "P99", "most"), tuple((name, *_lengths(each)) for name, each in rows)
    )


def _lengths(lengths: Lengths) -> list[str]:
    return [
        tokens(each) for each in (lengths.mean, lengths.p50, lengths.p95, lengths.p99, float(lengths.most))
    ]


def tokens(amount: float) -> str:
    """Whole tokens; one digit more where a few would be lost."""
    return f"{amount:,.1f}" if amount < 10 and amount % 1 else f"{amount:,.0f}"


def facts(features: Features) -> list[tuple[str, str]]:
    timing, long, busy = features.timing, features.long_prompts, features.concurrency
    rate = (
        f"{timing.rate:.3g} requests a second over {seconds(timing.duration_s)}; at most {timing.peak_1s:,} "
        f"in a second and {timing.peak_60s:,} in a minute"
    )
    burstiness = (
        f"gaps have CV {timing.gap_cv:.2f}, counts a second dispersion {timing.dispersion:.2f}, "
        f"neighbouring gaps correlation {timing.autocorrelation:.2f} (Poisson: 1, 1, 0)"
    )
    load = (
        f"{features.prompt_tokens_per_s:,.0f} prompt and {features.output_tokens_per_s:,.0f} output tokens "
        "a second"
    )
    long_prompts = (
        f"{long.share:.1%} have more than {long.threshold_tokens:,} tokens; they hold "
        f"{long.token_share:.1%} of all prompt tokens"
    )
    at_once = (
        f"{busy.mean:,.1f} in the mean and {busy.peak:,} at the peak, if a token of an answer takes "
        f"{seconds(busy.token_s)} and nobody waits"
    )
    said = [
        ("rate", rate),
        ("burstiness", burstiness),
        ("load", load),
        ("long prompts", long_prompts),
        ("at once", at_once),
        ("reuse", _reuse(features)),
    ]
    if tenants := features.tenants:
        said.append(("tenants", f"{tenants.count:,}; the largest sends {tenants.top_share:.1%}"))
    if features.sessions:
        said.append(("sessions", _sessions(features.sessions, features.waiting_share)))
    if features.left_out:
        said.append(("left out", f"{many(features.left_out, 'row')} for no output, or failed"))
    return said


def _sessions(sessions: Groups, waiting_share: float) -> str:
    return (
        f"{sessions.count:,}, of {sessions.mean_requests:.1f} requests; {waiting_share:.1%} of all requests "
        "wait for the answer before"
    )


def ticking(features: Features) -> str:
    """A warning where many requests share an instant; else nothing."""
    timing = features.timing
    if features.requests < 2 or timing.instants > TICKING * features.requests:
        return ""
    return (
        f"Only {many(timing.instants, 'different instant')} for {many(features.requests, 'request')}: the "
        "clock ticked, and the bursts are its own. `workload convert --spread` spreads them."
    )


def _reuse(features: Features) -> str:
    if features.reuse is None:
        return "unknown: the workload does not say what prompts share"
    return (
        f"{features.reuse.block_share:.1%} of the prefix blocks came before, "
        f"{features.reuse.token_share:.1%} of the prompt tokens; "
        f"{features.computed_tokens_per_s:,.0f} tokens a second are left to compute"
    )


def class_table(classes: tuple[ClassMix, ...]) -> Table:
    rows = tuple(
        (
            mix.name,
            f"{mix.share:.1%}",
            f"{mix.token_share:.1%}",
            tokens(mix.prompt.p50),
            tokens(mix.prompt.p95),
            tokens(mix.output.p50),
            tokens(mix.output.p95),
        )
        for mix in classes[:MOST_CLASSES_SHOWN]
    )
    return Table(("class", "requests", "prompt tokens", "prompt P50", "P95", "output P50", "P95"), rows)


def print_outline(
    over_time: OverTime, prompts: tuple[LengthBar, ...], outputs: tuple[LengthBar, ...], console: Console
) -> None:
    """The picture: requests over time, and lengths from one power of two to the next."""
    total = over_time.total()
    console.print()
    console.print(
        Text("Requests over time", style="bold").append(
            f": a column is {seconds(over_time.bin_s)}, the highest {max(total):.3g} a second",
            style="not bold",
        )
    )
    console.print(Text(f"│{sparkline(total, max(total))}│"))
    console.print()
    table = RichTable(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("tokens", justify="right", header_style="bold", no_wrap=True)
    for head in ("prompts", "outputs"):
        table.add_column(head, header_style="bold", no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
    by_top = {bar.up_to: bar for bar in prompts}, {bar.up_to: bar for bar in outputs}
    highest = max(bar.share for bar in (*prompts, *outputs))
    for up_to in sorted({*by_top[0], *by_top[1]}):
        cells = [_bar(bars.get(up_to), highest) for bars in by_top]
        table.add_row(f"to {up_to:,}", *cells[0], *cells[1])
    console.print(table)


def _bar(bar: LengthBar | None, highest: float) -> tuple[str, str]:
    if bar is None or not bar.share:
        return "", ""
    eighths = max(1, round(bar.share / highest * BAR_WIDTH * 8))
    return "█" * (eighths // 8) + ("", *"▏▎▍▌▋▊▉")[eighths % 8], f"{bar.share:.1%}"
