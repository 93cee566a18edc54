"""Find settings under which one class of requests gets its first token sooner, and prove it.

    judge(overrides) -> Measurement | TargetFailed        search(judge, start, budget) -> Outcome

    baseline -> candidates in the order of its bill -> baseline, best, baseline, best -> verdict

The best of the first runs is only a suspect. It and the baseline are run again in turns, so that a
machine that drifts drifts for both, and `verdict` compares those runs. A budget that is running out
takes candidates away, never repeats: an unproven find is worth nothing.

Knows nothing of servers, sockets or models; is told the time. Whatever interrupts it, the trials
that its observer was given are enough for `conclude`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.core.errors import TargetFailed
from headrace.core.measurement import Measurement
from headrace.core.ports import Judge, Overrides
from headrace.core.slow import slow_bill
from headrace.core.trial import Gain, NoResult, Outcome, Trial, Verdict
from headrace.tune.candidates import Start, propose
from headrace.tune.score import Score, score
from headrace.tune.verdict import gain_of, is_beyond_noise

START: Overrides = {}
"""The starting settings: nothing overridden."""
REPEATS = 2
"""Runs of the baseline and of the contender beyond the first of each."""
WORTHWHILE_RUNS = tuple(1 + candidates + 2 * REPEATS for candidates in (3, 2, 1))
"""Numbers of runs that give a whole search, the more thorough first."""
LEAST_THROUGHPUT = 0.95
"""Share of the baseline's throughput that a contender must keep."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How long, and how many runs, a search may take. None: no limit of that kind."""

    ends_at: float | None = None
    """On the clock that `search` is given."""
    max_trials: int | None = None

    def room(self, trials_done: int, longest_s: float, now: float) -> float:
        """How many more runs fit, each taken to be as long as the longest so far; may be infinite."""
        in_number = math.inf if self.max_trials is None else self.max_trials - trials_done
        in_time = math.inf if self.ends_at is None or longest_s == 0 else (self.ends_at - now) // longest_s
        return max(0.0, min(in_number, in_time))


class Observer(Protocol):
    """Is told what happens while it happens."""

    def starting(self, overrides: Overrides, number: int, of: int | None) -> None:
        """Run `number` of about `of` begins; None before the first has shown how long one takes."""
        ...

    def ended(self, trial: Trial) -> None: ...


@dataclass(slots=True)
class _Runs:
    """Makes runs one after the other and keeps what a decision needs of them."""

    judge: Judge
    budget: Budget
    clock: Callable[[], float]
    observer: Observer
    trials: list[Trial]
    longest_s: float = 0.0

    def room(self) -> float:
        return self.budget.room(len(self.trials), self.longest_s, self.clock())

    def run(self, overrides: Overrides, planned: float | None) -> Trial:
        """Run once. `planned` is how many runs are still wanted, this one included."""
        done = len(self.trials)
        of = None if planned is None else done + int(min(planned, max(self.room(), 1)))
        self.observer.starting(overrides, done + 1, of)
        began = self.clock()
        try:
            result = self.judge(overrides)
        except TargetFailed as error:
            result = NoResult(str(error))
        trial = Trial(overrides, result)
        self.trials.append(trial)
        self.longest_s = max(self.longest_s, self.clock() - began)
        self.observer.ended(trial)
        return trial


def search(
    judge: Judge,
    start: Start,
    budget: Budget,
    clock: Callable[[], float],
    observer: Observer,
    target_class: str = "short",
) -> Outcome:
    """Raises `TargetFailed` when not even the starting settings give a result to compare with."""
    runs = _Runs(judge, budget, clock, observer, [])
    baseline = runs.run(START, planned=None).result
    if isinstance(baseline, NoResult):
        raise TargetFailed(f"the starting settings gave no result: {baseline.cause}")
    if score(baseline, target_class) is None:
        raise _nothing_answered(baseline, target_class)
    proposal = propose(start, slow_bill(baseline, target_class))
    tried = _explore(runs, proposal.choices, target_class)
    _repeat(runs, target_class)
    return conclude(runs.trials, target_class, proposal.choices[tried:], proposal.notes)


def _explore(runs: _Runs, choices: Sequence[Overrides], target_class: str) -> int:
    """Run each candidate once, as long as the repeats would still fit; say how many were run."""
    repeats = 2 * REPEATS
    for tried, choice in enumerate(choices):
        # While nothing is worth repeating, the time for repeats is better spent on looking on.
        has_contender = pick_contender(runs.trials, target_class) is not None
        if runs.room() < 1 + (repeats if has_contender else 0):
            return tried
        runs.run(choice, planned=len(choices) - tried + repeats)
    return len(choices)


def _repeat(runs: _Runs, target_class: str) -> None:
    """Run baseline and contender in turns. A contender that fails a repeat makes way for the next best."""
    while (contender := pick_contender(runs.trials, target_class)) is not None:
        baseline_due = REPEATS + 1 - _count(runs.trials, START)
        contender_due = REPEATS + 1 - _count(runs.trials, contender)
        if (baseline_due <= 0 and contender_due <= 0) or runs.room() < 1:
            return
        choice = START if baseline_due >= contender_due else contender
        still_due = max(baseline_due, 0) + max(contender_due, 0)
        runs.run(choice, planned=still_due)


