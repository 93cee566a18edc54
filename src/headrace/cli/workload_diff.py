"""`headrace workload diff A B`: what shifted, whether by more than chance, and what it will do."""

import json
from pathlib import Path
from typing import Unpack

import click
from rich.console import Console

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
from headrace.report.workload_diff import comparison_json, print_comparison
from headrace.workload.columns import Columns, collect
from headrace.workload.shifts import compare


class DiffOptions(FeatureOptions):
    as_json: bool


@click.command(
    "diff",
    cls=SectionedCommand,
    no_args_is_help=True,
    short_help="What shifted from A to B, and what it will do.",
    sections={"File": READING, "Part": PART},
)
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@reading_options
@feature_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
def diff_command(a: Path, b: Path, **options: Unpack[DiffOptions]) -> None:
    """Say what shifted from the workload in A to that in B, and what it will do.

    A shift is beyond chance (1 % after Holm's correction for several tests) and large enough to matter:
    a tenth of a length or a rate, two points of a share. Options hold for both files.

    \b
    Examples:
      headrace workload diff monday.jsonl friday.jsonl
      headrace workload diff azure_conv.csv azure_code.csv --until 30m
      headrace workload diff tuned_for.jsonl recorded.jsonl --json
    """
    comparison = compare(_columns(a, options), _columns(b, options), options["long"], options["token_time"])
    if options["as_json"]:
        click.echo(json.dumps({"a": str(a), "b": str(b)} | comparison_json(comparison)))
        return
    print_comparison(comparison, (a.name, b.name), Console(highlight=False))


def _columns(file: Path, options: DiffOptions) -> Columns:
    with opened(file, options) as stream:
        return collect(stream, Progress(f"of {file.name} read", stream))
