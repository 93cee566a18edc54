"""`headrace workload`: which requests arrive and when, looked at and made."""

import json
from pathlib import Path
from typing import Unpack

import click
from rich.console import Console
from rich.text import Text

from headrace.cli.reading import (
    PART,
    READING,
    FeatureOptions,
    Progress,
    feature_options,
    opened,
    reading_options,
)
from headrace.cli.sections import SectionedCommand
from headrace.cli.workload_diff import diff_command
from headrace.cli.workload_making import convert_command, generate_command, slice_command
from headrace.core.errors import BadInput
from headrace.report.units import many
from headrace.report.workload import COLUMNS, features_json, print_features, print_outline, ticking
from headrace.report.workload_page import workload_page
from headrace.workload.columns import collect
from headrace.workload.features import Features, describe
from headrace.workload.outline import by_length, over_time
from headrace.workload.readers import TraceStream


@click.group()
def workload() -> None:
    """Describe, compare, make, convert and cut workloads.

    \b
    Examples:
      headrace workload describe azure_conv.csv
      headrace workload diff monday.jsonl friday.jsonl
      headrace workload generate chats.yaml --output chats.jsonl
    """


class DescribeOptions(FeatureOptions):
    html: Path | None
    as_json: bool


@workload.command(
    "describe",
    cls=SectionedCommand,
    no_args_is_help=True,
    short_help="What of a workload decides tuning.",
    sections={"File": READING, "Part": PART},
)
@click.argument("file", type=click.Path(path_type=Path))
@reading_options
@feature_options
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.html",
    help="Also write a page with charts, which stands alone.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
def describe_command(file: Path, **options: Unpack[DescribeOptions]) -> None:
    """Say what of the workload in FILE decides tuning: lengths, rate, bursts, reuse, mix.

    \b
    Examples:
      headrace workload describe azure_conv.csv
      headrace workload describe mooncake.jsonl --until 10m
      headrace workload describe servegen/deepseek-r1 --seed 7 --until 1h
      headrace workload describe run.jsonl --class chat --json
      headrace workload describe week.jsonl --html week.html
    """
    with opened(file, options) as stream:
        columns = collect(stream, Progress("read", stream))
    features = describe(columns, options["long"], options["token_time"])
    if (html := options["html"]) is not None:
        _write(html, workload_page(file.name, _said(stream, features), features, columns))
    if options["as_json"]:
        said = {"file": str(file), "format": stream.trace_format.value, "made_of": stream.about.made_of}
        click.echo(json.dumps(said | features_json(features)))
        return
    console = Console(highlight=False)
    console.print(Text(f"{file.name}: ", style="bold").append(_said(stream, features), style="not bold"))
    console.print()
    print_features(features, console)
    print_outline(
        over_time(columns, COLUMNS),
        by_length(columns.prompt_tokens),
        by_length(columns.output_tokens),
        console,
    )
    if warning := ticking(features):
        console.print()
        console.print(Text(warning))


def _said(stream: TraceStream, features: Features) -> str:
    made_of = f" ({stream.about.made_of})" if stream.about.made_of else ""
    return f"{stream.trace_format.value}, {many(features.requests, 'request')}{made_of}"


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}", "does its folder exist?") from error
    click.echo(f"Page: {path}", err=True)


workload.add_command(diff_command)
workload.add_command(generate_command)
workload.add_command(convert_command)
workload.add_command(slice_command)
