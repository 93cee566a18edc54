"""Many simulations in one table: those that kept up first, and among them the shortest P95 TTFT.

[Swept, ...] --in_order--> rows --print_sweep--> 80 columns
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.core.ports import Overrides
from headrace.report.units import seconds
from headrace.sim.overload import Verdict


@dataclass(frozen=True, slots=True)
class Swept:
    """What one choice of settings came to. Latencies are None under overload, where they mean nothing."""

    overrides: Overrides
    verdict: Verdict | None
    """None: it could not be simulated, as `why` says."""
    why: str
    ttft_p50_s: float | None = None
    ttft_p95_s: float | None = None
    itl_mean_s: float | None = None
    output_tokens_per_s: float = 0.0
    preemptions: int = 0


_ORDER = [Verdict.KEPT_UP, Verdict.UNSETTLED, Verdict.OVERLOADED, None]
_SAID = {
    Verdict.KEPT_UP: "kept up",
    Verdict.UNSETTLED: "unsettled",
    Verdict.OVERLOADED: "OVERLOADED",
    None: "no result",
}


def in_order(swept: Sequence[Swept]) -> list[Swept]:
    """The best first; equals stay as they were."""
    return sorted(swept, key=_rank)


def print_sweep(swept: Sequence[Swept], console: Console) -> None:
    names = list(swept[0].overrides)
    console.print(Text(f"{len(swept)} simulations over {' x '.join(names)}", style="bold"))
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    table.add_column("settings", justify="right")
    for title in ("TTFT P50", "P95", "ITL mean", "tokens/s", "preempted"):
        table.add_column(title, justify="right")
    table.add_column("load")
    for row in in_order(swept):
        table.add_row(
            " x ".join(map(str, row.overrides.values())),
            *(_time(value) for value in (row.ttft_p50_s, row.ttft_p95_s, row.itl_mean_s)),
            f"{row.output_tokens_per_s:,.0f}" if row.verdict else "-",
            f"{row.preemptions:,}" if row.verdict else "-",
            _SAID[row.verdict],
        )
    console.print(table)
    for row in in_order(swept):
        if row.verdict is None:
            console.print(Text(f"{_named(row.overrides)}: {row.why}"))


def sweep_json(swept: Sequence[Swept]) -> list[dict[str, Any]]:
    return [
        {
            "settings": row.overrides,
            "verdict": row.verdict,
            "why": row.why,
            "ttft_p50_s": row.ttft_p50_s,
            "ttft_p95_s": row.ttft_p95_s,
            "itl_mean_s": row.itl_mean_s,
            "output_tokens_per_s": round(row.output_tokens_per_s, 3),
            "preemptions": row.preemptions,
        }
        for row in in_order(swept)
    ]


def _rank(row: Swept) -> tuple[int, float]:
    at_p95 = row.ttft_p95_s
    return _ORDER.index(row.verdict), -row.output_tokens_per_s if at_p95 is None else at_p95


def _time(value_s: float | None) -> str:
    return "-" if value_s is None else seconds(value_s)


def _named(overrides: Overrides) -> str:
    return ", ".join(f"{name} {value}" for name, value in overrides.items())
