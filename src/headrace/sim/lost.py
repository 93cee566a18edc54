"""Whether a run has missed its objectives before it is over, so that nobody need play it to its end.

    trace + objectives -> goals       goals + what was seen so far --is_lost--> too many are late already

How many requests and gaps there will be is known from the trace, so what is late stays so whatever comes.
TPOT and a queue that only grows are not looked at: such a run goes on to its end.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.core.objective import Metric, Objective, Objectives, of_class
from headrace.sim.replica import Life
from headrace.workload.trace import TraceRequest

_ROUNDING_NS = 2
"""What is so little beyond a limit may be within it once it is told in seconds."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Of a run, up to now."""

    lives: Mapping[int, Life]
    replica_of: Mapping[int, int]
    step_ends_ns: Sequence[Sequence[int]]
    """Of each replica."""
    now_ns: int


@dataclass(frozen=True, slots=True)
class Goal:
    """One objective for one class."""

    objective: Objective
    request_class: str
    room: int
    """So many may be late, and the percentile still lie within the limit."""

    @property
    def limit_ns(self) -> float:
        return self.objective.limit_s * 1e9 + _ROUNDING_NS


def goals_of(trace: Sequence[TraceRequest], objectives: Objectives) -> tuple[Goal, ...]:
    return tuple(_goals(trace, objectives))


def is_lost(goals: Sequence[Goal], seen: Seen) -> bool:
    return any(_late(goal, seen) > goal.room for goal in goals)


def _goals(trace: Sequence[TraceRequest], objectives: Objectives) -> Iterator[Goal]:
    requests = Counter(each.request_class for each in trace)
    gaps = Counter[str]()
    for each in trace:
        gaps[each.request_class] += each.output_tokens - 1
    for name in requests:
        for objective in of_class(objectives, name):
            if objective.metric is not Metric.TPOT:
                count = (gaps if objective.metric is Metric.ITL else requests)[name]
                yield Goal(objective, name, _room(count, objective.percentile))


def _room(count: int, percentile: float) -> int:
    """One more than this above the limit, and so is the percentile, however it is interpolated."""
    return count - 1 - math.floor((count - 1) * percentile / 100)


def _late(goal: Goal, seen: Seen) -> int:
    lives = [
        (place, life)
        for place, life in seen.lives.items()
        if life.request.request_class == goal.request_class
    ]
    if goal.objective.metric is Metric.ITL:
        return _late_gaps(goal, seen, lives)
    took = (
        math.inf if life.refused else _took_ns(goal.objective.metric, life, seen, place)
        for place, life in lives
    )
    return sum(each > goal.limit_ns for each in took)


def _took_ns(metric: Metric, life: Life, seen: Seen, place: int) -> int:
    """Until the first or the last token, or until now, where that has not come."""
    ends, runs, is_ttft = seen.step_ends_ns[seen.replica_of[place]], life.token_steps, metric is Metric.TTFT
    if not runs or not (is_ttft or life.finished):
        return seen.now_ns - life.request.arrived_ns
    step = runs[0][0] if is_ttft else runs[-1][0] + runs[-1][1] - 1
    return ends[step] - life.request.arrived_ns


def _late_gaps(goal: Goal, seen: Seen, lives: Sequence[tuple[int, Life]]) -> int:
    """Of all answers so far, those of one that may yet be refused or go on among them."""
    found = 0
    for replica, ends in enumerate(seen.step_ends_ns):
        runs = [life.token_steps for place, life in lives if seen.replica_of[place] == replica]
        found += _late_in(runs, np.asarray(ends, dtype=np.int64), goal.limit_ns)
    return found


def _late_in(lives: Sequence[list[list[int]]], ends_ns: NDArray[np.int64], limit_ns: float) -> int:
    """Within a run of steps by how many of them were late, and between two runs."""
    late = np.concatenate([[0], np.cumsum(np.diff(ends_ns) > limit_ns)])
    runs = np.array([run for runs in lives for run in runs], dtype=np.int64).reshape(-1, 2)
    firsts, lasts = runs[:, 0], runs.sum(axis=1) - 1
    within = int((late[lasts] - late[firsts]).sum()) if runs.size else 0
    breaks = [(one[0] + one[1] - 1, two[0]) for runs in lives for one, two in itertools.pairwise(runs)]
    return within + sum(int(ends_ns[two] - ends_ns[one]) > limit_ns for one, two in breaks)