def pick_contender(trials: Sequence[Trial], target_class: str) -> Overrides | None:
    """The candidate whose first run was fastest, among those that never failed and kept the throughput.

    None when none was even once faster than the baseline's first run.
    """
    baseline = _first_score(trials, START, target_class)
    if baseline is None:
        return None
    best, best_s = None, baseline.p95_ttft_s
    for trial in trials:
        found = _first_score(trials, trial.overrides, target_class)
        if (
            trial.overrides != START
            and found is not None
            and found.p95_ttft_s < best_s
            and found.throughput_rps >= LEAST_THROUGHPUT * baseline.throughput_rps
            and _is_sound(trials, trial.overrides, target_class)
        ):
            best, best_s = trial.overrides, found.p95_ttft_s
    return best


def conclude(
    trials: Sequence[Trial],
    target_class: str = "short",
    untried: Sequence[Overrides] = (),
    notes: Sequence[str] = (),
) -> Outcome:
    """What may be said after these trials, whether or not the search came to its end."""
    contender = pick_contender(trials, target_class)
    gain = _gain(trials, contender, target_class) if contender is not None else None
    verdict, why = _verdict(trials, contender, gain, target_class)
    if contender is None and untried:
        why += f" ({len(untried)} more were left untried)"
    return Outcome(verdict, why, tuple(trials), contender, gain, tuple(untried), tuple(notes))


def _verdict(
    trials: Sequence[Trial], contender: Overrides | None, gain: Gain | None, target_class: str
) -> tuple[Verdict, str]:
    candidates = {str(trial.overrides) for trial in trials if trial.overrides != START}
    if not candidates:
        return Verdict.INCONCLUSIVE, "the search ended before any candidate was tried"
    if contender is None:
        tried = (
            f"none of {len(candidates)} candidates"
            if len(candidates) > 1
            else "not even the 1 candidate tried"
        )
        return Verdict.NOTHING_BETTER, f"{tried} was faster and kept the throughput"
    if gain is None:
        return Verdict.INCONCLUSIVE, "the search ended before repeated runs could show the noise"
    kept = _throughput_kept(trials, contender, target_class)
    if kept < LEAST_THROUGHPUT:
        return (
            Verdict.NOTHING_BETTER,
            f"the fastest candidate keeps {kept:.1%} of the throughput, and {LEAST_THROUGHPUT:.0%} is asked",
        )
    if is_beyond_noise(gain):
        return Verdict.IMPROVED, f"with 95 % confidence at most {gain.ratio_at_most:.2f} times the wait"
    why = (
        f"the fastest candidate took {gain.ratio:.2f} times as long, and repeated runs of the same settings "
        f"differ by a factor of {gain.spread:.2f}: it may be anything up to {gain.ratio_at_most:.2f}"
    )
    enough = gain.baseline_runs > REPEATS and gain.contender_runs >= REPEATS
    return (Verdict.NOTHING_BETTER if enough else Verdict.INCONCLUSIVE), why


def _gain(trials: Sequence[Trial], contender: Overrides, target_class: str) -> Gain | None:
    baseline = [found.p95_ttft_s for found in _scores(trials, START, target_class)]
    repeats = [found.p95_ttft_s for found in _scores(trials, contender, target_class)[1:]]
    return gain_of(baseline, repeats)


def _throughput_kept(trials: Sequence[Trial], contender: Overrides, target_class: str) -> float:
    before = [found.throughput_rps for found in _scores(trials, START, target_class)]
    after = [found.throughput_rps for found in _scores(trials, contender, target_class)]
    return (sum(after) / len(after)) / (sum(before) / len(before))


def _is_sound(trials: Sequence[Trial], overrides: Overrides, target_class: str) -> bool:
    """Every run gave a result, and none lost more requests than the baseline's worst."""
    results = [trial.result for trial in trials if trial.overrides == overrides]
    scores = _scores(trials, overrides, target_class)
    tolerated = max(found.failed for found in _scores(trials, START, target_class))
    return len(scores) == len(results) and max(found.failed for found in scores) <= tolerated


def _scores(trials: Sequence[Trial], overrides: Overrides, target_class: str) -> list[Score]:
    found = (
        score(trial.result, target_class)
        for trial in trials
        if trial.overrides == overrides and isinstance(trial.result, Measurement)
    )
    return [each for each in found if each is not None]


def _first_score(trials: Sequence[Trial], overrides: Overrides, target_class: str) -> Score | None:
    return next(iter(_scores(trials, overrides, target_class)), None)


def _count(trials: Sequence[Trial], overrides: Overrides) -> int:
    return sum(trial.overrides == overrides for trial in trials)


def _nothing_answered(measurement: Measurement, target_class: str) -> TargetFailed:
    if all(each.request_class != target_class for each in measurement.results):
        return TargetFailed(
            f"in so short a run, not one {target_class} request was due", "give more time: a larger --budget"
        )
    reason = next((each.reason for each in measurement.failures if each.request_class == target_class), "")
    told = f": {reason}" if reason else ""
    return TargetFailed(f"not one {target_class} request was answered under the starting settings{told}")
