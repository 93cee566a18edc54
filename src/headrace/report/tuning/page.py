"""A search as one HTML page: a manager reads its top, an engineer checks the rest.

Tuning --tuning_page--> verdict and tiles | before and after | bills | what to change | the twin's picture |
                        every run | workload, safety, how to repeat it

The sentences are those of the terminal (`report.tuning.text`); what the terminal has no room for is here.
"""

from collections.abc import Callable, Iterator
from math import inf

from headrace import __version__
from headrace.core.bill import CAUSES
from headrace.core.conclusion import LeverFound
from headrace.core.trial import Verdict
from headrace.report.bill import WORDS
from headrace.report.page import Lead, Section, Table, Tile, Tone, page
from headrace.report.tuning.changes import changes_of, price_of, stays_because, why_of
from headrace.report.tuning.charts import bill_bars
from headrace.report.tuning.figures import Bill, Bills, Compared, Figure, Row, Side, compared
from headrace.report.tuning.grounds import goal_words, remarks_of
from headrace.report.tuning.headline import headline, start_carries, thousand_costs
from headrace.report.tuning.page_runs import run_sections
from headrace.report.tuning.page_twin import twin_sections
from headrace.report.tuning.tuning import Tuning
from headrace.report.tuning.words import (
    after_word,
    load_words,
    named_words,
    rate_words,
    sentence,
    settings_words,
    time_words,
    value_words,
)
from headrace.report.units import seconds

_TONES = {Verdict.IMPROVED: Tone.GOOD, Verdict.NOTHING_BETTER: Tone.GOOD, Verdict.UNREACHABLE: Tone.BAD}
WIDEST = 10.0
"""Factor from a figure to the end of its interval, beyond which the interval tells nothing."""
GLOSSARY = (
    "TTFT: time to first token, from when a request was due. ITL: time between two tokens of an answer. P95: "
    "95 of 100 are at most this long. Load 1 is the workload's own rate. Ratio: a measured percentile by its "
    "limit, below 1 it is met. The twin: the same scheduler in virtual time."
)


def tuning_page(tuning: Tuning) -> str:
    sides = compared(tuning)
    sections = [
        *_compared(tuning, sides),
        *_bills(tuning, sides),
        *_answer(tuning, sides),
        *twin_sections(tuning),
        *run_sections(tuning, sides.before),
    ]
    return page(
        f"headrace tune: {tuning.server.name}",
        goal_words(tuning),
        tuple(sections),
        f"headrace {__version__}. {GLOSSARY}",
        _lead(tuning, sides),
    )


def _lead(tuning: Tuning, sides: Compared) -> Lead:
    said = headline(tuning, sides)
    found = tuning.conclusion
    tone = Tone.BAD if found is None else _TONES.get(found.verdict, Tone.PLAIN)
    changes = changes_of(tuning) if found is not None and found.verdict is Verdict.IMPROVED else []
    matters = f" What does it: {changes[0].does[:1].lower()}{changes[0].does[1:]}" if changes else ""
    return Lead(said.word, f"{sentence(said.sentence)}{matters}", tone, tuple(_tiles(tuning, sides)))


def _tiles(tuning: Tuning, sides: Compared) -> Iterator[Tile]:
    worst = sides.worst
    if worst is not None and worst.before is not None and worst.objective is not None:
        limit = "" if tuning.goal.is_relative else f"limit {seconds(worst.objective.limit_s)}"
        yield Tile(f"{worst.label}, {worst.request_class or 'all'}", _pair(worst.before, worst.after), limit)
    found = tuning.conclusion
    if found is not None and tuning.goal.seeks_capacity:
        carried = [start_carries(found), *((found.contender_bracket.met,) if found.contender else ())]
        loads = ["none" if load is None else load_words(tuning, load) for load in carried]
        is_twins = carried[0] != found.baseline_bracket.met
        is_at_limits = sides.after is not None and sides.after.missed > 0
        met = "highest that was met on average" if is_at_limits else "highest that was met"
        yield Tile(
            "Load at the limits" if is_at_limits else "Load within every limit",
            " → ".join(dict.fromkeys(loads)),
            f"{met}; the start's in the twin" if is_twins else met,
        )
    before, after = sides.throughput_rps
    if before:
        now = f" → {rate_words(after.value)}" if after else ""
        yield Tile("Requests a second", f"{rate_words(before.value)}{now}", "answered, at the load compared")
    price = thousand_costs(tuning)
    if price:
        yield Tile(
            "A thousand requests", f"{price[0]:.3g} → {price[1]:.3g}", "at capacity, in the price's money"
        )


