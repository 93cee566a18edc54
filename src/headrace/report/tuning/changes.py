"""What to change and why, from the twin's curves and the bills; and what it costs.

    Tuning --changes_of--> [Change, ...]   Bills --why_of--> what is saved   Compared --price_of--> the price

Nothing is said of a lever that its curve or the bill does not show.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

from headrace.core.conclusion import Curve, CurvePoint, Value
from headrace.core.trial import NoResult
from headrace.report.bill import WORDS
from headrace.report.tuning.figures import Bills, Compared, Row
from headrace.report.tuning.tuning import Tuning
from headrace.report.tuning.words import many, of_class, time_words, value_words, who
from headrace.report.units import seconds

NOTICEABLE = 0.05
"""A latency that grew by less than this share is not worth a person's attention."""
SAME = 0.02
"""A difference of less than this share is none."""
MOST_FACTOR = 99.0
"""Of a latency, beyond which a queue grows for as long as requests come."""
LOST = 0.01
"""Of the throughput, likewise."""


@dataclass(frozen=True, slots=True)
class Change:
    """One setting of the contender that differs from the start."""

    name: str
    before: Value | None
    """None: the start's value is not known."""
    after: Value
    does: str
    """What it changes, in one sentence."""
    undone: str
    """What going back with this one alone gives in the twin, as "worst latency x 3"; empty: nobody looked."""
    weight: float
    """By how much going back alone is worse, as a factor; 1 where it is not known."""


def changes_of(tuning: Tuning) -> list[Change]:
    """What the contender changes, the change that matters most first."""
    found = tuning.conclusion
    if found is None or not found.contender:
        return []
    changes = [
        _change(tuning, name, tuning.server.start.get(name), after) for name, after in found.contender.items()
    ]
    return sorted(changes, key=lambda change: -change.weight)


def _change(tuning: Tuning, name: str, before: Value | None, after: Value) -> Change:
    undone, weight = _undone(tuning, name, before)
    return Change(name, before, after, _does(name, before, after), undone, weight)


def _does(name: str, before: Value | None, after: Value) -> str:
    to, of = value_words(name, after), value_words(name, before)
    grows = not isinstance(after, str) and not isinstance(before, str | None) and after > before
    said = _DOES_MORE.get(name) if grows else _DOES_LESS.get(name)
    if name == "long_prefill_token_threshold" and after == 0:
        said = "Long prompts are no longer cut into pieces of {of} tokens."
    return (said or _DOES.get(name, "{name} is {to} instead of {of}.")).format(name=name, to=to, of=of)


_CAPPED = (
    "A long prompt gets at most {to} tokens of a step, so that short ones find room in the same step instead "
    "of behind it."
)
_DOES_MORE = {
    "max_num_batched_tokens": (
        "A step computes up to {to} tokens instead of {of}: prompts need fewer steps and queue less, and "
        "each step takes longer."
    ),
    "max_num_seqs": "Up to {to} requests run at once instead of {of}: fewer wait for a slot.",
    "long_prefill_token_threshold": _CAPPED,
    "kv_cache_memory_bytes": "The KV cache has {to} instead of {of}: fewer requests wait for blocks.",
}
_DOES_LESS = {
    "max_num_batched_tokens": (
        "A step computes at most {to} tokens instead of {of}: steps are short, so running answers go on "
        "sooner and newcomers wait less for a step to end."
    ),
    "max_num_seqs": (
        "At most {to} requests run at once instead of {of}: each is faster and keeps its KV blocks; others "
        "wait for a slot."
    ),
    "long_prefill_token_threshold": _CAPPED,
    "kv_cache_memory_bytes": "The KV cache has {to} instead of {of}: memory that nobody misses is free.",
}
_DOES = {
    "max_model_len": "The context ends at {to} tokens instead of {of}, which this traffic never needs.",
    "block_size": "KV blocks hold {to} tokens instead of {of}.",
    "watermark": "A share of {to} of the blocks stays free for running answers: fewer are preempted.",
    "scheduling_policy": "Who waits is ordered by '{to}' instead of '{of}'.",
    "enable_prefix_caching": "Prefix caching is {to}.",
    "async_scheduling": "Async scheduling is {to}: the next step is planned while one runs.",
    "kv_cache_dtype": "Keys and values are kept as {to} instead of {of}; check your answers' quality, too.",
    "api_server_count": "{to} processes instead of {of} read and tokenize requests.",
}


def _undone(tuning: Tuning, name: str, before: Value | None) -> tuple[str, float]:
    """What the twin says of the winner with this one setting as it was."""
    curve = curve_of(tuning, name)
    winner = None if curve is None else point_at(curve, curve.winner)
    back = None if curve is None or before is None else point_at(curve, before)
    if winner is None or back is None:
        return "", 1.0
    if isinstance(back.grade, NoResult):
        return "no result", inf
    if tuning.goal.seeks_capacity and winner.capacity:
        return _undone_capacity(winner.capacity, back.capacity)
    if isinstance(winner.grade, NoResult) or not 0 < winner.grade.ratio < inf:
        return "", 1.0
    factor = back.grade.ratio / winner.grade.ratio
    if factor > MOST_FACTOR:
        return "a queue without end", factor
    return ("no change" if abs(factor - 1) < SAME else f"worst latency x {factor:.2f}"), factor


