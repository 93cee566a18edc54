"""`headrace workload generate | convert | slice`: workloads written in our own form."""

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack

import click

from headrace.cli.quantity import Duration, token_range
from headrace.cli.reading import PART, READING, Progress, ReadingOptions, opened, part_of, reading_options
from headrace.cli.sections import SectionedCommand
from headrace.core.errors import BadInput
from headrace.report.units import many, seconds
from headrace.workload.arrivals import Regularity
from headrace.workload.columns import ROWS_A_REPORT
from headrace.workload.example import EXAMPLE
from headrace.workload.generate import about, generate
from headrace.workload.own_form import workload_lines, write_workload
from headrace.workload.readers import TraceStream
from headrace.workload.recipe import VERSION, Recipe, changed, read_recipe, recipe_of
from headrace.workload.reshape import resized, resized_block, scaled, spread
from headrace.workload.trace import About, TraceRequest

Command = TypeVar("Command", bound=Callable[..., Any])
STDOUT = Path("-")
FLAGS = ("rate", "arrivals", "cv", "prompt", "output_tokens", "request_class")


def output_option(command: Command) -> Command:
    return click.option(
        "-o",
        "--output",
        type=click.Path(dir_okay=False, path_type=Path),
        default="-",
        metavar="FILE.jsonl",
        help="Where to write.  [default: standard output]",
    )(command)


class GenerateOptions(TypedDict):
    rate: float | None
    arrivals: str | None
    cv: float | None
    prompt: str | None
    output_tokens: str | None
    request_class: str | None
    duration: float | None
    seed: int | None
    scale: float
    example: bool
    output: Path


@click.command(
    "generate",
    cls=SectionedCommand,
    no_args_is_help=True,
    short_help="Make one from a recipe or from flags.",
    sections={"Instead of a recipe": FLAGS},
)
@click.argument("recipe", required=False, type=click.Path(path_type=Path))
@click.option("--rate", type=float, help="Requests a second.")
@click.option(
    "--arrivals",
    type=click.Choice([each.value for each in Regularity]),
    help="How regular.  [default: poisson]",
)
@click.option("--cv", type=float, help="For gamma: deviation of the gaps over their mean; 1 is poisson.")
@click.option("--prompt", metavar="N|N-M", help="Prompt tokens: always N, or from N to M.")
@click.option("--output-tokens", metavar="N|N-M", help="Output tokens, likewise.")
@click.option("--class", "request_class", metavar="NAME", help="Name of the class.  [default: chat]")
@click.option("--duration", type=Duration(), metavar="TIME", help="Instead of the recipe's; as 90s or 10m.")
@click.option("--seed", type=int, help="Instead of the recipe's. Same seed, same bytes.")
@click.option("--scale", type=float, default=1.0, show_default=True, help="Times every rate.")
@click.option("--example", is_flag=True, help="Print a recipe with everything in it, to start from.")
@output_option
def generate_command(recipe: Path | None, **options: Unpack[GenerateOptions]) -> None:
    """Make a workload from RECIPE, a small YAML or JSON file, or from flags.

    \b
    Examples:
      headrace workload generate --example > chats.yaml
      headrace workload generate chats.yaml --seed 7 --output chats.jsonl
      headrace workload generate chats.yaml --scale 2 --duration 1h > double.jsonl
      headrace workload generate --rate 4 --duration 10m --prompt 200-800 \\
        --output-tokens 150
    """
    if options["example"]:
        click.echo(EXAMPLE, nl=False)
        return
    made = _recipe(recipe, options)
    write(options["output"], about(made), generate(made))


def _recipe(path: Path | None, options: GenerateOptions) -> Recipe:
    given = [name for name in FLAGS if options[name] is not None]
    if (path is None) != bool(given):
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise BadInput(
            f"a recipe and {flags} are both given" if path else "neither a recipe nor flags are given",
            "give a recipe, or --rate, --duration, --prompt and --output-tokens",
        )
    recipe = read_recipe(path) if path else recipe_of(_said(options), "the command line")
    return changed(recipe, seed=options["seed"], duration_s=options["duration"], times=options["scale"])


def _said(options: GenerateOptions) -> dict[str, Any]:
    """A recipe of one class, as a file would hold it."""
    needed = ("rate", "duration", "prompt", "output_tokens")
    if missing := [f"--{name.replace('_', '-')}" for name in needed if options[name] is None]:
        raise BadInput(f"{', '.join(missing)} is missing", "or give a recipe: `--example` shows one")
    one = {
        "rate": options["rate"],
        "prompt": _amount("--prompt", options["prompt"]),
        "output": _amount("--output-tokens", options["output_tokens"]),
        "arrivals": options["arrivals"]
        or (Regularity.POISSON if options["cv"] is None else Regularity.GAMMA),
        "cv": options["cv"],
    }
    return {
        "workload": VERSION,
        "duration": options["duration"],
        "classes": {options["request_class"] or "chat": one},
    }


def _amount(flag: str, said: str | None) -> Any:
    try:
        fewest, most = token_range(said or "")
    except ValueError as error:
        raise BadInput(f"{flag}: {error}") from error
    return fewest if fewest == most else {"uniform": [fewest, most]}