def _pair(before: Figure, after: Figure | None) -> str:
    return f"{time_words(before.value)}{'' if after is None else f' → {time_words(after.value)}'}"


# --- before and after --------------------------------------------------------------------------


def _compared(tuning: Tuning, sides: Compared) -> Iterator[Section]:
    before, after = sides.before, sides.after
    if before is None:
        return
    now = after_word(tuning)
    runs = f"Start: {_runs(before)}."
    if after is not None:
        runs += f" {now.capitalize()}: {_runs(after)}, its settings {named_words(after.overrides)}."
    cells = [_row(tuning, row) for row in sides.rows] + _total_rows(before, after, sides)
    fell = tuple(
        f"Under the {word} the queue grew for as long as requests came: its waits tell how long the run was."
        for word, side in (("start", before), (now, after))
        if side and side.fell_behind
    )
    head = ("class", "figure", "start", "95 % sure", now, "95 % sure", "change", "limit", "met")
    yield Section(
        f"{'The start' if after is None else 'Before and after'}, at {load_words(tuning, before.load)}",
        sentences=(f"{runs} Intervals are of the mean over runs, from what repeated runs differ by.", *fell),
        table=_filled(Table(head, tuple(cells), frozenset({0, 1, 8}))),
    )


def _runs(side: Side) -> str:
    return "1 run" if len(side.grades) == 1 else f"{len(side.grades)} runs"


def _row(tuning: Tuning, row: Row) -> tuple[str, ...]:
    last = row.after or row.before
    is_asked = row.objective is not None and not (tuning.goal.is_relative and row.after is None)
    limit = row.objective.limit_s if row.objective and is_asked else None
    return (
        row.request_class or "all",
        row.label,
        *_cells(row.before),
        *_cells(row.after),
        _change(row.before, row.after),
        "" if limit is None else f"< {seconds(limit)}",
        "" if limit is None or last is None else "yes" if last.value < limit else "no",
    )


def _filled(table: Table) -> Table:
    """Without the columns in which nothing stands."""
    kept = [at for at in range(len(table.head)) if any(row[at] for row in table.rows)]
    return Table(
        tuple(table.head[at] for at in kept),
        tuple(tuple(row[at] for at in kept) for row in table.rows),
        frozenset(place for place, at in enumerate(kept) if at in table.texts),
    )


def _cells(figure: Figure | None) -> tuple[str, str]:
    if figure is None:
        return "", ""
    return time_words(figure.value), _between(figure, seconds)


def _between(figure: Figure, words: Callable[[float], str]) -> str:
    if figure.interval is None:
        return ""
    low, high = figure.interval
    return f"{words(low)} to {words(high)}" if high < WIDEST * figure.value else "runs differ too much"


def _total_rows(before: Side, after: Side | None, sides: Compared) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for label, (was, now) in (
        ("requests/s", sides.throughput_rps),
        ("output tokens/s", sides.output_tokens_per_s),
    ):
        rows.append(("all", label, *_amount(was), *_amount(now), _change(was, now), "", ""))
    lost = f"{after.failed:,} of {after.due:,}" if after else ""
    rows.append(("all", "failed", f"{before.failed:,} of {before.due:,}", "", lost, "", "", "", ""))
    return rows


def _amount(figure: Figure | None) -> tuple[str, str]:
    return ("", "") if figure is None else (f"{figure.value:.4g}", _between(figure, "{:.4g}".format))


def _change(before: Figure | None, after: Figure | None) -> str:
    if not before or not after or not before.value or inf in (before.value, after.value):
        return ""
    return f"x {after.value / before.value:.2f}"


# --- the bills ---------------------------------------------------------------------------------


