"""What one would try first, and why it is not the answer here: beside the start and beside the answer.

ObviousMove + Explanation --move_words--> a sentence | --worst_move--> the one to be warned of
"""

from collections.abc import Mapping
from math import inf

from headrace.core.bill import Cause
from headrace.core.conclusion import Explanation, ObviousMove
from headrace.core.grade import Attained, Grade
from headrace.core.trial import NoResult
from headrace.report.bill import WORDS
from headrace.report.tuning.words import time_words, who
from headrace.report.units import seconds

WORSE = 1.05
"""Times the start's worst ratio, from which a move is called worse."""
ENDLESS = 99.0
"""Times, beyond which a queue grows for as long as requests come."""


def move_words(move: ObviousMove, explanation: Explanation) -> str:
    """The objective that suffers most beside the answer, and the wait that grew most."""
    unsafe = f" Unsafe: {move.unsafe}." if move.unsafe else ""
    if isinstance(move.grade, NoResult):
        return f"No result: {move.grade.cause}.{unsafe}"
    if isinstance(explanation.answer, NoResult):
        return unsafe.strip()
    pairs = [
        (a, b) for a, b in zip(move.grade.attained, explanation.answer.attained, strict=False) if b.value_s
    ]
    if not pairs:
        return unsafe.strip()
    worst, own = max(pairs, key=lambda pair: pair[0].value_s / pair[1].value_s)
    said = f"{_latency(worst)} {time_words(worst.value_s)}; with the answer {time_words(own.value_s)}."
    return f"{said}{_grown(move.grade, explanation.answer, worst.request_class)}{unsafe}"


def beside_start(move: ObviousMove, explanation: Explanation) -> str:
    """`x 2.3`: so many times as far from the limits as the start."""
    factor = _factor(move, explanation)
    if factor is None:
        return "no result"
    if factor > ENDLESS:
        return "a queue without end"
    return "the same" if 1 / WORSE < factor < WORSE else f"x {factor:.2f}"


def worst_move(explanation: Explanation) -> str:
    """The move that makes most worse beside the start, in one sentence; empty where none does."""
    moves = [(move, factor) for move in explanation.obvious if (factor := _factor(move, explanation))]
    if not moves:
        return ""
    move, factor = max(moves, key=lambda each: each[1])
    if factor < WORSE or isinstance(move.grade, NoResult) or isinstance(explanation.start, NoResult):
        return ""
    worst = max(move.grade.attained, key=lambda each: each.ratio)
    why = _grown(move.grade, explanation.start, worst.request_class)
    times = "a queue without end" if factor > ENDLESS else f"{factor:.2g} times the start's worst latency"
    return f"{move.name}: in the twin {times}.{why}"


def _factor(move: ObviousMove, explanation: Explanation) -> float | None:
    if isinstance(move.grade, NoResult) or isinstance(explanation.start, NoResult):
        return None
    return move.grade.ratio / explanation.start.ratio if 0 < explanation.start.ratio < inf else None


def _latency(attained: Attained) -> str:
    goal = attained.objective
    return f"P{goal.percentile:g} {goal.metric.upper()} of {who(attained.request_class).lower()}"


def _grown(theirs: Grade, ours: Grade, request_class: str) -> str:
    """The wait of its slow requests that grew most."""
    one, other = (_bill(grade, request_class) for grade in (theirs, ours))
    longer = {cause: amount_s - other.get(cause, 0.0) for cause, amount_s in one.items()}
    cause = max(longer, key=lambda each: longer[each], default=None)
    if cause is None or not other or longer[cause] <= 0:
        return ""
    whose = who(request_class).lower()
    return f" Slow {whose} spend {seconds(longer[cause])} more on '{WORDS[cause].what}'."


def _bill(grade: Grade, request_class: str) -> Mapping[Cause, float]:
    found = grade.of_class(request_class)
    return (found.slow_bill_s if found else None) or {}
