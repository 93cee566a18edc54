"""`headrace bench URL`: how a server behaves under load."""

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

import click
from rich.console import Console

from headrace.cli.capacity import find_capacity
from headrace.cli.load_options import (
    KEPT,
    LOAD_SECTIONS,
    alone_option,
    file_option,
    load_options,
    slo_option,
)
from headrace.cli.loads import LoadOptions, check_load, load_of, refuse_strange_classes
from headrace.cli.measuring import Interrupted, Planned, Target, Watching, measure_planned
from headrace.cli.refused import GivesUp
from headrace.cli.vllm_bench_flags import LoadCommand
from headrace.cli.wording import Wording, wording_of
from headrace.core.errors import BadInput, TargetFailed
from headrace.core.measurement import Measurement
from headrace.core.objective import Objectives
from headrace.measure import record
from headrace.measure.goodput import Verdict, judged, overall
from headrace.measure.intervals import by_class
from headrace.measure.validity import check
from headrace.net.client import base_url, served_models
from headrace.net.exchange import KEPT_S
from headrace.report.as_json import measurement_json
from headrace.report.csv_file import write_csv
from headrace.report.progress import Progress, Stage
from headrace.report.run_page import run_page, write_page
from headrace.report.terminal import print_measurement
from headrace.report.units import many

EXIT_ALL_FAILED = 1
EXIT_MISSED = 3
EXIT_INVALID = 4
EXIT_INTERRUPTED = 130


class Options(LoadOptions):
    """What the command line says beside the address."""

    model: str | None
    slo: Objectives | None
    find_capacity: bool
    output: Path | None
    csv: Path | None
    html: Path | None
    as_json: bool


@click.command(
    cls=LoadCommand,
    no_args_is_help=True,
    short_help="How a server behaves under load.",
    sections=LOAD_SECTIONS
    | {"Verdict": ("slo", "find_capacity"), "Results": ("output", "csv", "html", "as_json")},
)
@click.argument("url")
@click.option("--model", help="Model to ask for.  [default: the server's first]")
@load_options
@alone_option
@slo_option
@click.option("--find-capacity", is_flag=True, help="Find the highest rate that meets --slo.")
@file_option("--output", "FILE.jsonl", "Keep the record: one line per request.")
@file_option("--csv", "FILE.csv", "One row per class, for a spreadsheet.")
@file_option("--html", "FILE.html", "One page with charts, that needs nothing else.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object on a line of its own.")
def bench(url: str, **options: Unpack[Options]) -> None:
    """Measure the OpenAI-compatible server at URL.

    Open loop: requests leave when they are due, whether or not others have been answered, and
    their latency counts from then. A run that this client has spoiled says so.

    Exit codes: 0 done, 1 nothing was answered, 2 wrong input, 3 the SLO was missed or could not be
    decided, 4 the run is invalid, 130 interrupted.

    \b
    Examples:
      headrace bench localhost:8000
      headrace bench localhost:8000 --rate 8 --prompt-tokens 500-1500
      headrace bench localhost:8000 --concurrency 16 --slo "p95 ttft < 500ms"
      headrace bench localhost:8000 --trace azure_conv.csv --scale 0.1 --duration 10m
      headrace bench localhost:8000 --find-capacity --slo "ttft 1s, itl 80ms"
      headrace bench localhost:8000 --json | tail -n 1
    """
    check_address(url)
    _check(options)
    target = target_of(url, options["model"], options)
    wording = shown_wording(target, options["tokenizer"])
    if options["find_capacity"]:
        find_capacity(target, options, wording)
        return
    load = load_of(options, wording)
    refuse_strange_classes(options["slo"] or (), load)
    measurement, interrupted = measure_shown(target, load, options["timeout"])
    _report(measurement, options)
    if code := exit_code(measurement, options["slo"], interrupted=interrupted):
        raise SystemExit(code)


def target_of(url: str, model: str | None, options: LoadOptions) -> Target:
    """Raises `BadInput` for a model that the server does not list."""
    url, api_key = base_url(url), options["api_key"]
    kept_s = KEPT_S if options["connections"] == KEPT else 0.0
    try:
        served = asyncio.run(served_models(url, api_key=api_key))
    except TargetFailed:
        if model is None:
            raise
        return Target(url, model, api_key=api_key, kept_s=kept_s)  # one that lists none may still serve it
    if model is not None and model not in served:
        raise BadInput(f"{url} does not serve {model!r}", f"it serves {_some(served)}")
    return Target(url, model or served[0], api_key=api_key, kept_s=kept_s)


