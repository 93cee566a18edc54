"""Runs made, kept and graded: what `tune.drive` takes for the judge, and what a search works with.

Wanted -> Recorder -> a judge makes the run -> the journal keeps it -> tune.grade -> Run
"""

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime

from headrace.cli.tuning_journal import Journal, Made
from headrace.cli.tuning_judge import Judge, Judged, ServerJudge
from headrace.cli.tuning_survey import Survey
from headrace.cli.tuning_targets import Tunable
from headrace.cli.tuning_twin import TwinServer
from headrace.cli.tuning_workload import Traffic
from headrace.core.errors import BadInput, TargetFailed
from headrace.core.goal import Goal
from headrace.core.trial import NoResult, Run, Wanted
from headrace.tune.grade import Seen, grade
from headrace.tune.twin import Point


@dataclass(slots=True)
class Judging:
    """What a search needs, beside its goal."""

    journal: Journal
    survey: Survey
    traffic: Traffic
    twin: TwinServer
    """With the requests as they were sent, until a run shows how the server counts them."""
    judge: Judge
    server: ServerJudge | None
    """None where the target is a twin."""


@dataclass(frozen=True, slots=True)
class TwinJudge:
    """Runs that are simulations."""

    target: Tunable
    twin: TwinServer

    def __call__(self, wanted: Wanted, number: int) -> Judged:
        del number  # the twin knows no words, and no chance
        command = self.target.command(wanted.overrides)
        try:
            measurement, seen = self.twin.run(Point(wanted.overrides, wanted.load))
        except (BadInput, TargetFailed) as error:
            return Judged(command, failed=str(error))
        return Judged(command, measurement, seen=seen)


@dataclass(slots=True)
class Recorder:
    """Makes a run, keeps it, and tells how it did: `tune.drive`'s judge."""

    journal: Journal
    judge: Judge
    target: Tunable
    goal: Goal | None = None
    """Set before the first grade."""
    _graded: dict[int, Run] = field(default_factory=dict[int, Run])

    def __call__(self, wanted: Wanted) -> Run:
        began = time.monotonic()
        judged = self.judge(wanted, len(self.journal.runs) + 1)
        self.keep(wanted, judged, time.monotonic() - began)
        return self.runs()[-1]

    def keep(self, wanted: Wanted, judged: Judged, took_s: float) -> None:
        made = Made(
            overrides=wanted.overrides,
            load=wanted.load,
            purpose=wanted.purpose,
            took_s=took_s,
            at=datetime.now(UTC).isoformat(timespec="seconds"),
            command=judged.command,
            record=None if judged.measurement is None else self.journal.next_record(),
            failed=judged.failed,
            is_steady=judged.seen.is_steady,
            preemptions=judged.seen.preemptions,
            invalid=judged.invalid,
            busy_cores=judged.busy_cores,
            others_cores=judged.others_cores,
        )
        self.journal.keep(made, judged.measurement)

    def runs(self) -> list[Run]:
        """All of the journal's, graded. Each record is read once."""
        for place, made in enumerate(self.journal.runs):
            if place not in self._graded:
                self._graded[place] = self._run_of(made)
        return [self._graded[place] for place in range(len(self.journal.runs))]

    def _run_of(self, made: Made) -> Run:
        assert self.goal is not None, "set before the first grade"
        measurement = self.journal.measurement(made)
        if measurement is None:
            outcome = NoResult(made.failed or "no result")
        else:
            outcome = grade(measurement, self.goal, Seen(made.is_steady, made.preemptions))
        return Run(dict(made.overrides), made.load, made.purpose, outcome, made.took_s)
