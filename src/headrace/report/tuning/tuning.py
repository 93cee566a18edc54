"""One search for better settings, with all that a report of it needs to know.

    goal + server + traffic + runs + Conclusion + Explanation  -->  Tuning  -->  text, page, as_json

The figures are those of `core.conclusion` and `core.grade`; what is added here is only what a person asks
beside them: which server, which traffic, which command, how each run was made.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.core.conclusion import Conclusion, Explanation, Pools
from headrace.core.goal import Goal
from headrace.core.grade import Grade
from headrace.core.measurement import Measurement
from headrace.core.ports import Overrides
from headrace.core.trial import Run
from headrace.workload.features import Features


@dataclass(frozen=True, slots=True)
class RunDetail:
    """What a search does not need to know of a run, and a reader does."""

    measurement: Measurement | None = None
    """Its record, from which validity and intervals are told; None where there is none."""
    command: str = ""
    """What a person would type for this server."""
    at: str = ""
    """When it ended, in UTC."""
    remarks: tuple[str, ...] = ()
    busy_cores: float | None = None
    """Processors at work meanwhile, on average, ours and others'."""
    others_cores: float | None = None
    """Of these, neither the server's nor the client's."""


@dataclass(frozen=True, slots=True)
class Server:
    """What was tuned."""

    name: str
    model: str
    start: Overrides
    """Every lever's value at the start."""
    command: str
    """As it is started now."""
    recommended: str
    """As it should be started; equal to `command` where nothing is to be changed."""
    also: tuple[tuple[str, str], ...] = ()
    """Further commands under their headings, as "the same for vLLM"."""
    restarts: bool = True
    """False: somebody else's, measured as it is; what is told is advice."""
    headroom_bytes: int | None = None
    """Memory that nobody needs; None: not known."""
    cores: int | None = None
    """Processors of the machine."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What every run sent."""

    said: str
    """One line, seed included."""
    features: Features | None = None
    kind: str = ""
    """As "interactive"; empty where nobody asked."""
    kind_why: str = ""
    rate_rps: float | None = None
    """Requests a second at load 1."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Advice:
    """The best in the twin, which no run has proven."""

    overrides: Overrides
    now: Grade
    """The start in the twin."""
    then: Grade
    load: float
    command: str


@dataclass(frozen=True, slots=True)
class PoolAdvice:
    """Short and long requests on servers of their own, which no run has proven."""

    found: Pools
    bound_tokens: int
    """The longest prompt that counts as short."""
    short_share: float
    """Of the requests."""
    commands: tuple[str, ...]
    """Of `found.apart`, in that order."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """`details[i]` is about `runs[i]`; where they are fewer, nothing more is known."""

    goal: Goal
    server: Server
    traffic: Traffic
    runs: tuple[Run, ...]
    conclusion: Conclusion | None
    """None: it ended before a single run did."""
    goal_why: str = ""
    """Why this goal was proposed; empty where a person gave it."""
    details: tuple[RunDetail, ...] = ()
    explanation: Explanation | None = None
    advice: Advice | None = None
    pools: PoolAdvice | None = None
    """None: nobody asked the twin, or it does not apply."""
    twin: str = ""
    """What the twin was made of."""
    twin_s: float = 0.0
    """Spent in simulations."""
    is_interrupted: bool = False
    resume: str = ""
    """The command that goes on from here; empty where there is no more to do."""
    journal: str = ""
    """The folder with every run's record."""
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    seed: int | None = None

    def detail(self, number: int) -> RunDetail:
        return self.details[number] if number < len(self.details) else RunDetail()