def plain_console() -> Console:
    """On stderr. What a server or a file says is no markup."""
    return Console(stderr=True, markup=False, highlight=False, emoji=False)


def shown_wording(target: Target, tokenizer: str) -> Wording:
    """With a line on stderr where prompts will not be exact although that was wanted."""
    wording = wording_of(tokenizer, target)
    if wording.why_not:
        plain_console().print(
            "prompts have about the tokens asked for (--tokenizer MODEL makes that exact), because of "
            f"{wording.why_not}"
        )
    return wording


def measure_shown(
    target: Target, load: Planned, timeout_s: float, stage: Stage | None = None
) -> tuple[Measurement, bool]:
    """With its progress on stderr; and whether it was interrupted. One of several says its stage alone."""
    console = plain_console()
    if stage is None:
        console.print(f"{target.url}: {load.describe}")
    if load.alone:
        alone = f"{many(len(load.alone), 'request')}{' one by one' if len(load.alone) > 1 else ''}"
        console.print(f"before the run, {alone}: a TTFT without a queue (--alone)")
    with Progress(console, load.requests, load.duration_s, stage=stage) as progress:
        watching = Watching(timeout_s, scrapes=True)
        gives_up = GivesUp(watching.stop, progress.on_event)
        watching = Watching(
            timeout_s, gives_up.on_event, scrapes=True, stop=watching.stop, on_start=progress.on_start
        )
        try:
            measurement, interrupted = measure_planned(target, load, watching), False
        except Interrupted as stopped:
            measurement, interrupted = stopped.measurement, True
    if gives_up.why:
        console.print(f"ended early: {gives_up.why}")
    return measurement, interrupted


def exit_code(measurement: Measurement, objectives: Objectives | None, *, interrupted: bool) -> int:
    if interrupted:
        return EXIT_INTERRUPTED
    if not measurement.timelines:
        return EXIT_ALL_FAILED
    if not check(measurement).is_valid:
        return EXIT_INVALID
    met = objectives is None or overall(judged(measurement, objectives)) is Verdict.MET
    return 0 if met else EXIT_MISSED


def _check(options: Options) -> None:
    """Before minutes are spent on what could not be kept."""
    check_load(options)
    if options["find_capacity"] and options["slo"] is None:
        raise BadInput("--find-capacity needs --slo: the highest rate that does what?")
    for name in ("output", "csv", "html"):
        check_writable(f"--{name}", options[name])
    for name in ("output", "csv"):
        if options["find_capacity"] and options[name] is not None:
            raise BadInput(
                f"--{name} is of one run, and --find-capacity makes many",
                "--html and --json have all of them",
            )


def check_address(text: str) -> None:
    """Raises `BadInput` for what is no server's, with the command that takes it."""
    name = text.strip().lower()
    if name.endswith((".gguf", ".safetensors")) or Path(text).is_dir():
        raise BadInput(
            f"{text} is a model, and no address of a server",
            f"serve it first (headrace serve {text}), then give its address, as localhost:8000",
        )
    if name.endswith((".jsonl", ".csv", ".json")) or Path(text).is_file():
        raise BadInput(
            f"{text} is a file, and no address of a server",
            f"to replay it: HOST:PORT --trace {text}; to look into it: headrace workload describe {text}",
        )
    base_url(text)


def check_writable(option: str, path: Path | None) -> None:
    """Raises `BadInput` where a file could not be made."""
    if path is not None and not path.parent.is_dir():
        raise BadInput(f"{option} {path}: there is no folder {path.parent}")
    if path is not None and not os.access(path.parent, os.W_OK):
        raise BadInput(f"{option} {path}: nothing can be written in {path.parent}")


def _report(measurement: Measurement, options: Options) -> None:
    output, csv = options["output"], options["csv"]
    if output is not None:
        record.write(measurement, output)
    if csv is not None:
        write_csv(measurement, csv, options["slo"])
    if options["html"] is not None:
        write_page(options["html"], run_page(measurement, options["slo"]))
    intervals = by_class(measurement)
    print_measurement(measurement, Console(highlight=False), options["slo"], intervals)
    if output is not None:
        click.echo(f"Record: {output}")
    if options["as_json"]:
        click.echo(json.dumps(measurement_json(measurement, options["slo"], intervals)))


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more
