"""Tells a person what a tuning does while it does it: five steps, each run in two lines. On stderr.

0:00  1 Goal
0:02  2 Workload
0:50  3 Safety first      the baseline: how fast, how safe, how far two runs of it differ
2:10  4 Main budgets      the twin's figures, then real runs
15:40  5 Further levers
"""

import math
import os
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.status import Status

from headrace.cli.tuning_journal import Journal, Made
from headrace.cli.tuning_survey import Survey
from headrace.cli.tuning_workload import Traffic
from headrace.core.goal import Aim, Goal
from headrace.core.grade import ClassGrade, Grade
from headrace.core.objective import Metric, Objectives
from headrace.core.trial import NoResult, Purpose, Run, Wanted
from headrace.report.tuning.grounds import objectives_words
from headrace.report.tuning.words import settings_words
from headrace.report.units import seconds
from headrace.tune.problem import Problem
from headrace.workload.features import Features

AIMS = {
    Aim.CAPACITY: "the most load at which every objective is met",
    Aim.LATENCY: "the least latency at the workload's own load",
    Aim.COST: "the fewest servers for the workload's load",
}
GIB = 1 << 30
OTHERS_MATTER = 0.3
"""Processors that others kept busy, from which on a person is told."""
QUIET_S = 10.0
"""Without a line while the twin computes; where no terminal shows a count that moves."""


