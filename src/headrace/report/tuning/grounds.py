"""What an answer rests on, in words: goal, safety, how much was searched, and what to keep in mind."""

from collections.abc import Iterator

from headrace.core.grade import Grade
from headrace.core.objective import Objectives
from headrace.core.trial import Purpose
from headrace.report.tuning.figures import Side
from headrace.report.tuning.trials import invalid_numbers, ranges, trials_of
from headrace.report.tuning.tuning import Tuning
from headrace.report.tuning.words import clock, value_words
from headrace.report.units import many, seconds


def goal_words(tuning: Tuning) -> str:
    goal = tuning.goal
    own = "limits from the start's own runs: " if goal.is_relative else ""
    whose = f" (proposed: {tuning.goal_why})" if tuning.goal_why else ""
    return f"{_AIMS[goal.aim.value]}; {own}{objectives_words(goal.objectives)}{whose}"


def objectives_words(objectives: Objectives) -> str:
    """Class by class: `short: p95 ttft < 500 ms, p95 itl < 60.0 ms; p99 e2e < 9.00 s`."""
    by_class: dict[str, list[str]] = {}
    for each in objectives:
        said = f"p{each.percentile:g} {each.metric} < {seconds(each.limit_s)}"
        by_class.setdefault(each.request_class, []).append(said)
    return "; ".join(
        f"{name}: {', '.join(said)}" if name else ", ".join(said) for name, said in by_class.items()
    )


_AIMS = {
    "capacity": "the most load within the limits",
    "latency": "the shortest waits at this load",
    "cost": "the fewest replicas within the limits",
}


def safety_words(tuning: Tuning, before: Side | None) -> Iterator[str]:
    """The yardstick and what is to spare, as far as known."""
    if before is None:
        yield "no run of the starting settings gave a result"
        return
    found = tuning.conclusion
    runs = sum(run.purpose is Purpose.BASELINE for run in tuning.runs)
    spread = "" if found is None or found.spread is None else f", repeats differ by {found.spread - 1:.0%}"
    yield f"{many(runs, 'baseline run')}{spread}"
    start = [run.outcome for run in tuning.runs if run.purpose is Purpose.BASELINE]
    grades = [grade for grade in start if isinstance(grade, Grade)]
    failed, due = sum(grade.failed for grade in grades), sum(grade.due for grade in grades)
    yield f"{failed} of {due} failed" if failed else "nothing failed"
    if any(grade.preemptions is not None for grade in grades):
        share = sum(grade.preempted_share for grade in grades) / len(grades)
        yield f"{share:.0%} preempted"
    yield from _spare(tuning)


def _spare(tuning: Tuning) -> Iterator[str]:
    server = tuning.server
    if server.headroom_bytes is not None:
        yield f"{value_words('headroom_bytes', server.headroom_bytes)} of memory to spare"
    busy = [detail.busy_cores for detail in tuning.details if detail.busy_cores is not None]
    if busy and server.cores:
        yield f"{max(busy):.1f} of {server.cores} processors busy"


def searched_words(tuning: Tuning) -> str:
    found = tuning.conclusion
    simulated = (found.simulated if found else 0) + (
        tuning.explanation.simulated if tuning.explanation else 0
    )
    twin = f"{simulated:,} simulations{_in(tuning.twin_s)}" if simulated else "nothing simulated"
    of = f" in a twin {tuning.twin}" if tuning.twin and simulated else ""
    ran_s = sum(run.took_s for run in tuning.runs)
    return f"{twin}{of}; {many(len(tuning.runs), 'run')} on the server{_in(ran_s)}"


def _in(amount_s: float) -> str:
    return f" in {clock(amount_s)}" if amount_s else ""


def remarks_of(tuning: Tuning, before: Side | None) -> Iterator[str]:
    """What the confidence does not cover, and what happened by the way."""
    found = tuning.conclusion
    yield from () if found is None else found.notes
    yield from tuning.traffic.warnings
    if before is not None:
        yield (
            "every run sent the same requests, so the confidence is about noise between runs, not about "
            "other traffic"
        )
    spoiled = invalid_numbers(trials_of(tuning))
    if spoiled:
        yield f"{many(len(spoiled), 'run')} not to be believed, the client was too slow: {ranges(spoiled)}"