def _bills(tuning: Tuning, sides: Compared) -> Iterator[Section]:
    bills = sides.bills
    if not bills:
        return
    now = after_word(tuning)
    where = (
        "This server keeps no bills, so these are the twin's, of the same runs."
        if bills[0].is_twin
        else "Measured by the server, request by request."
    )
    yield Section(
        "What the slowest 5 % of each class waited for",
        sentences=(
            "Every moment without a first token is a wait for one budget, or the request's own work. "
            + where,
        ),
        parts=tuple(_bill(each, now) for each in bills),
    )


def _bill(bills: Bills, now: str) -> Section:
    drawn: dict[str, Bill] = {"start": bills.before} | ({now: bills.after} if bills.after else {})
    causes = [cause for cause in CAUSES if any(bill[cause] > 0 for bill in drawn.values())]
    causes.sort(key=lambda cause: -max(bill[cause] for bill in drawn.values()))
    rows = tuple(
        (WORDS[cause].what, WORDS[cause].budget, *(seconds(bill[cause]) for bill in drawn.values()))
        for cause in causes
    )
    total = ("in all", "", *(seconds(sum(bill.values())) for bill in drawn.values()))
    why = why_of(bills)
    return Section(
        bills.request_class or "all",
        sentences=(why,) if why else (),
        charts=(bill_bars("Seconds to the first token, by what they were spent on", drawn),),
        table=Table(("wait", "budget", *drawn), (*rows, total), frozenset({0, 1})),
    )


# --- the answer --------------------------------------------------------------------------------


def _answer(tuning: Tuning, sides: Compared) -> Iterator[Section]:
    found = tuning.conclusion
    if found is None:
        return
    changes = changes_of(tuning)
    table = Table(
        ("setting", "start", "to", "what it does", "undone alone, in the twin"),
        tuple(
            (
                change.name,
                value_words(change.name, change.before),
                value_words(change.name, change.after),
                change.does,
                change.undone,
            )
            for change in changes
        ),
        frozenset({0, 3, 4}),
    )
    is_proven = found.verdict is Verdict.IMPROVED
    yield Section(
        "What to change" if is_proven else "The best candidate, not proven" if changes else "What to change",
        sentences=tuple(_answer_sentences(tuning, sides)),
        table=table if changes else None,
        commands=tuple(_commands(tuning)),
    )
    if is_proven:
        price = price_of(sides) or ["nothing: no latency grew by more than 5 %"]
        yield Section("What it costs", items=tuple(f"{each[:1].upper()}{each[1:]}." for each in price))
    if found.levers:
        yield _levers(found.levers)
    remarks = tuple(f"{remark[:1].upper()}{remark[1:]}." for remark in remarks_of(tuning, sides.before))
    if remarks:
        yield Section("To be kept in mind", items=remarks)


def _answer_sentences(tuning: Tuning, sides: Compared) -> Iterator[str]:
    found, server = tuning.conclusion, tuning.server
    if found is None:
        return
    if not found.recommended:
        yield "Nothing: the command line stays as it is."
        if found.verdict is Verdict.NOTHING_BETTER:
            yield stays_because(tuning, sides.main_bill)
    elif not server.restarts:
        yield "The server was measured and left as it is. Start it like this when it suits you."
    if tuning.advice is not None and not found.recommended:
        yield (
            f"Not proven by a run: in the twin {settings_words(tuning.advice.overrides)} would be the best."
        )


def _commands(tuning: Tuning) -> Iterator[str]:
    found, server = tuning.conclusion, tuning.server
    if found is not None and found.recommended:
        yield server.recommended
        for heading, command in server.also:
            yield f"# {heading}\n{command}"
    else:
        yield server.command
        if tuning.advice is not None:
            yield f"# not proven\n{tuning.advice.command}"


def _levers(levers: tuple[LeverFound, ...]) -> Section:
    rows = tuple(
        (each.name, named_words(each.overrides), each.reason, "kept" if each.is_kept else "left", each.why)
        for each in levers
    )
    return Section(
        "Further levers, each switched alone",
        table=Table(
            ("lever", "setting", "why it was tried", "then", "because"), rows, frozenset({0, 1, 2, 3, 4})
        ),
    )
