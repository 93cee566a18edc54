"""What a person wants of a server: percentiles below limits, by class.

    "chat: p95 ttft < 500ms, p95 itl < 60ms; docs: p90 ttft < 8s"  --parse_objectives-->  (Objective, ...)

Without a class it is meant for every class that has none of its own; without a percentile it is the 95th.
So a goal of `--slo` of `serve` (core.slo), as "chat: ttft 500ms", is one of these, too.
"""

import re
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
    """Empty: every class without an objective of its own."""
    metric: Metric
    percentile: float
    limit_s: float

    def __str__(self) -> str:
        said = f"p{self.percentile:g} {self.metric} < {_duration(self.limit_s)}"
        return f"{self.request_class}: {said}" if self.request_class else said


Objectives = tuple[Objective, ...]


def parse_objectives(text: str) -> Objectives:
    """Raises `BadInput` for what is none, or for two limits of one percentile."""
    found: dict[tuple[str, Metric, float], Objective] = {}
    for goal in goal_parts(text, _EXAMPLE):
        for part in goal.parts:
            objective = _objective(goal, part)
            key = (objective.request_class, objective.metric, objective.percentile)
            if key in found:
                raise BadInput(f"slo {goal.said!r}: {part!r} has a limit already", _EXAMPLE)
            found[key] = objective
    if not found:
        raise BadInput("slo: nothing is asked for", _EXAMPLE)
    return tuple(found.values())


def of_class(objectives: Objectives, request_class: str) -> Objectives:
    """A class's own, or else those of everybody."""
    own = tuple(each for each in objectives if each.request_class == request_class)
    return own or tuple(each for each in objectives if not each.request_class)


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
