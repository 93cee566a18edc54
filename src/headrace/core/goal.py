"""What a search for better settings is to reach.

    objectives by class + what to make the most of  -->  Goal

A goal always has objectives, so that one figure says how near a run comes: the worst ratio of a measured
percentile to its limit (`core.grade.Grade.ratio`). Where a person gives no limit, the baseline's own value is
the limit: 1 is then "as before", and 0.5 half the wait.
"""

from dataclasses import dataclass
from enum import StrEnum

from headrace.core.errors import BadInput
from headrace.core.objective import Objectives


class Aim(StrEnum):
    """What to make the most of."""

    CAPACITY = "capacity"
    """The highest multiple of the workload's rate at which every objective is met, nothing fails and no
    queue grows."""
    LATENCY = "latency"
    """The lowest ratio at the workload's own rate, without giving up throughput."""
    COST = "cost"
    """The fewest replicas for the workload's rate: the capacity of one decides."""


@dataclass(frozen=True, slots=True)
class Goal:
    """Raises `BadInput` for one that nothing could be measured against."""

    aim: Aim
    objectives: Objectives
    is_relative: bool = False
    """The limits are the baseline's own values, not a person's: missing them breaks no promise."""
    least_throughput: float = 0.95
    """Share of the baseline's throughput that a setting must keep at the workload's own rate."""
    price_per_hour: float | None = None
    """Of one replica, in whatever money the person counts in."""

    def __post_init__(self) -> None:
        if not self.objectives:
            raise BadInput("a goal needs at least one objective", '--slo "chat: p95 ttft < 500ms"')
        if not 0 < self.least_throughput <= 1:
            raise BadInput(f"the throughput to keep is {self.least_throughput}; it is a share, in (0, 1]")
        if self.price_per_hour is not None and not self.price_per_hour > 0:
            raise BadInput(f"the price of a replica is {self.price_per_hour} an hour; it must be above 0")

    @property
    def seeks_capacity(self) -> bool:
        """Whether runs at other rates than the workload's own tell something."""
        return self.aim is not Aim.LATENCY
