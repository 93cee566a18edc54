"""What a search found, for a terminal: 80 columns, forty to fifty lines, the verdict first, the command last.

Tuning --tuning_text--> verdict, what it rests on, before and after, where the time went, what to change

Curves, trials and predictions one by one are on the page (`report.tuning.page`).
"""

import re
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from math import inf

from headrace.core.bill import CAUSES
from headrace.core.trial import Verdict
from headrace.report.bill import WORDS
from headrace.report.tuning.changes import Change, changes_of, price_of, stays_because, undone_words, why_of
from headrace.report.tuning.figures import (
    Compared,
    Figure,
    Row,
    Side,
    compared,
)
from headrace.report.tuning.grounds import goal_words, remarks_of, safety_words, searched_words
from headrace.report.tuning.headline import headline
from headrace.report.tuning.moves import worst_move
from headrace.report.tuning.pools import pool_words
from headrace.report.tuning.tuning import Tuning
from headrace.report.tuning.words import (
    after_word,
    load_words,
    named_words,
    twin_words,
    value_words,
)
from headrace.report.units import many, seconds

WIDTH = 80
MOST_ROWS = 9
"""Of latencies."""
MOST_BILL_ROWS = 4
WORTH_A_LINE = 0.02
"""Of a bill, what is left of it after those rows."""
_LABEL = 10
_NO_BREAK = "\N{NO-BREAK SPACE}"


def tuning_text(tuning: Tuning) -> str:
    """The whole report, without a line that is too long or ends in spaces."""
    sides = compared(tuning)
    said = headline(tuning, sides)
    parts = [
        _filled(f"{said.word}: {said.sentence}"),
        "\n".join(_grounds(tuning, sides.before)),
        "\n".join(_table(tuning, sides)),
        "\n".join(_bill(sides)),
        "\n".join(_answer(tuning, sides)),
        "\n".join(_commands(tuning)),
    ]
    whole = "\n\n".join(part for part in parts if part)
    shown = "".join(char if char.isprintable() or char == "\n" else "?" for char in whole)
    return "\n".join(line.rstrip() for line in shown.split("\n"))


# --- what it rests on --------------------------------------------------------------------------


def _grounds(tuning: Tuning, before: Side | None) -> Iterator[str]:
    yield _labelled("Server", tuning.server.name)
    yield _labelled("Goal", goal_words(tuning))
    yield _labelled("Workload", tuning.traffic.said)
    kind = tuning.traffic.kind
    if kind:
        yield _labelled("", f"{kind}: {tuning.traffic.kind_why}" if tuning.traffic.kind_why else kind)
    yield _labelled("Safety", "; ".join(safety_words(tuning, before)))
    yield _labelled("Searched", searched_words(tuning))


# --- before and after --------------------------------------------------------------------------


def _table(tuning: Tuning, sides: Compared) -> Iterator[str]:
    before, after = sides.before, sides.after
    if before is None:
        return
    heads = f"{_runs('start', before):>16}{_runs(after_word(tuning), after):>17}"
    yield f"{_cut(f'At {load_words(tuning, before.load)}', 22):22}{heads}"
    last = None
    for row in _shown(sides.rows):
        name = "" if row.request_class == last else _cut(row.request_class or "all", 9)
        last = row.request_class
        yield f"  {name:10}{row.label:10}{_cells(tuning, row)}"
    yield f"  {'':10}{'answers/s':10}{_amounts(*sides.throughput_rps)}"
    if before.failed or (after and after.failed):
        lost = f"{before.failed}/{before.due}"
        kept = f"{after.failed}/{after.due}" if after else ""
        yield f"  {'':10}{'failed':10}{lost:>16}{kept:>17}"
    yield from _fell_behind(tuning, before, after)


def _fell_behind(tuning: Tuning, before: Side, after: Side | None) -> Iterator[str]:
    for word, side in (("start", before), (after_word(tuning), after)):
        if side is not None and side.fell_behind:
            yield f"  Under the {word} the queue grew for as long as requests came."


