"""The verdict in a few sentences: what changed for requests, how sure that is, or why nothing is to change.

Tuning + Compared --headline--> Headline(word, sentence)
"""

from dataclasses import dataclass
from math import inf, isfinite

from headrace.core.conclusion import Bracket, Conclusion
from headrace.core.goal import Aim
from headrace.core.objective import Metric
from headrace.core.trial import NoResult, Verdict
from headrace.report.bill import WORDS
from headrace.report.tuning.figures import Compared, Row, Side
from headrace.report.tuning.tuning import Tuning
from headrace.report.tuning.words import (
    grade_words,
    load_words,
    sentence,
    settings_words,
    time_words,
    who,
)
from headrace.report.units import many, seconds

WORD = {
    Verdict.IMPROVED: "IMPROVED",
    Verdict.NOTHING_BETTER: "ALREADY BEST",
    Verdict.INCONCLUSIVE: "INCONCLUSIVE",
    Verdict.UNREACHABLE: "OUT OF REACH",
    Verdict.DRIFTED: "DRIFTED",
}


TOLD_APART = 0.02
"""Factors that differ by less are one."""


@dataclass(frozen=True, slots=True)
class Headline:
    word: str
    sentence: str
    """Goes on after a colon."""


def headline(tuning: Tuning, sides: Compared) -> Headline:
    """The verdict, first in what changed for requests, then in how sure that is."""
    found, before = tuning.conclusion, sides.before
    if found is None or before is None:
        return Headline(
            "NOTHING MEASURED", f"{found.why if found else 'no run of the starting settings ended'}."
        )
    worst = sides.worst
    match found.verdict:
        case Verdict.IMPROVED:
            return Headline(WORD[found.verdict], _improved(tuning, sides, before))
        case Verdict.UNREACHABLE:
            said = f"no setting meets the objectives. {sentence(found.why)}{_binds(sides)}"
            return Headline(WORD[found.verdict], said)
        case Verdict.DRIFTED:
            said = "the machine changed while it was measured, so nothing can be said of settings"
            return Headline(
                WORD[found.verdict], f"{said}: {found.why}. Measure again when nothing else runs there."
            )
        case Verdict.NOTHING_BETTER | Verdict.INCONCLUSIVE if not tuning.server.restarts:
            return _advised(tuning, worst)
        case Verdict.NOTHING_BETTER:
            return _nothing_better(tuning, worst)
        case Verdict.INCONCLUSIVE:
            if tuning.is_interrupted:
                ran = f"it was stopped after {many(len(tuning.runs), 'run')}"
                return Headline("INTERRUPTED", f"{ran}.{_so_far(worst)} What was measured is kept.")
            said = f"{found.why}.{_so_far(worst)} A larger --budget decides it."
            return Headline(WORD[found.verdict], said)


def _binds(sides: Compared) -> str:
    """The budget that the slow requests of the worst class spend most on, under the nearest settings."""
    bills = sides.main_bill
    if bills is None:
        return ""
    bill = bills.after or bills.before
    most = max(bill, key=lambda cause: bill[cause])
    words, whose = WORDS[most], who(bills.request_class).lower()
    return f" Slow {whose} spend {seconds(bill[most])} on '{words.what}', a matter of {words.budget}."


def _advised(tuning: Tuning, worst: Row | None) -> Headline:
    """Of a server that is not ours to restart."""
    left = "the server was measured and left as it is"
    advice = tuning.advice
    if advice is None:
        return Headline("NO ADVICE", f"{left}{_at(tuning, worst)}. Nothing in the twin is better.")
    return Headline(
        "ADVICE",
        f"{left}{_at(tuning, worst)}. In the twin {settings_words(advice.overrides)} brings the worst "
        f"latency from {grade_words(advice.now)} to {grade_words(advice.then)} of its limit. No run has "
        "proven it.",
    )


def _nothing_better(tuning: Tuning, worst: Row | None) -> Headline:
    found = tuning.conclusion
    assert found is not None, "nothing was better than something"
    tried = [run.outcome for run in tuning.runs if run.overrides]
    causes = [outcome.cause for outcome in tried if isinstance(outcome, NoResult)]
    keep = f"keep the settings as they are{_at(tuning, worst)}"
    if causes and len(causes) == len(tried):
        return Headline(
            "NOTHING BETTER",
            f"{keep}. None of {many(len(tried), 'run')} under other settings gave a result: "
            f"{causes[0]}.{_carried(tuning)}",
        )
    word = "NOTHING BETTER" if _misses(tuning, worst) else WORD[found.verdict]
    return Headline(word, f"{keep}. The reason: {found.why}.{_carried(tuning)}")


def _carried(tuning: Tuning) -> str:
    """Of a capacity: what the start carries; below the workload's own load, how many servers that takes."""
    found = tuning.conclusion
    carried = None if found is None or not tuning.goal.seeks_capacity else start_carries(found)
    if found is None or carried is None:
        return ""
    twins = "" if carried == found.baseline_bracket.met else " in the twin"
    said = f" They carry {load_words(tuning, carried)}"
    if carried >= 1:
        return f"{said} within the limits{twins}, {carried:.2g} times the workload's own."
    servers = Bracket(carried, None).replicas()
    return f"{said} of {load_words(tuning, 1.0)}{twins}, so this load takes {servers} servers."


