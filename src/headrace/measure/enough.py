"""How long a run must be for its promises to be told: enough requests of each class after the warm-up.

Measurement, Objectives --shortages--> [Shortage(class, objective, has, needs)]    --enough_s--> seconds
"""

from dataclasses import dataclass
from math import ceil

from headrace.core.measurement import Measurement
from headrace.core.objective import Metric, Objective, Objectives, of_class
from headrace.measure.intervals import FEWEST, fewest

SIGMAS = 2.0
"""As many requests more are planned for as chance may leave out, of a Poisson process."""
ROUND_S = 10.0


@dataclass(frozen=True, slots=True)
class Shortage:
    """A promise of which no interval can be had: too few requests."""

    request_class: str
    objective: Objective
    has: int
    needs: int


def shortages(measurement: Measurement, objectives: Objectives) -> list[Shortage]:
    """In order of class names; none of a class that had no request at all."""
    counts: dict[str, int] = {}
    for result in measurement.measured:
        counts[result.request_class] = counts.get(result.request_class, 0) + 1
    return [
        Shortage(name, objective, counts[name], needed)
        for name in sorted(counts)
        for objective in of_class(objectives, name)
        if counts[name] < (needed := _needed(objective))
    ]


def enough_s(measurement: Measurement, objectives: Objectives) -> float | None:
    """Duration of a run like this one, its warm-up included, that has enough requests for each promise in 39
    of 40 cases; None where this one has, or where it has none to go by.
    """
    short = shortages(measurement, objectives)
    asked_for_s = max((result.due_at for result in measurement.measured), default=0.0) - measurement.warm_up_s
    if not short or asked_for_s <= 0:
        return None
    longer = max((each.needs + SIGMAS * each.needs**0.5) / each.has for each in short)
    warm_up_s = measurement.warm_up_s * longer  # a share of the duration, unless it was said
    return ROUND_S * ceil((asked_for_s * longer + warm_up_s) / ROUND_S)


def _needed(objective: Objective) -> int:
    return FEWEST if objective.metric is Metric.ITL else fewest(objective.percentile)