class RewriteOptions(ReadingOptions):
    scale: float
    length_scale: float
    spread: bool
    sort: bool
    output: Path


def rewrite_options(command: Command) -> Command:
    for option in reversed(
        (
            reading_options,
            click.option(
                "--scale",
                type=float,
                default=1.0,
                show_default=True,
                help="Times the load: 2 halves the time between.",
            ),
            click.option(
                "--length-scale",
                type=float,
                default=1.0,
                show_default=True,
                help="Times the tokens of prompts, answers and what they share.",
            ),
            click.option(
                "--spread", is_flag=True, help="Spread requests that share an instant up to the next one."
            ),
            click.option("--sort", is_flag=True, help="Sort by time, in memory, what is out of order."),
            output_option,
        )
    ):
        command = option(command)
    return command


SECTIONS = {"File": READING, "Part": PART, "Change": ("scale", "length_scale", "spread", "sort")}


@click.command(
    "convert",
    cls=SectionedCommand,
    no_args_is_help=True,
    short_help="Any form into our own.",
    sections=SECTIONS,
)
@click.argument("file", type=click.Path(path_type=Path))
@rewrite_options
def convert_command(file: Path, **options: Unpack[RewriteOptions]) -> None:
    """Write the workload in FILE, whatever its form, in our own.

    \b
    Examples:
      headrace workload convert azure_conv.csv --output azure.jsonl
      headrace workload convert mooncake.jsonl --spread --scale 0.5 \\
        --output half.jsonl
      headrace workload convert servegen/deepseek-r1 --seed 7 --until 1h \\
        --output hour.jsonl
    """
    _rewrite(file, options)


@click.command(
    "slice",
    cls=SectionedCommand,
    no_args_is_help=True,
    short_help="Cut a part out, and write it in our form.",
    sections=SECTIONS,
)
@click.argument("file", type=click.Path(path_type=Path))
@rewrite_options
def slice_command(file: Path, **options: Unpack[RewriteOptions]) -> None:
    """Cut a part out of the workload in FILE, and write it in our own form. It starts at 0.

    \b
    Examples:
      headrace workload slice day.jsonl --from 9h --until 10h \\
        --output morning.jsonl
      headrace workload slice mixed.jsonl --class chat --first 500 \\
        --output chats.jsonl
    """
    if not (options["from_"] or options["until"] is not None or options["first"] or options["classes"]):
        raise BadInput("which part?", "give --from, --until, --first or --class; `convert` writes all of it")
    _rewrite(file, options)


def _rewrite(file: Path, options: RewriteOptions) -> None:
    part = replace(part_of(options), sort=options["sort"])
    with opened(file, options, part) as stream:
        first = next(stream.rows)
        stream.rows = chain((first,), stream.rows)
        said = _made_of(file, stream, options)
        count = write(options["output"], said, _changed(stream.requests(), options))
    if count < (options["first"] or 0):
        click.echo(f"{file}: there were only {count:,} of the {options['first']:,} asked for", err=True)
    if stream.left_out:
        click.echo(f"left out, as they ask for no output or failed: {many(stream.left_out, 'row')}", err=True)


def _changed(requests: Iterator[TraceRequest], options: RewriteOptions) -> Iterator[TraceRequest]:
    if options["spread"]:
        requests = iter(spread(tuple(requests)))
    if options["scale"] != 1:
        requests = iter(scaled(tuple(requests), options["scale"]))
    if options["length_scale"] != 1:
        requests = iter(resized(tuple(requests), options["length_scale"]))
    return requests


def _made_of(file: Path, stream: TraceStream, options: RewriteOptions) -> About:
    """What the workload was, and what was done to it."""
    done = [f"{stream.trace_format.value} {file.name}"]
    if stream.about.made_of:
        done.append(f"({stream.about.made_of})")
    if options["from_"]:
        done.append(f"from {options['from_']:g} s")
    if options["until"] is not None:
        done.append(f"until {options['until']:g} s")
    if options["classes"]:
        done.append(f"only {', '.join(options['classes'])}")
    if options["scale"] != 1:
        done.append(f"{options['scale']:g} times the load")
    if options["length_scale"] != 1:
        done.append(f"{options['length_scale']:g} times the lengths")
    if options["spread"]:
        done.append("spread")
    block_tokens = resized_block(stream.prefix_block_tokens, options["length_scale"])
    return replace(stream.about, made_of=", ".join(done), prefix_block_tokens=block_tokens)


def write(output: Path, about: About, requests: Iterable[TraceRequest]) -> int:
    """To a file, or to standard output; what was written is said on stderr. Returns how many."""
    count, last_s = 0, 0.0
    progress = Progress("written")

    def counted() -> Iterator[TraceRequest]:
        nonlocal count, last_s
        for request in requests:
            count, last_s = count + 1, request.due_at
            if not count % ROWS_A_REPORT:
                progress(count)
            yield request

    if output == STDOUT:
        sys.stdout.buffer.writelines(workload_lines(about, counted()))
        return count
    write_workload(output, about, counted())
    click.echo(f"{output}: {many(count, 'request')} over {seconds(last_s)}", err=True)
    return count