def _improved(tuning: Tuning, sides: Compared, before: Side) -> str:
    found, after = tuning.conclusion, sides.after
    assert found is not None, "improved upon something"
    if after is not None and (carried := _carries(tuning, after)):
        return f"{carried} At {load_words(tuning, before.load)} {_kept(sides, before, after)}."
    said = _sooner(sides.worst, before, after)
    gain = found.gain
    if gain is None:
        return f"{said} {sentence(found.why)}"
    sure = f"with 95 % confidence at least {1 / gain.ratio_at_most:.1f} times"
    if _is_the_same(sides.worst, gain.ratio):
        return f"{said} It is so {sure}."
    return f"{said} The worst latency, as a share of its limit, falls {1 / gain.ratio:.1f} times, {sure}."


def _is_the_same(worst: Row | None, ratio: float) -> bool:
    """Whether the figures of a row are the gain: then it is told once."""
    if (
        worst is None
        or worst.before is None
        or worst.after is None
        or worst.after.value >= worst.before.value
    ):
        return False
    return abs(worst.after.value / worst.before.value / ratio - 1) < TOLD_APART


def _kept(sides: Compared, before: Side, after: Side) -> str:
    """By which runs the limits were."""
    runs, of_start = many(len(after.grades), "run"), len(before.grades)
    if not after.missed:
        kept = of_start - before.missed
        return f"{len(after.grades)} of {runs} of the winner kept them, and {kept} of {of_start} of the start"
    ratio = sides.ratio[1]
    mean = f" (mean {ratio.value:.3f} of the limit)" if ratio and isfinite(ratio.value) else ""
    missed = f"{after.missed} of {runs} of the winner did not keep them{mean}"
    return f"{missed}, nor did {before.missed} of {of_start} of the start"


def _carries(tuning: Tuning, side: Side) -> str:
    """Of a capacity: how much more load; empty where it was not one that was compared. Where runs of the
    contender missed, it is at its limits and not within them.
    """
    found = tuning.conclusion
    if found is None or not tuning.goal.seeks_capacity or found.contender_bracket.met is None:
        return ""
    after, before = found.contender_bracket.met, start_carries(found)
    stays = "is at its limits" if side.missed else "keeps every limit"
    if before is None:
        missed = found.baseline_bracket.missed or after
        return (
            f"it {stays} at {load_words(tuning, after)}; the starting settings miss them at "
            f"{load_words(tuning, missed)}."
        )
    if before != found.baseline_bracket.met:
        return (
            f"it {stays} at {load_words(tuning, after)}, where the starting settings miss them; in "
            f"the twin they carry {load_words(tuning, before)}, so it is {after / before:.2f} times the load."
            f"{_cheaper(tuning)}"
        )
    within = "at its limits" if side.missed else "within every limit"
    return (
        f"it carries {after / before:.2f} times the load {within}: "
        f"{load_words(tuning, before)} -> {load_words(tuning, after)}.{_cheaper(tuning)}"
    )


def _cheaper(tuning: Tuning) -> str:
    found = tuning.conclusion
    if found is None or tuning.goal.aim is not Aim.COST:
        return ""
    before, after = Bracket(start_carries(found), None).replicas(), found.contender_bracket.replicas()
    if before is None or after is None:
        return ""
    said = f" Today's load takes {after} {'replica' if after == 1 else 'replicas'}"
    said += f" instead of {before}" if before != after else ", as before"
    price = thousand_costs(tuning)
    return f"{said}{f'; a thousand requests cost {price[0]:.3g} -> {price[1]:.3g}' if price else ''}."


def start_carries(found: Conclusion) -> float | None:
    """Where the twin puts it within its bracket: the contender's proof does not look for the start's edge."""
    return found.baseline_believed or found.baseline_bracket.met


def thousand_costs(tuning: Tuning) -> tuple[float, float] | None:
    """What a thousand requests cost at capacity, before and after, in the goal's money."""
    found, rate, price = tuning.conclusion, tuning.traffic.rate_rps, tuning.goal.price_per_hour
    if found is None or not rate or not price:
        return None
    before, after = start_carries(found), found.contender_bracket.met
    if not before or not after:
        return None
    return 1000 * price / (3600 * rate * before), 1000 * price / (3600 * rate * after)


def _sooner(worst: Row | None, before: Side, after: Side | None) -> str:
    if worst is None or worst.before is None or worst.after is None or after is None:
        return "the contender is nearer to its limits than the start."
    was, now = worst.before.value, worst.after.value
    name = who(worst.request_class)
    at_load = "" if before.load == 1 else f" at {before.load:.3g} times the load"
    if was == inf:
        return (
            f"of {name.lower()} more failed than {worst.label} leaves room for; now it is {time_words(now)}."
        )
    figures = f"{worst.label} {time_words(was)} -> {time_words(now)}{at_load}"
    if now >= was:
        return f"{name}: {figures}."
    is_ttft = worst.objective is not None and worst.objective.metric is Metric.TTFT
    doing = "get their first token" if is_ttft else "are"
    return f"{name} {doing} {was / now:.1f} times {'sooner' if is_ttft else 'faster'}: {figures}."


def _at(tuning: Tuning, worst: Row | None) -> str:
    if worst is None or worst.before is None or worst.objective is None:
        return ""
    said = f"{worst.label} of {who(worst.request_class).lower()} is {time_words(worst.before.value)}"
    return f" ({said}, which misses its limit)" if _misses(tuning, worst) else f" ({said})"


def _misses(tuning: Tuning, worst: Row | None) -> bool:
    """Whether the start misses a limit that somebody set."""
    if worst is None or worst.before is None or worst.objective is None or tuning.goal.is_relative:
        return False
    return worst.before.value >= worst.objective.limit_s


def _so_far(worst: Row | None) -> str:
    if worst is None or worst.before is None:
        return ""
    best = f", with the best so far {time_words(worst.after.value)}" if worst.after else ""
    of = f"{worst.label} of {who(worst.request_class).lower()}"
    return f" At the start {of} is {time_words(worst.before.value)}{best}."
