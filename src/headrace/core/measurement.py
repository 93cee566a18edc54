"""One run of one workload on one target: what was asked, what happened. The record all parts share."""

from dataclasses import dataclass, field

from headrace.core.timeline import Failure, Timeline

ALL = "all"
"""The name under which all classes of requests together stand."""


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
