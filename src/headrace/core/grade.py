"""One run in the few numbers that a search compares; small enough to be kept and sent by the hundred.

Measurement + Goal --tune.grade--> Grade
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from headrace.core.bill import Cause
from headrace.core.objective import Objective


@dataclass(frozen=True, slots=True)
class Attained:
    """One objective in one class that it is for."""

    objective: Objective
    request_class: str
    value_s: float
    """The percentile; infinite where more requests failed than it leaves room for."""

    @property
    def ratio(self) -> float:
        """Of the limit; below 1 it is met."""
        return self.value_s / self.objective.limit_s


@dataclass(frozen=True, slots=True)
class ClassGrade:
    """Latencies of the answered requests of one class, in seconds; None where there were none."""

    request_class: str
    requests: int
    failed: int
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    itl_p50_s: float | None
    itl_p95_s: float | None
    slow_bill_s: Mapping[Cause, float] | None
    """What its slowest twentieth waited for, on average; None where the server keeps no bills."""


@dataclass(frozen=True, slots=True)
class Grade:
    """How one run did."""

    attained: tuple[Attained, ...]
    classes: tuple[ClassGrade, ...]
    """In order of their names."""
    due: int
    failed: int
    throughput_rps: float
    """Answered requests a second, from the run's start to its last answer."""
    output_tokens_per_s: float
    is_steady: bool | None
    """False where what waits grew for as long as requests came; None where the run is too short to tell."""
    preemptions: int | None = None
    """None where nobody counted them."""

    @property
    def ratio(self) -> float:
        """The worst measured percentile over its limit."""
        return max((each.ratio for each in self.attained), default=inf)

    @property
    def meets(self) -> bool:
        """Every objective kept, nothing failed, no queue that would have grown on."""
        return self.ratio < 1 and not self.failed and self.is_steady is not False

    @property
    def preempted_share(self) -> float:
        """Preemptions for each request that was due; 0 where nobody counted."""
        return (self.preemptions or 0) / self.due if self.due else 0.0

    def binding(self) -> Attained | None:
        """The objective that is nearest to its limit, or furthest beyond it."""
        return max(self.attained, key=lambda each: each.ratio, default=None)

    def of_class(self, request_class: str) -> ClassGrade | None:
        return next((each for each in self.classes if each.request_class == request_class), None)
