"""Two servers beside each other, for a person.

(A, B) slices --found_of--> Comparison --print_comparison--> console        compare_page.py has the same words
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.core.measurement import ALL
from headrace.measure.compare import (
    FEWEST_PAIRS,
    Difference,
    LeftOut,
    Pairs,
    Verdict,
    differences,
    left_out,
    pairs_to_decide,
)
from headrace.measure.validity import check
from headrace.report.units import many, seconds

_STYLE = {
    Verdict.BETTER: "green",
    Verdict.WORSE: "red",
    Verdict.SAME: "",
    Verdict.INCONCLUSIVE: "yellow",
}
USEFUL_PAIRS = 5
MOST_NAMED = 3
LARGEST = 1000


@dataclass(frozen=True, slots=True)
class Comparison:
    """Slices of A and B, and what they come to."""

    pairs: Pairs
    found: Sequence[Difference]
    left_out: Sequence[LeftOut]
    invalid: Sequence[tuple[str, str]]
    """Which slice, as "pair 1, A", and why."""

    def count(self, verdict: Verdict) -> int:
        return sum(each.verdict is verdict for each in self.found)

    @property
    def is_worse(self) -> bool:
        """B, in some figure, or because it left a class without any answer."""
        return self.count(Verdict.WORSE) > 0 or any(
            each.side == "B" and each.requests for each in self.left_out
        )

    @property
    def is_of_one_server(self) -> bool:
        a, b = self.pairs[0]
        return (a.target, a.model) == (b.target, b.model)


def found_of(pairs: Pairs) -> Comparison:
    invalid = [
        (f"pair {number}, {side}", reason)
        for number, sides in enumerate(pairs, 1)
        for side, measurement in zip("AB", sides, strict=True)
        for reason in check(measurement).reasons
    ]
    return Comparison(pairs, differences(pairs), left_out(pairs), invalid)


def print_comparison(comparison: Comparison, console: Console) -> None:
    for line in invalid_lines(comparison, MOST_NAMED):
        console.print(Text("INVALID: ", style="bold red").append(line, style="default"))
    a, b = comparison.pairs[0]
    console.print(Text(f"A: {a.target}  {a.model}", style="bold"))
    console.print(Text(f"B: {b.target}  {b.model}", style="bold"))
    console.print(Text(what_was_sent(comparison)))
    console.print(Text(f"The first: {a.workload}"))
    console.print()
    if comparison.found:
        print_table(comparison.found, console)
        console.print()
    word, sentence = headline(comparison)
    console.print(Text(word, style="bold").append(f": {sentence}", style="not bold"))
    for note in notes(comparison):
        console.print(Text(note))


def what_was_sent(comparison: Comparison) -> str:
    pairs = comparison.pairs
    count = f"{len(pairs)} pairs of slices in turns (A B, B A, …)"
    if comparison.is_of_one_server:
        return f"{count}. A and B are one server, so each slice has other requests of the same kind."
    return f"{count}. Within a pair A and B were sent the same requests, each pair others."


def headline(comparison: Comparison) -> tuple[str, str]:
    """What may be said, as a word and a sentence."""
    better, worse = comparison.count(Verdict.BETTER), comparison.count(Verdict.WORSE)
    of = f"of {len(comparison.found)} figures"
    if better and worse:
        return "BETTER AND WORSE", f"B is better in {better} and worse in {worse} {of}."
    for verdict, count in ((Verdict.WORSE, worse), (Verdict.BETTER, better)):
        if count:
            return f"B IS {verdict.upper()}", f"in {count} {of}, {_surest(comparison, verdict)}."
    if comparison.is_worse:
        return "B IS WORSE", "it left requests of a class without any answer."
    same = comparison.count(Verdict.SAME)
    if same and same == len(comparison.found):
        return "THE SAME", f"all {same} figures are sure to differ by less than 2 %."
    if len(comparison.pairs) < FEWEST_PAIRS:
        return "TOO FEW PAIRS", _too_few(len(comparison.pairs))
    return "INCONCLUSIVE", f"no figure is sure to be better or worse; {same} {of} are the same."


def _too_few(pairs: int) -> str:
    return (
        f"{pairs} give ratios, and no interval: of so few their scatter is not known. --pairs {FEWEST_PAIRS} "
        f"gives one, --pairs {USEFUL_PAIRS} (the default) one that decides more."
    )


def _surest(comparison: Comparison, verdict: Verdict) -> str:
    said = [each for each in comparison.found if each.verdict is verdict]
    first = min(said, key=lambda each: each.p)
    name = first.figure if first.request_class == ALL else f"{first.request_class} {first.figure}"
    return f"the surest {name}, {ratio(first.ratio)} times ({between(first)})"


def notes(comparison: Comparison) -> Iterator[str]:
    """What a reader of the table should know before acting on it."""
    for each in comparison.left_out:
        due = f"none of {many(each.requests, 'request')}" if each.requests else "nothing, as nothing was due,"
        name = "requests" if each.request_class == ALL else each.request_class
        yield f"Not compared: {name}, of which {each.side} answered {due} in pair {each.pair}."
    found = comparison.found
    if not found or len(comparison.pairs) < FEWEST_PAIRS:
        return
    yield "95 % sure: of each ratio on its own. Better and worse hold among all figures together."
    if alone := sum(each.is_alone for each in found):
        differ = "differs by its" if alone == 1 else "differ by their"
        yield f"{alone} of {len(found)} figures {differ} own interval alone, as some do by chance."
    yield from _more_pairs(found)


def _more_pairs(found: Sequence[Difference]) -> Iterator[str]:
    """How many would decide half of those that enough of them might."""
    needed = sorted(count for each in found if (count := pairs_to_decide(each, len(found))) is not None)
    if needed:
        pairs = needed[(len(needed) - 1) // 2]
        decided = sum(count <= pairs for count in needed)
        yield (
            f"If pairs go on to scatter as here, about --pairs {pairs} would decide {decided} of the "
            f"{many(sum(each.verdict is Verdict.INCONCLUSIVE for each in found), 'inconclusive figure')}."
        )


def invalid_lines(comparison: Comparison, most: int) -> Iterator[str]:
    """Which slices say little of a server, and the first reasons."""
    invalid = comparison.invalid
    if not invalid:
        return
    slices = list(dict.fromkeys(name for name, _ in invalid))
    yield f"{len(slices)} of {2 * len(comparison.pairs)} slices, so the verdict is not to be relied on."
    for name, reason in invalid[:most]:
        yield f"{name}: {reason}"
    if len(invalid) > most:
        yield f"and {many(len(invalid) - most, 'more reason')} of the kind (--html and --json have all)"


def print_table(found: Sequence[Difference], console: Console) -> None:
    """Each class under its name, which may be of any length, in columns that are wide enough for all."""
    for name in dict.fromkeys(each.request_class for each in found):
        table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
        for column, width in _COLUMNS:
            justify = "left" if column in (_COLUMNS[0][0], _COLUMNS[-1][0]) else "right"
            table.add_column(column, justify=justify, no_wrap=True, min_width=width)
        for each in found:
            if each.request_class == name:
                table.add_row(*_cells(each), Text(each.verdict, style=_STYLE[each.verdict]))
        console.print(Text(name, style="bold"))
        console.print(table)


_COLUMNS = (("  figure", 17), ("A", 8), ("B", 8), ("B / A", 6), ("95 % sure", 15), ("B is", 12))


def _cells(each: Difference) -> tuple[str, ...]:
    return f"  {each.figure}", value(each, each.a), value(each, each.b), ratio(each.ratio), between(each)


def ratio(times: float) -> str:
    """Three digits that matter, from a thousandth to a thousand."""
    if times >= LARGEST:
        return f">{LARGEST}"
    if times <= 1 / LARGEST:
        return "<0.001"
    digits = 0 if times >= 99.95 else 1 if times >= 9.995 else 2 if times >= 0.9995 else 3
    return f"{times:.{digits}f}"


def between(each: Difference) -> str:
    if each.between is None:
        return "-"
    low, high = each.between
    return f"{ratio(low)} - {ratio(high)}"


def value(difference: Difference, amount: float) -> str:
    """Of a figure, in its unit."""
    if difference.figure == "answered":
        return f"{amount:.1%}"
    return f"{amount:.1f}" if difference.figure.endswith("/s") else seconds(amount)