def _runs(word: str, side: Side | None) -> str:
    return "" if side is None else f"{word}, {many(len(side.grades), 'run')}"


def _shown(rows: Sequence[Row]) -> Sequence[Row]:
    """What was asked for, and the P95 TTFT of every class; never more than there is room for."""
    return [row for row in rows if row.objective or row.label == "P95 TTFT"][:MOST_ROWS]


def _cells(tuning: Tuning, row: Row) -> str:
    before = _figure(row.before)
    after = "" if row.after is None else _figure(row.after)
    limit = "" if tuning.goal.is_relative and row.after is None else _limit(row)
    return f"{before:>16}{after:>17}{_change(row.before, row.after):>7}{limit}"


def _figure(figure: Figure | None) -> str:
    if figure is None:
        return "-"
    if figure.value == inf:
        return "more failed"
    return f"{seconds(figure.value)}{_give_or_take(figure)}"


def _give_or_take(figure: Figure) -> str:
    """Half the interval, as a share below 50 % and as a factor beyond."""
    if figure.interval is None or not figure.value:
        return ""
    factor = figure.interval[1] / figure.value
    return f" ±{factor - 1:.0%}" if factor < 1.5 else f" x÷{factor:.1f}" if factor < 100 else " x÷>99"


def _limit(row: Row) -> str:
    if row.objective is None:
        return ""
    last = row.after or row.before
    is_met = last is not None and last.value < row.objective.limit_s
    return f" <{seconds(row.objective.limit_s):>8} {'met' if is_met else 'MISSED'}"


def _change(before: Figure | None, after: Figure | None) -> str:
    """A factor where it is one worth the name, else per cent."""
    if not before or not after or not before.value or not after.value:
        return ""
    ratio = after.value / before.value
    if not 1e-3 < ratio < 1e3:
        return ""
    return (
        f"{ratio - 1:+.0%}"
        if 1 / 1.5 < ratio < 1.5
        else f"÷{1 / ratio:.1f}"
        if ratio < 1
        else f"x{ratio:.1f}"
    )


def _amounts(before: Figure | None, after: Figure | None) -> str:
    def cell(figure: Figure | None) -> str:
        return "" if figure is None else f"{figure.value:.4g}{_give_or_take(figure)}"

    return f"{cell(before):>16}{cell(after):>17}{_change(before, after):>7}"


def _bill(sides: Compared) -> Iterator[str]:
    bills = sides.main_bill
    if bills is None:
        return
    was, now = bills.before, bills.after
    where = ", in the twin" if bills.is_twin else ""
    name = f"{_cut(bills.request_class, 20)} " if bills.request_class else ""
    yield f"What the slowest 5% of {name}requests wait for, on average{where}"
    largest = {cause: max(was[cause], now[cause] if now else 0.0) for cause in CAUSES}
    shown = sorted((cause for cause in CAUSES if largest[cause] > 0), key=lambda cause: -largest[cause])
    for cause in shown[:MOST_BILL_ROWS]:
        amounts = f"{seconds(was[cause]):>9}{'' if now is None else f'{seconds(now[cause]):>11}'}"
        yield f"  {WORDS[cause].what:28}{WORDS[cause].budget:29}{amounts}"
    rest = [sum(bill[cause] for cause in shown[MOST_BILL_ROWS:]) for bill in (was, now) if bill]
    whole = [sum(bill.values()) for bill in (was, now) if bill]
    if sum(rest) > WORTH_A_LINE * sum(whole):
        yield f"  {'everything else':57}{_in_columns(rest)}"
    yield f"  {'in all':57}{_in_columns(whole)}"


def _in_columns(amounts_s: Sequence[float]) -> str:
    return "".join(f"{seconds(each):>{9 + 2 * place}}" for place, each in enumerate(amounts_s))


# --- the answer --------------------------------------------------------------------------------


