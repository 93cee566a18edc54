"""What a search for better settings tried, and what came of it.

    tune.next_trial(problem, runs) -> Wanted --a judge--> Run     ... until a core.conclusion.Conclusion

A `Run` is one run of one choice of settings; the same choice may have several.
"""

from dataclasses import dataclass
from enum import StrEnum

from headrace.core.grade import Grade
from headrace.core.ports import Overrides


class Verdict(StrEnum):
    """What may be said after the trials."""

    IMPROVED = "improved"
    """The contender's gain is beyond the noise of repeated runs."""
    NOTHING_BETTER = "nothing_better"
    """No candidate did better than the starting settings beyond the noise of repeated runs."""
    INCONCLUSIVE = "inconclusive"
    """The budget ended, or somebody ended it, before the trials could decide."""
    UNREACHABLE = "unreachable"
    """No setting meets the objectives, not even at the lowest load that was tried."""
    DRIFTED = "drifted"
    """The baseline itself changed while it was measured, by more than there is to gain."""


@dataclass(frozen=True, slots=True)
class NoResult:
    """Settings under which the server would not start, or left. A finding, not an accident."""

    cause: str


class Purpose(StrEnum):
    """Why a run is made."""

    BASELINE = "baseline"
    """The starting settings at the workload's own rate: the yardstick, and what calibrates the twin."""
    CHECK = "check"
    """The first run of a candidate at a load: is it what the twin says?"""
    PROOF = "proof"
    """A repeat of the contender or of the baseline, at one load, in turns."""
    LEVER = "lever"
    """One further lever switched, everything else as proven."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The run that would tell most now."""

    overrides: Overrides
    """Settings that differ from the start; empty are the starting settings."""
    load: float
    """Multiple of the workload's own rate."""
    purpose: Purpose
    why: str
    """One line for a person."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run that was made: what a journal keeps, and all that a search knows."""

    overrides: Overrides
    load: float
    purpose: Purpose
    outcome: Grade | NoResult
    took_s: float = 0.0
    """With starting and stopping the server: what the next one will take."""


@dataclass(frozen=True, slots=True)
class Gain:
    """How the contender's repeats compare with the baseline's runs, as ratios."""

    ratio: float
    """Contender by baseline: 0.5 halves the wait."""
    ratio_at_most: float
    """Upper end of the one-sided 95 % interval of `ratio`; 1 or more means it may be noise."""
    spread: float
    """Ratio by which two runs of one and the same choice typically differ; 1.1 is a tenth."""
    baseline_runs: int
    contender_runs: int
