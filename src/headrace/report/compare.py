"""Two servers beside each other, for a person."""

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.core.measurement import Measurement
from headrace.measure.compare import Difference, Verdict
from headrace.report.trust import print_validity
from headrace.report.units import seconds

_STYLE = {
    Verdict.BETTER: "green",
    Verdict.WORSE: "red",
    Verdict.SAME: "",
    Verdict.INCONCLUSIVE: "yellow",
}


def print_comparison(
    pairs: Sequence[tuple[Measurement, Measurement]], found: Sequence[Difference], console: Console
) -> None:
    a, b = pairs[0]
    console.print(Text(f"A: {a.target}  {a.model}", style="bold"))
    console.print(Text(f"B: {b.target}  {b.model}", style="bold"))
    console.print(Text(f"{len(pairs)} slices of each, in turns, the same requests: {a.workload}"))
    console.print()
    for measurement in (each for pair in pairs for each in pair):
        print_validity(measurement, console)
    console.print(_table(found))
    counts = Counter(each.verdict for each in found)
    said = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    console.print(Text(f"B beside A: {said or 'nothing to compare'}. Intervals are of 95 % each."))
    if alone := sum(each.is_alone for each in found):
        console.print(
            Text(
                f"{alone} of {len(found)} figures differ by their own interval alone, as some do by chance: "
                "more --pairs decide."
            )
        )


def _table(found: Sequence[Difference]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
    for column in ("class", "figure", "A", "B", "B / A", "between", "B is"):
        left = column in ("class", "figure", "B is")
        table.add_column(column, justify="left" if left else "right", no_wrap=True)
    last = ""
    for each in found:
        low, high = each.between
        table.add_row(
            Text(each.request_class if each.request_class != last else ""),
            each.figure,
            _value(each, each.a),
            _value(each, each.b),
            f"{each.ratio:.3f}",
            f"{low:.2f} - {high:.2f}",
            Text(each.verdict, style=_STYLE[each.verdict]),
        )
        last = each.request_class
    return table


def _value(difference: Difference, value: float) -> str:
    if difference.figure == "answered":
        return f"{value:.1%}"
    return f"{value:.1f}" if difference.figure.endswith("/s") else seconds(value)
