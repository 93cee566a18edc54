"""What a person wants of a server: percentiles below limits, by class.

    "chat: p95 ttft < 500ms, p95 itl < 60ms; docs: p90 ttft < 8s"  --parse_objectives-->  (Objective, ...)

Without a class it is meant for every class, but for one that states the same percentile of the same latency
itself: "p95 ttft < 1s; docs: p95 ttft < 8s". Without a percentile it is the 95th. So a goal of `--slo` of
`serve` (core.slo), as "chat: ttft 500ms", is one of these, too; what a class leaves out it takes from
everybody's there as well.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from headrace.core.errors import BadInput
from headrace.core.goal_text import DURATION, GoalParts, duration_ns, goal_parts
from headrace.core.timeline import Timeline

_PART = re.compile(rf"(?:p(\d+(?:\.\d+)?)\s+)?(ttft|itl|tpot|e2e)\s*(?:<=?)?\s*{DURATION}")
_EXAMPLE = 'write it as in "chat: p95 ttft < 500ms, p95 itl < 60ms; p99 ttft < 2s"'
USUAL_PERCENTILE = 95.0


class Metric(StrEnum):
    """Which latency."""

    TTFT = "ttft"
    ITL = "itl"
    TPOT = "tpot"
    E2E = "e2e"


@dataclass(frozen=True, slots=True)
class Objective:
    """One percentile of one latency, and where it may lie."""

    request_class: str
    """Empty: every class that has no limit of its own for this percentile of this latency."""
    metric: Metric
    percentile: float
    limit_s: float

    def __str__(self) -> str:
        said = f"p{self.percentile:g} {self.metric} < {_duration(self.limit_s)}"
        return f"{self.request_class}: {said}" if self.request_class else said


Objectives = tuple[Objective, ...]


def parse_objectives(text: str) -> Objectives:
    """Raises `BadInput` for what is none, for two limits of one percentile, and for one that says nothing."""
    found = (_objective(goal, part) for goal in goal_parts(text, _EXAMPLE) for part in goal.parts)
    objectives = joined(found)
    if not objectives:
        raise BadInput("slo: nothing is asked for", _EXAMPLE)
    return objectives


def joined(objectives: Iterable[Objective]) -> Objectives:
    """As if they had been written in one text. Raises `BadInput` where they contradict each other."""
    found: dict[tuple[str, Metric, float], Objective] = {}
    for each in objectives:
        key = (each.request_class, each.metric, each.percentile)
        if key in found:
            raise BadInput(f"slo {str(each)!r}: there is a limit already, {str(found[key])!r}", _EXAMPLE)
        found[key] = each
    for own in found.values():
        _refuse_idle(own, of_class(tuple(found.values()), own.request_class))
    return tuple(found.values())


def of_class(objectives: Objectives, request_class: str) -> Objectives:
    """A class's own, and those of everybody that it does not state itself."""
    own = tuple(each for each in objectives if each.request_class == request_class)
    if not request_class:
        return own
    stated = {(each.metric, each.percentile) for each in own}
    return own + tuple(
        each for each in objectives if not each.request_class and (each.metric, each.percentile) not in stated
    )


def _refuse_idle(own: Objective, beside: Objectives) -> None:
    """A class's limit that everybody's of a higher percentile already keeps: it was meant to be looser."""
    for each in beside:
        higher = f"p{each.percentile:g}"
        is_everybodys = own.request_class and not each.request_class and each.metric is own.metric
        if is_everybodys and each.percentile > own.percentile and each.limit_s <= own.limit_s:
            raise BadInput(
                f"slo {str(own)!r} says nothing: {str(each)!r} holds for {own.request_class!r}, too",
                f'give the class its own {higher}: "{own}, {higher} {each.metric} < ..."',
            )


def is_good(timeline: Timeline, objectives: Objectives) -> bool:
    """Whether one request kept within the limits: of its gaps, so many percent as the objective says."""
    return all(_within(timeline, each) for each in objectives)


def _within(timeline: Timeline, objective: Objective) -> bool:
    limit_s = objective.limit_s
    match objective.metric:
        case Metric.TTFT:
            return timeline.ttft_s < limit_s
        case Metric.E2E:
            return timeline.e2e_s < limit_s
        case Metric.TPOT:
            return timeline.tpot_s is None or timeline.tpot_s < limit_s
        case Metric.ITL:
            gaps_s = timeline.itl_s
            late = sum(gap_s >= limit_s for gap_s in gaps_s)
            return late * 100 <= len(gaps_s) * (100 - objective.percentile)


def _objective(goal: GoalParts, part: str) -> Objective:
    match = _PART.fullmatch(part)
    if match is None:
        raise BadInput(f"slo {goal.said!r}: {part!r} is no objective", _EXAMPLE)
    percentile = float(match[1] or USUAL_PERCENTILE)
    limit_s = duration_ns(match[3], match[4]) / 1e9
    if not 0 < percentile < 100 or limit_s <= 0:
        raise BadInput(f"slo {goal.said!r}: {part!r} can never be told, or never be met", _EXAMPLE)
    return Objective(goal.request_class, Metric(match[2]), percentile, limit_s)


def _duration(amount_s: float) -> str:
    return f"{amount_s:g}s" if amount_s >= 1 else f"{1000 * amount_s:g}ms"