def _answer(tuning: Tuning, sides: Compared) -> Iterator[str]:
    found = tuning.conclusion
    if found is None:
        return
    changes = changes_of(tuning)
    if changes:
        word = "Change" if found.verdict is Verdict.IMPROVED else "Candidate"
        yield _labelled(word, "; ".join(_from_to(change) for change in changes))
        why = (changes[0].does, undone_words(changes), why_of(sides.main_bill))
        yield _labelled("Why", " ".join(filter(None, why)))
    if found.verdict is Verdict.UNREACHABLE and sides.after is not None and not changes:
        yield _labelled("Nearest", named_words(sides.after.overrides))
    if found.verdict is Verdict.NOTHING_BETTER and (why := stays_because(tuning, sides.main_bill)):
        yield _labelled("Why", why)
    if found.verdict is Verdict.IMPROVED:
        worse = price_of(sides)
        yield _labelled("Price", "; ".join(worse) or "no latency grew by more than 5 %")
    if tuning.explanation is not None and (reflex := worst_move(tuning.explanation)):
        yield _labelled("Not this", reflex)
    if tuning.pools is not None and tuning.pools.found.pays_from is not None:
        yield _labelled("Pools", pool_words(tuning))
    if found.predictions:
        yield _labelled("Twin", twin_words(found.predictions))
    for remark in _remarks(tuning, sides.before):
        yield _labelled("Note", remark)


def _from_to(change: Change) -> str:
    return (
        f"{change.name} {value_words(change.name, change.before)} -> {value_words(change.name, change.after)}"
    )


def _remarks(tuning: Tuning, before: Side | None) -> Iterator[str]:
    remarks = list(remarks_of(tuning, before))
    more = f" ({len(remarks) - 1} more on the page)" if len(remarks) > 1 else ""
    yield from (f"{remark}{more}" for remark in remarks[:1])


def _commands(tuning: Tuning) -> Iterator[str]:
    server, found = tuning.server, tuning.conclusion
    advice = tuning.advice
    if found is not None and found.recommended:
        yield "Command line:" if server.restarts else "Start it like this; it was left as it is:"
        yield _command(server.recommended)
        for heading, command in server.also:
            yield f"{heading}:"
            yield _command(command)
    elif server.restarts or advice is None:
        yield "Command line, unchanged:"
        yield _command(server.command)
    if advice is not None and (found is None or found.verdict is not Verdict.IMPROVED):
        yield "Not proven, the best in the twin:"
        yield _command(advice.command)
    is_open = tuning.is_interrupted or (found is not None and found.verdict is Verdict.INCONCLUSIVE)
    if is_open and server.restarts and tuning.resume:
        yield "To go on from here, with nothing measured twice:"
        yield _command(tuning.resume)


def _command(command: str) -> str:
    """One line, or a flag to a line with backslashes where it would be too long."""
    whole = f"  {command}"
    if len(whole) <= WIDTH:
        return whole
    try:
        words = shlex.split(command)
    except ValueError:
        return whole
    lines: list[list[str]] = [[]]
    for word in words:
        if word.startswith("-") and lines[-1]:
            lines.append([])
        lines[-1].append(shlex.quote(word))
    return " \\\n".join(f"  {'    ' if place else ''}{' '.join(line)}" for place, line in enumerate(lines))


# --- words on lines ----------------------------------------------------------------------------


def _labelled(label: str, text: str) -> str:
    return _filled(text, f"{label:{_LABEL}}", " " * _LABEL)


def _filled(text: str, first: str = "", others: str = "") -> str:
    whole = re.sub(r"(\d) (m?s\b|%|MiB|GiB)", rf"\1{_NO_BREAK}\2", text)  # a number stays with its unit
    filled = textwrap.fill(
        whole, WIDTH, initial_indent=first, subsequent_indent=others, break_on_hyphens=False
    )
    return filled.replace(_NO_BREAK, " ")


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