@dataclass(slots=True)
class Teller:
    """`tune.drive`'s observer, and more."""

    console: Console
    ends_at: float
    """On `now`."""
    now: Callable[[], float] = time.monotonic
    _problem: Problem | None = None
    _baselines: list[Grade] = field(default_factory=list[Grade])
    _made: Sequence[Made] = ()
    _headroom_bytes: int = 0
    _told: set[str] = field(default_factory=set[str])
    _status: Status | None = None
    _simulated: int = 0
    _began: float = field(init=False)
    _said_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._began = self._said_at = self.now()

    def say(self, what: str) -> None:
        self._quiet()
        line = f"{self._passed()}  {what}"
        indent = " " * (9 + len(what) - len(what.lstrip()))
        for part in textwrap.wrap(line, self.console.width, subsequent_indent=indent, break_on_hyphens=False):
            self.console.print(part, highlight=False, markup=False, soft_wrap=True)

    def step(self, title: str) -> None:
        """Its heading, once."""
        if title not in self._told:
            self._told.add(title)
            self._quiet()
            line = f"{self._passed()}  {title}"
            self.console.print(line, style="bold", highlight=False)

    # --- 1 and 2

    def goal_asked(self, objectives: Objectives, aim: Aim | None) -> None:
        self.step("1 Goal")
        if objectives:
            self.say(f"  {objectives_words(objectives)}")
            self.say(f"  and with that, {AIMS[aim or Aim.CAPACITY]}")
        else:
            self.say("  no --slo is given: a goal is proposed when the server has been seen as it is")

    def workload(self, traffic: Traffic, survey: Survey, features: Features) -> None:
        self.step("2 Workload")
        self._headroom_bytes = survey.headroom_bytes
        self.say(f"  {traffic.said}")
        prompt, timing = features.prompt, features.timing
        self.say(
            f"  {features.requests:,} requests, {timing.rate:.2g} a second; prompts of {prompt.p50:,.0f} "
            f"tokens at the median, {prompt.p99:,.0f} at P99"
        )
        if len(features.classes) > 1:
            shares = ", ".join(f"{each.name} {each.share:.0%}" for each in features.classes)
            self.say(f"  classes: {shares}")
        for line in survey.says:
            self.say(f"  twin: {line.strip()}")

    def resumed(self, journal: Journal) -> None:
        count = len(journal.runs)
        runs = "no run yet" if not count else f"{count} run{'s' if count > 1 else ''} made already"
        self.say(f"going on from {journal.folder}: {runs}")

    def goal(self, goal: Goal, why: str, warnings: Sequence[str]) -> None:
        if why:  # else a person has said it
            self.say(f"  goal: {objectives_words(goal.objectives)} ({why})")
        for warning in warnings:
            self.say(f"  beware: {warning}")

    def lighter(self, took_s: float, traffic: Traffic) -> None:
        self.say(f"  the start took {seconds(took_s)} to answer: too much load to learn from")
        self.say(f"  now {traffic.said}")

    # --- 3, 4 and 5

    def begin(self, problem: Problem, runs: Sequence[Run], made: Sequence[Made]) -> None:
        """`made` grows while runs are made. Runs of before are told in brief."""
        self._problem, self._made = problem, made
        for number, run in enumerate(runs, 1):
            self.step("3 Safety first")
            if len(runs) > 1:
                self.say(f"run {number}, made already: {settings_words(run.overrides)}{_at(run.load)}")
            self.ended(run, number)

    def starting(self, wanted: Wanted, number: int) -> None:
        if wanted.purpose is Purpose.BASELINE:
            self.step("3 Safety first")
        else:
            self.step("5 Further levers" if wanted.purpose is Purpose.LEVER else "4 Main budgets")
            if self._problem is not None and wanted.purpose is Purpose.CHECK:
                self.say(f"  {self._problem.twin.simulated:,} settings and loads simulated so far")
        left = "" if math.isinf(self.ends_at) else f", {clock(self.ends_at - self.now())} left"
        self.say(f"run {number}{left}: {settings_words(wanted.overrides)}{_at(wanted.load)}")
        self.say(f"  {wanted.why}")

    def ended(self, run: Run, number: int) -> None:
        if isinstance(run.outcome, NoResult):
            self.say(f"  no result: {run.outcome.cause}")
            return
        self.say(f"  {grade_words(run.outcome)}")
        for remark in remarks_on(self._made[number - 1 : number]):
            self.say(f"  {remark}")
        if run.purpose is Purpose.BASELINE:
            self._baselines.append(run.outcome)
            if len(self._baselines) == 2:
                self._safety(self._made[number - 1] if number <= len(self._made) else None)

    def _safety(self, made: Made | None) -> None:
        first, second = self._baselines
        ratios = sorted((first.ratio, second.ratio))
        if ratios[0] > 0 and math.isfinite(ratios[1]):
            self.say(f"  yardstick: two runs of the same settings differ {ratios[1] / ratios[0]:.2f} times")
        failed, due = first.failed + second.failed, first.due + second.due
        told = [grade.preemptions for grade in self._baselines if grade.preemptions is not None]
        preempted = f"{sum(told)} preemptions" if told else "preemptions are not told"
        self.say(f"  safe? {failed} of {due} requests failed, {preempted}")
        if self._headroom_bytes:
            self.say(f"  memory to spare beyond a reserve: {self._headroom_bytes / GIB:.1f} GiB")
        if made is not None and made.busy_cores is not None:
            self.say(f"  processors busy: {made.busy_cores:.1f} of {os.cpu_count()}")

    def simulating(self, done: int, of: int) -> None:
        """One of a batch in the twin: a count that moves on a terminal, elsewhere a line now and then."""
        self._simulated += 1
        text = f"twin: {self._simulated:,} simulations; {done} of {of} in this batch"
        if not self.console.is_terminal:
            if self.now() - self._said_at >= QUIET_S:
                self.say(f"  {text}")
            return
        if self._status is None:
            self._status = self.console.status(text)
            self._status.start()
        self._status.update(text)
        if done == of:
            self._quiet()

    def _passed(self) -> str:
        """Since the start; a line is being said."""
        self._said_at = self.now()
        return f"{clock(self._said_at - self._began):>5}"

    def _quiet(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None


def grade_words(grade: Grade) -> str:
    """One run in one line."""
    parts = [
        f"{each.request_class} P95 TTFT {seconds(ttft_p95_s)}"
        for each in grade.classes
        if (ttft_p95_s := _ttft_p95_s(grade, each)) is not None
    ]
    parts.append(f"{grade.throughput_rps:.2f} req/s")
    if (binding := grade.binding()) is not None:
        ratio = "beyond" if math.isinf(binding.ratio) else f"{binding.ratio:.2f} of"
        parts.append(f"{ratio} the limit")
    if grade.failed:
        parts.append(f"{grade.failed} failed")
    if grade.is_steady is False:
        parts.append("the queue grew")
    return ", ".join(parts)


def _ttft_p95_s(grade: Grade, of: ClassGrade) -> float | None:
    """As its objective takes it, if it has one: the table that follows shows that."""
    asked = (
        each.value_s
        for each in grade.attained
        if (each.request_class, each.objective.metric, each.objective.percentile)
        == (of.request_class, Metric.TTFT, 95)
        and math.isfinite(each.value_s)
    )
    return next(asked, of.ttft_p95_s)


def remarks_on(runs: Sequence[Made]) -> Iterator[str]:
    """What a person should know of how they were measured."""
    others = [made.others_cores for made in runs if made.others_cores is not None]
    if others and max(others) >= OTHERS_MATTER:
        between = f"{min(others):.1f} to {max(others):.1f}" if len(others) > 1 else f"{others[0]:.1f}"
        yield f"others kept {between} of {os.cpu_count()} processors busy meanwhile"
    invalid = [made.invalid for made in runs if made.invalid is not None]
    if invalid:
        count = f"{len(invalid)} of {len(runs)} runs are" if len(runs) > 1 else "this run is"
        yield f"{count} invalid, and counts with its noise: {invalid[0]}"


def _at(load: float) -> str:
    return "" if load == 1 else f", {load:.2f} times the load"


def clock(amount_s: float) -> str:
    """Minutes and seconds, 0 of what has passed."""
    minutes, rest = divmod(int(max(0.0, amount_s)), 60)
    return f"{minutes}:{rest:02}"
