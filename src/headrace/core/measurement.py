"""One run of one workload on one target: what was asked, what happened. The record all parts share."""

from dataclasses import dataclass, field

from headrace.core.timeline import Failure, Timeline

ALL = "all"
"""The name under which all classes of requests together stand."""

SHORTEST_RUN_S = 1e-9
"""Below the tick of any clock nothing was timed, and a division may leave the range of a float."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Every request that was due appears in `results` exactly once."""

    target: str
    """What was measured: an address, or the command that started it."""
    model: str
    settings: dict[str, int | float | bool | str]
    """The settings under test, as far as known; vLLM's names."""
    workload: str
    """One line that says what was sent, rates and seed included."""
    seed: int
    duration_s: float
    """From the run's start to the last answer."""
    results: tuple[Timeline | Failure, ...]
    versions: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def timelines(self) -> tuple[Timeline, ...]:
        return tuple(r for r in self.results if isinstance(r, Timeline))

    @property
    def failures(self) -> tuple[Failure, ...]:
        return tuple(r for r in self.results if isinstance(r, Failure))

    def per_s(self, count: int) -> float:
        """How many of something a second of the run; 0 where the run was too short to have a rate."""
        return count / self.duration_s if self.duration_s >= SHORTEST_RUN_S else 0.0
