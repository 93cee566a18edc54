"""What the page's answer rests on: safety, the search, every run, the traffic, and how to repeat it.

Tuning + before --run_sections--> sections of the page
"""

from collections.abc import Iterator, Sequence

from headrace.core.grade import Grade
from headrace.report.page import Section, Table
from headrace.report.tuning.figures import Side
from headrace.report.tuning.grounds import safety_words, searched_words
from headrace.report.tuning.trials import Trial, ranges, trials_of
from headrace.report.tuning.tuning import Tuning
from headrace.report.tuning.words import clock, grade_words, named_words, time_words, value_words
from headrace.report.units import seconds
from headrace.report.workload import class_table, facts, length_table

_HEAD = (
    *("run", "for", "settings", "load", "believed", "worst figure", "measured", "95 % sure"),
    *("ratio", "requests/s", "failed", "preempted", "processors", "took"),
)


def run_sections(tuning: Tuning, before: Side | None) -> Iterator[Section]:
    trials = trials_of(tuning)
    yield Section("Safety first", items=tuple(f"{said}." for said in safety_words(tuning, before)))
    if trials:
        yield _trials(tuning, trials)
    yield _traffic(tuning)
    yield _again(tuning, trials)


def _trials(tuning: Tuning, trials: Sequence[Trial]) -> Section:
    remarks = tuple(
        f"Run {trial.number}: {said}."
        for trial in trials
        for said in (trial.failed_because, *(trial.invalid or ()), *trial.detail.remarks)
        if said
    )
    return Section(
        "Every run on the server",
        sentences=(searched_words(tuning) + ".", "Intervals are by chance within the run."),
        table=Table(_HEAD, tuple(_row(trial) for trial in trials), frozenset({1, 2, 5})),
        items=remarks,
    )


def _row(trial: Trial) -> tuple[str, ...]:
    run, worst, grade = trial.run, trial.worst, trial.run.outcome
    believed = {None: "-", True: "yes", False: "NO"}[None if trial.invalid is None else not trial.invalid]
    between = trial.interval_s
    busy = trial.detail.busy_cores
    return (
        str(trial.number),
        run.purpose.value,
        named_words(run.overrides),
        f"{run.load:.3g}",
        believed,
        f"P{worst.objective.percentile:g} {worst.objective.metric.upper()}, {worst.request_class or 'all'}"
        if worst
        else "",
        time_words(worst.value_s) if worst else "",
        f"{seconds(between[0])} to {seconds(between[1])}" if between else "",
        grade_words(grade),
        f"{grade.throughput_rps:.3g}" if isinstance(grade, Grade) else "",
        f"{grade.failed:,} of {grade.due:,}" if isinstance(grade, Grade) else "",
        f"{grade.preempted_share:.0%}" if isinstance(grade, Grade) and grade.preemptions is not None else "",
        "" if busy is None else f"{busy:.1f}",
        clock(run.took_s) if run.took_s else "",
    )


def _traffic(tuning: Tuning) -> Section:
    traffic = tuning.traffic
    kind = f"Taken for {traffic.kind}" if traffic.kind else ""
    why = f": {traffic.kind_why}." if traffic.kind and traffic.kind_why else "." if kind else ""
    features = traffic.features
    parts: list[Section] = []
    if features is not None:
        parts.append(Section("Lengths", table=length_table(features), facts=tuple(facts(features))))
        if len(features.classes) > 1:
            parts.append(Section("Classes", table=class_table(features.classes)))
    return Section(
        "The traffic",
        sentences=tuple(said for said in (f"Every run sent {traffic.said}.", kind + why) if said),
        items=tuple(f"{warning}." for warning in traffic.warnings),
        parts=tuple(parts),
    )


def _again(tuning: Tuning, trials: Sequence[Trial]) -> Section:
    server = tuning.server
    said = [
        ("server", f"{server.name}, model {server.model}"),
        ("settings at the start", ", ".join(f"{n} {value_words(n, v)}" for n, v in server.start.items())),
        ("twin", tuning.twin),
        ("versions", ", ".join(f"{name} {version}" for name, version in tuning.versions.items())),
        ("seed", "" if tuning.seed is None else str(tuning.seed)),
        ("records", tuning.journal),
    ]
    commands = dict.fromkeys(
        f"# {_made_with(trials, trial.detail.command)}\n{trial.detail.command}"
        for trial in trials
        if trial.detail.command
    )
    resume = [f"# the search itself\n{tuning.resume}"] if tuning.resume else []
    return Section(
        "To repeat it",
        facts=tuple((name, what) for name, what in said if what),
        commands=(*resume, *commands),
    )


def _made_with(trials: Sequence[Trial], command: str) -> str:
    own = [trial for trial in trials if trial.detail.command == command]
    when = [trial.detail.at for trial in own if trial.detail.at]
    until = f", the last of them until {when[-1]}" if when else ""
    return f"runs {ranges([trial.number for trial in own])}{until}"
