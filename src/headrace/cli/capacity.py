"""`headrace bench --find-capacity`: run after run at other rates, and what came of it."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from headrace.cli.loads import LoadOptions, at_rate, load_of, refuse_strange_classes, usual_rate
from headrace.cli.measuring import Interrupted, Target, Watching, measure_planned
from headrace.cli.wording import Wording
from headrace.core.measurement import ALL, Measurement
from headrace.core.objective import Objectives
from headrace.measure.capacity import Capacity, Found, Probe, find
from headrace.measure.enough import Shortage, enough_s, shortages
from headrace.measure.goodput import Judged, Verdict, judged, overall
from headrace.measure.steady import steadiness
from headrace.measure.summary import summarise
from headrace.measure.validity import check
from headrace.report.capacity import print_capacity, probe_line
from headrace.report.capacity_page import capacity_page
from headrace.report.progress import Progress, Stage
from headrace.report.run_page import write_page
from headrace.report.units import many, seconds

EXIT_NOT_FOUND = 3


class Options(LoadOptions):
    """Of the load, and what becomes of the result."""

    slo: Objectives | None
    html: Path | None
    as_json: bool


def find_capacity(target: Target, options: Options, wording: Wording) -> None:
    """Shows each run on stderr as it ends, the result on stdout."""
    objectives = options["slo"] or ()
    console = Console(stderr=True, markup=False, highlight=False, emoji=False)
    console.print(f"{target.url}: looking for the highest rate, {_said(objectives)}")

    left = [1]

    def judge(rate: float, number: int, longer: float) -> Probe:
        load = load_of(at_rate(options, rate, number, longer), wording)
        refuse_strange_classes(objectives, load)
        after_s = (left[-1] - 1) * load.duration_s
        stage = Stage(f"run {number + 1} at {rate:.3g} /s", after_s, is_least=True)
        with Progress(console, load.requests, load.duration_s, stage=stage) as progress:
            watching = Watching(options["timeout"], progress.on_event, on_start=progress.on_start)
            measurement = measure_planned(target, load, watching)
        probe = probe_of(rate, measurement, objectives)
        console.print(probe_line(probe))
        return probe

    try:
        capacity = find(judge, usual_rate(options), left.append)
    except Interrupted:
        console.print("interrupted: no capacity was found")
        raise
    print_capacity(capacity, objectives, Console(highlight=False))
    if options["html"] is not None:
        write_page(options["html"], capacity_page(target.url, capacity, objectives))
    if options["as_json"]:
        click.echo(json.dumps(_as_json(capacity, objectives)))
    if capacity.found is not Found.FOUND:
        raise SystemExit(EXIT_NOT_FOUND)


def probe_of(rate: float, measurement: Measurement, objectives: Objectives) -> Probe:
    """A queue that grew has missed; a run without enough requests cannot tell."""
    judgements = judged(measurement, objectives)
    steady = steadiness(measurement)
    verdict, why = overall(judgements), _worst(judgements, shortages(measurement, objectives))
    if steady.is_steady is False:
        verdict, why = Verdict.MISSED, f"no steady state: {steady.why}"
    checked = check(measurement)
    if not checked.is_valid:
        why = checked.reasons[0]
    ttft_s = summarise(measurement)[ALL].ttft_s
    return Probe(
        rate=rate,
        verdict=verdict,
        is_steady=steady.is_steady,
        why=why,
        ttft_p95_s=ttft_s.p95 if ttft_s else None,
        is_valid=checked.is_valid,
        would_do_s=enough_s(measurement, objectives) if verdict is Verdict.UNDECIDED else None,
    )


def _worst(judgements: list[Judged], short: list[Shortage]) -> str:
    """The objective that decided: the one that is furthest beyond its limit."""
    if not judgements:
        return "nothing was due after the warm-up"
    worst = max(judgements, key=lambda each: each.value_s / each.objective.limit_s)
    value = "more failed" if worst.value_s == float("inf") else seconds(worst.value_s)
    few = next(
        (
            f", of {many(each.has, 'request')}: {each.needs} are needed"
            for each in short
            if (each.request_class, each.objective) == (worst.request_class, worst.objective)
        ),
        "",
    )
    return (
        f"{worst.request_class} {worst.objective.metric} p{worst.objective.percentile:g} {value}"
        f"{few if worst.verdict is Verdict.UNDECIDED and worst.interval_s is None else ''}"
    )


def _said(objectives: Objectives) -> str:
    return "; ".join(map(str, objectives))


def _as_json(capacity: Capacity, objectives: Objectives) -> dict[str, Any]:
    return {"slo": [str(each) for each in objectives], **asdict(capacity)}
