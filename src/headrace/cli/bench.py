"""`headrace bench URL`: how a server behaves under mixed traffic."""

import asyncio
import json
import secrets
from pathlib import Path
from typing import TypedDict, Unpack

import click
from rich.console import Console

from headrace.cli.measuring import Interrupted, Target, measure
from headrace.cli.quantity import Duration
from headrace.core.errors import BadInput
from headrace.core.measurement import Measurement
from headrace.measure import record
from headrace.net.client import DEFAULT_TIMEOUT_S, base_url, served_models
from headrace.report.as_json import measurement_json
from headrace.report.progress import Progress
from headrace.report.terminal import print_measurement
from headrace.workload.mixed import MixedWorkload

STANDARD = MixedWorkload()

EXIT_ALL_FAILED = 1
EXIT_INTERRUPTED = 130


class Options(TypedDict):
    """What the command line says beside the address."""

    model: str | None
    short_rps: float
    long_rps: float
    short_prompt: tuple[int, int]
    long_prompt: tuple[int, int]
    output_tokens: tuple[int, int]
    duration: float
    seed: int | None
    timeout: float
    api_key: str | None
    output: Path | None
    as_json: bool


def token_range(text: str) -> tuple[int, int]:
    """`30-90`, or `64` for always the same."""
    fewest, _, most = text.partition("-")
    if not (fewest.isdecimal() and (most or fewest).isdecimal()):
        raise click.BadParameter(f"{text!r} is neither a number of tokens, as 64, nor a range, as 30-90")
    return int(fewest), int(most or fewest)


@click.command(no_args_is_help=True, short_help="How a server behaves under mixed traffic.")
@click.argument("url")
@click.option("--model", help="Model to ask for.  [default: the server's first]")
@click.option("--short-rps", default=STANDARD.short_rps, show_default=True, help="Short chats a second.")
@click.option("--long-rps", default=STANDARD.long_rps, show_default=True, help="Long documents a second.")
@click.option(
    "--short-prompt",
    type=token_range,
    metavar="N-M",
    default="30-90",
    show_default=True,
    help="Tokens of a chat.",
)
@click.option(
    "--long-prompt",
    type=token_range,
    metavar="N-M",
    default="3000-5000",
    show_default=True,
    help="Tokens of a document.",
)
@click.option(
    "--output-tokens",
    type=token_range,
    metavar="N-M",
    default="24-48",
    show_default=True,
    help="Tokens of every answer.",
)
@click.option(
    "--duration",
    type=Duration(),
    default=f"{STANDARD.duration_s:g}s",
    show_default=True,
    help="Time in which requests are due, as 90s or 2m.",
)
@click.option("--seed", type=int, help="Same seed, same requests.  [default: a new one, which is shown]")
@click.option(
    "--timeout",
    type=Duration(),
    default=f"{DEFAULT_TIMEOUT_S:g}s",
    show_default=True,
    help="Time for one request.",
)
@click.option("--api-key", envvar="HEADRACE_API_KEY", show_envvar=True, help="Sent as bearer token.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.jsonl",
    help="Keep the record: one line per request.",
)
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object on a line of its own.")
def bench(url: str, **options: Unpack[Options]) -> None:
    """Measure the OpenAI-compatible server at URL under short chats and long documents.

    Open loop: requests leave when they are due, whether or not others have been answered, and
    their latency counts from then.

    \b
    Examples:
      headrace bench localhost:8000
      headrace bench http://10.0.0.7:8000 --short-rps 8 --duration 2m
      headrace bench localhost:8000 --long-rps 0 --seed 7 --output short.jsonl
      headrace bench localhost:8000 --json | tail -n 1
    """
    url = base_url(url)
    workload = _workload(options)
    _check(options)
    api_key = options["api_key"]
    model = options["model"] or asyncio.run(served_models(url, api_key=api_key))[0]
    interrupted = False
    try:
        measurement = _measure_shown(Target(url, model, api_key=api_key), workload, options["timeout"])
    except Interrupted as stopped:
        measurement, interrupted = stopped.measurement, True
    _report(measurement, options)
    if interrupted:
        raise SystemExit(EXIT_INTERRUPTED)
    if not measurement.timelines:
        raise SystemExit(EXIT_ALL_FAILED)


def _workload(options: Options) -> MixedWorkload:
    seed = options["seed"]
    return MixedWorkload(
        short_rps=options["short_rps"],
        long_rps=options["long_rps"],
        short_prompt_tokens=options["short_prompt"],
        short_output_tokens=options["output_tokens"],
        long_prompt_tokens=options["long_prompt"],
        long_output_tokens=options["output_tokens"],
        duration_s=options["duration"],
        # A seed that was used before would find its prompts in the server's prefix cache.
        seed=secrets.randbelow(1_000_000) if seed is None else seed,
    )


def _check(options: Options) -> None:
    """Before minutes are spent on what could not be kept."""
    if not options["timeout"] > 0:
        raise BadInput(f"--timeout is {options['timeout']:g} s; it must be more than 0")
    output = options["output"]
    if output is not None and not output.parent.is_dir():
        raise BadInput(f"--output {output}: there is no folder {output.parent}")


def _measure_shown(target: Target, workload: MixedWorkload, timeout_s: float) -> Measurement:
    console = Console(stderr=True)
    console.print(f"{target.url}: {workload.describe()}", highlight=False)
    with Progress(console, len(workload.arrivals())) as progress:
        return measure(target, workload, timeout_s=timeout_s, on_event=progress.on_event)


def _report(measurement: Measurement, options: Options) -> None:
    output = options["output"]
    if output is not None:
        record.write(measurement, output)
    print_measurement(measurement, Console(highlight=False))
    if output is not None:
        click.echo(f"Record: {output}")
    if options["as_json"]:
        click.echo(json.dumps(measurement_json(measurement)))
