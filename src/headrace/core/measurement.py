"""One run of one workload on one target: what was asked, what happened. The record all parts share."""

from dataclasses import dataclass, field
from enum import StrEnum

from headrace.core.timeline import Failure, Timeline

ALL = "all"
"""The name under which all classes of requests together stand."""

SHORTEST_RUN_S = 1e-9
"""Below the tick of any clock nothing was timed, and a division may leave the range of a float."""


class Load(StrEnum):
    """What decides when requests are due."""

    OPEN = "open"
    """A timetable, whatever becomes of them."""
    POISSON = "poisson"
    """A timetable whose gaps are random and know nothing of each other."""
    CLOSED = "closed"
    """Answers: so many are always in flight."""
    SESSIONS = "sessions"
    """A timetable for the first turns, answers and time to think for the others."""


@dataclass(frozen=True, slots=True)
class ClientLoad:
    """How busy our own side was, which is the server's fault in no way."""

    cpu_s: float
    wakings: int
    """How often it looked at the clock, every 20 ms."""
    late_p50_s: float
    """How late it woke: so long may the instant of a token be late."""
    late_p99_s: float
    late_max_s: float
    connections: int | None = None
    """That it opened; None where it was not written down."""
    sent_again: int = 0
    """Requests that found the connection kept for them closed."""


@dataclass(frozen=True, slots=True)
class ServerMetrics:
    """What a server's metrics said: each series by its name and labels, a value for each instant."""

    at: tuple[float, ...]
    series: dict[str, tuple[float | None, ...]]
    """None where it was absent, which is not zero."""


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
    load: Load = Load.OPEN
    warm_up_s: float = 0.0
    """What was due before is on record and in no figure: the server was still filling up."""
    client: ClientLoad | None = None
    """None where nobody looked, as in a simulation."""
    alone: tuple[Timeline, ...] = ()
    """Requests of the same kind that had the server to themselves, before the run."""
    server: ServerMetrics | None = None
    """What its metrics said meanwhile; None where it has none."""
    shared_share: float = 0.0
    """Of the prompt tokens, what a cache that forgets nothing finds in this load alone."""

    @property
    def measured(self) -> tuple[Timeline | Failure, ...]:
        """The results that count: due after the warm-up."""
        if not self.warm_up_s:
            return self.results
        return tuple(result for result in self.results if result.due_at >= self.warm_up_s)

    @property
    def timelines(self) -> tuple[Timeline, ...]:
        return tuple(r for r in self.measured if isinstance(r, Timeline))

    @property
    def failures(self) -> tuple[Failure, ...]:
        return tuple(r for r in self.measured if isinstance(r, Failure))

    def per_s(self, count: int) -> float:
        """How many of something a second after the warm-up; 0 where that was too short for a rate."""
        lasted_s = self.duration_s - self.warm_up_s
        return count / lasted_s if lasted_s >= SHORTEST_RUN_S else 0.0