def _undone_capacity(winner: float, back: float | None) -> tuple[str, float]:
    if back is None:
        return "no load within the limits", inf
    said = "no change" if abs(back / winner - 1) < SAME else f"{back / winner - 1:+.0%} load"
    return said, winner / back


def undone_words(changes: Sequence[Change]) -> str:
    """All of them; empty where nobody looked."""
    said = [f"{change.name}: {change.undone}" for change in changes if change.undone]
    if len(changes) == 1 and said:
        return f"In the twin, without it: {changes[0].undone}."
    return f"In the twin, with one of them undone: {'; '.join(said)}." if said else ""


def why_of(bills: Bills | None) -> str:
    """From the bill: which waits went away."""
    if bills is None or bills.after is None:
        return ""
    was, now = bills.before, bills.after
    saved = {cause: was[cause] - now[cause] for cause in was}
    gained_s = sum(amount_s for amount_s in saved.values() if amount_s > 0)
    if gained_s <= 0 or sum(saved.values()) <= 0:
        return ""
    most = max(saved, key=lambda cause: saved[cause])
    return (
        f"{saved[most] / gained_s:.0%} of the time saved was '{WORDS[most].what}' ({seconds(was[most])} -> "
        f"{seconds(now[most])})."
    )


def stays_because(tuning: Tuning, bills: Bills | None) -> str:
    """Why the start is best: what its slow requests wait for, and the best other value of each lever."""
    said: list[str] = []
    if bills is not None:
        most = max(bills.before, key=lambda cause: bills.before[cause])
        share = bills.before[most] / sum(bills.before.values())
        said.append(
            f"{share:.0%} of what slow {who(bills.request_class).lower()} wait for is '{WORDS[most].what}'."
        )
    crashed = {curve.lever: other for curve in _curves(tuning) if (other := _crashed(tuning, curve))}
    others = [each for curve in _curves(tuning) if curve.lever not in crashed for each in _best_other(curve)]
    worse = [*crashed.values(), *(f"{each}, {what}" for each, what in others if what)]
    alike = [each for each, what in others if not what]
    as_good = [f"as good: {', '.join(alike)}"] if alike else []
    if worse:
        said.append(f"The best other values in the twin: {'; '.join([*worse, *as_good])}.")
    elif alike:
        said.append(f"Other values come to the same in the twin, and none to more: {', '.join(alike)}.")
    return " ".join(said)


def _crashed(tuning: Tuning, curve: Curve) -> str:
    """Of a lever of which no other value gave a result on the server: the twin has nothing to say of it."""
    moved = [run.outcome for run in tuning.runs if curve.lever in run.overrides]
    if not moved or not all(isinstance(outcome, NoResult) for outcome in moved):
        return ""
    return f"{curve.lever}, no result in {many(len(moved), 'run')} with another value"


def _best_other(curve: Curve) -> Iterator[tuple[str, str]]:
    """Of one lever, the value and what it comes to, empty if to the same: by the load within the limits where
    that was looked for, else by the worst latency. None where there is none to compare.
    """
    answer = point_at(curve, curve.winner)
    if answer is None or isinstance(answer.grade, NoResult) or not 0 < answer.grade.ratio < inf:
        return
    tried = [point for point in curve.points if point.value != curve.winner]
    if answer.capacity:
        factors = [((point.capacity or 0.0) / answer.capacity, point.value) for point in tried]
        best, what = max(factors, key=lambda each: each[0], default=None), "load"
    else:
        ratio = answer.grade.ratio
        grades = [(point.grade, point.value) for point in tried if not isinstance(point.grade, NoResult)]
        factors = [(grade.ratio / ratio, value) for grade, value in grades]
        best, what = min(factors, key=lambda each: each[0], default=None), "worst latency"
    if best is not None:
        is_alike = abs(best[0] - 1) < SAME
        yield (
            f"{curve.lever} {value_words(curve.lever, best[1])}",
            "" if is_alike else f"{what} x {best[0]:.2f}",
        )


def price_of(sides: Compared) -> list[str]:
    """What got worse by more than is worth a shrug."""
    worse = [said for row in sides.rows if (said := _grown(row))]
    before, after = sides.throughput_rps
    if before and after and before.value and after.value / before.value - 1 < -LOST:
        worse.append(f"throughput {after.value / before.value - 1:+.0%}")
    return worse


def _grown(row: Row) -> str:
    if row.before is None or row.after is None or not 0 < row.before.value < inf:
        return ""
    was, now = row.before.value, row.after.value
    if now / was - 1 <= NOTICEABLE:
        return ""
    figures = f"{time_words(was)} -> {time_words(now)} ({now / was - 1:+.0%})"
    return f"{of_class(row.request_class)}{row.label} {figures}"


def curve_of(tuning: Tuning, name: str) -> Curve | None:
    return next((curve for curve in _curves(tuning) if curve.lever == name), None)


def _curves(tuning: Tuning) -> tuple[Curve, ...]:
    return tuning.explanation.curves if tuning.explanation else ()


def point_at(curve: Curve, value: Value) -> CurvePoint | None:
    return next((point for point in curve.points if point.value == value), None)
