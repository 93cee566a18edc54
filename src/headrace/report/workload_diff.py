"""What shifted between two workloads, as a person reads it."""

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.report.units import many
from headrace.report.workload import features_json, tokens
from headrace.workload.features import Features
from headrace.workload.shifts import Comparison, Shift, Unit


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """Both sides' features, each shift with its probability, and the sentences."""
    return {
        "features": {"a": features_json(comparison.a), "b": features_json(comparison.b)},
        "shifts": [asdict(shift) | {"shifted": shift.shifted} for shift in comparison.shifts],
        "shifted": any(shift.shifted for shift in comparison.shifts),
        "consequences": list(comparison.consequences),
    }


def print_comparison(comparison: Comparison, names: tuple[str, str], console: Console) -> None:
    for letter, name, features in zip("AB", names, (comparison.a, comparison.b), strict=True):
        console.print(
            Text(f"{letter}  ", style="bold").append(
                f"{name}: {many(features.requests, 'request')}", style="not bold"
            )
        )
    console.print()
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("", no_wrap=True)
    for head in ("A", "B", "change", "by chance"):
        table.add_column(head, justify="right", header_style="bold", no_wrap=True)
    table.add_column("", no_wrap=True)
    for shift in comparison.shifts:
        table.add_row(*_row(shift), style="" if shift.shifted else "dim")
    for row in _loads(comparison.a, comparison.b):
        table.add_row(*row, style="dim")
    console.print(table)
    console.print()
    if not comparison.consequences:
        console.print(Text(_nothing(comparison)))
    for sentence in comparison.consequences:
        console.print(Text(sentence))


def _row(shift: Shift) -> tuple[str, ...]:
    if shift.unit is Unit.SHARE:
        a, b, change = f"{shift.a:.1%}", f"{shift.b:.1%}", f"{100 * (shift.b - shift.a):+.1f} points"
    else:
        show = tokens if shift.unit is Unit.TOKENS else _rate
        a, b, change = show(shift.a), show(shift.b), _change(shift.a, shift.b)
    chance = "?" if shift.probability is None else _probability(shift.probability)
    return shift.name, a, b, change, chance, "shifted" if shift.shifted else ""


def _loads(a: Features, b: Features) -> list[tuple[str, ...]]:
    """What a server has to do, which follows from the rows above: no test of their own."""
    rows = (
        ("prefill tokens/s", a.computed_tokens_per_s, b.computed_tokens_per_s),
        ("decode tokens/s", a.output_tokens_per_s, b.output_tokens_per_s),
        ("at once, mean", a.concurrency.mean, b.concurrency.mean),
        ("dispersion", a.timing.dispersion, b.timing.dispersion),
    )
    return [(name, tokens(of_a), tokens(of_b), _change(of_a, of_b), "", "") for name, of_a, of_b in rows]


def _rate(amount: float) -> str:
    return f"{amount:.3g}"


def _change(a: float, b: float) -> str:
    return f"{(b - a) / a:+.0%}" if a else ("" if not b else "new")


def _probability(probability: float) -> str:
    return (
        "< 0.0001"
        if probability < 0.0001
        else f"{probability:.4f}"
        if probability < 0.1
        else f"{probability:.2f}"
    )


def _nothing(comparison: Comparison) -> str:
    if any(shift.probability is None for shift in comparison.shifts):
        return "Too few requests to tell: take a longer workload."
    if any(shift.shifted for shift in comparison.shifts):
        return "What shifted changes who sends, not what a server has to do."
    return "Nothing shifted beyond chance by enough to matter: settings tuned for A suit B."
