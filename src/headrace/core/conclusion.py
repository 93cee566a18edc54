"""What may be said when a search for better settings has ended: the answer, and what it rests on.

tune.next_trial(problem, runs) -> Conclusion     tune.curves -> Curve, FrontierPoint     -> report
"""

from dataclasses import dataclass
from math import ceil

from headrace.core.cost import Pace
from headrace.core.grade import Grade
from headrace.core.ports import Overrides
from headrace.core.trial import Gain, NoResult, Purpose, Verdict

Value = int | float | bool | str
_AS_FOUND = Pace()


@dataclass(frozen=True, slots=True)
class Bracket:
    """Between which multiples of the workload's rate a capacity was seen to lie."""

    met: float | None
    """The highest load at which it met every objective; None where it never did."""
    missed: float | None
    """The lowest load at which it did not; None where it always did."""

    def replicas(self, load: float = 1.0) -> int | None:
        """Servers like this for a load, if it divides evenly among them; None where none would do."""
        return None if not self.met else ceil(load / self.met - 1e-9)


@dataclass(frozen=True, slots=True)
class Predicted:
    """One run, beside what the twin says of it at the pace that all the runs showed."""

    number: int
    """Place among the runs, from 0."""
    overrides: Overrides
    load: float
    purpose: Purpose
    predicted: Grade | NoResult
    measured: Grade | NoResult
    is_beyond_noise: bool
    """They differ by more than two runs of one choice do; never said of further levers."""


@dataclass(frozen=True, slots=True)
class LeverFound:
    """One further lever, switched alone on top of what was proven."""

    name: str
    overrides: Overrides
    reason: str
    """Why it was worth a run here."""
    gain: Gain | None
    """Of the ratio at the same load; None where too few runs were made."""
    is_kept: bool
    why: str


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The answer of one search."""

    verdict: Verdict
    why: str
    """The verdict's reason in one clause, with the numbers."""
    contender: Overrides | None
    """The candidate that was put to repeats, kept levers included; None when none was worth it."""
    load: float
    """At which contender and baseline were compared."""
    gain: Gain | None
    """Contender by baseline, of the worst ratio to a limit at that load."""
    baseline_bracket: Bracket
    contender_bracket: Bracket
    baseline_believed: float | None = None
    """Of a capacity: the load that the start carries in the mended twin, held within its bracket. Since it is
    run where the contender is, what it was seen to meet may be far below what it carries.
    """
    levers: tuple[LeverFound, ...] = ()
    predictions: tuple[Predicted, ...] = ()
    pace: Pace = _AS_FOUND
    simulated: int = 0
    """Simulations that the twin was asked for."""
    spread: float | None = None
    """Ratio by which two runs of one choice typically differ; None where none was repeated."""
    nearest: Grade | None = None
    """Of an objective out of reach: the best run there was."""
    notes: tuple[str, ...] = ()

    @property
    def recommended(self) -> Overrides:
        """What to change: the contender where it is proven, else nothing."""
        return dict(self.contender) if self.verdict is Verdict.IMPROVED and self.contender else {}


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One value of one lever in the twin, all else as in the winner."""

    value: Value
    capacity: float | None
    """Highest load that meets every objective; None where none does, or where it was not looked for."""
    grade: Grade | NoResult
    """At the load of the comparison."""
    reason: str


@dataclass(frozen=True, slots=True)
class Curve:
    """One lever around the winner."""

    lever: str
    winner: Value
    points: tuple[CurvePoint, ...]
    """In order of value; a cap of 0 is none and comes last."""
    knee: Value | None
    """The least value beyond which nothing more is won; None where the lever does nothing here."""
    steps: tuple[str, ...]
    """What each step costs, as "2048 -> 4096: +3 % throughput, P95 TTFT x 1.8"."""


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """One setting at one load that no other beats in both throughput and latency."""

    overrides: Overrides
    load: float
    output_tokens_per_s: float
    ratio: float
    """The worst ratio to a limit."""


@dataclass(frozen=True, slots=True)
class ObviousMove:
    """What people try by reflex, in the twin, and what it gives here."""

    name: str
    overrides: Overrides
    grade: Grade | NoResult
    unsafe: str | None
    """Why it would not be tried on a server; None where it might."""


@dataclass(frozen=True, slots=True)
class Pool:
    """One kind of request on servers of its own, at the best settings that the twin has for it."""

    name: str
    overrides: Overrides
    capacity: float
    """Multiple of the workload's rate at which one such server carries its kind of it."""


@dataclass(frozen=True, slots=True)
class Pools:
    """Servers of their own for kinds of requests, beside one kind of server for all. The twin's opinion."""

    together: Pool
    apart: tuple[Pool, ...]
    """Empty where a pool cannot meet its objectives at any load."""
    share: float | None
    """Servers apart by servers together for the same load, before they are rounded up."""
    pays_from: int | None
    """The smallest fleet, in servers together, that pools make smaller; None where none is."""
    why: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """The twin's picture around the answer."""

    start: Grade | NoResult
    answer: Grade | NoResult
    """Both at the load of the comparison, as the moves are."""
    curves: tuple[Curve, ...]
    frontier: tuple[FrontierPoint, ...]
    obvious: tuple[ObviousMove, ...]
    simulated: int
