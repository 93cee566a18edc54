"""What commands that read workloads have in common: which part, in which form, at which speed."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from math import inf
from pathlib import Path
from typing import Any, TypedDict, TypeVar

import click

from headrace.cli.quantity import SECONDS, Duration
from headrace.report.units import many
from headrace.workload.features import LONG_PROMPT_TOKENS, TOKEN_S
from headrace.workload.forms import TraceFormat
from headrace.workload.readers import TraceStream, open_trace
from headrace.workload.slices import MOST_TOKENS, Slice

SILENT_S = 2.0
Command = TypeVar("Command", bound=Callable[..., Any])

READING = ("trace_format", "prefix_block_tokens", "seed")
PART = ("from_", "until", "first", "classes")


class ReadingOptions(TypedDict):
    trace_format: str | None
    prefix_block_tokens: int | None
    seed: int
    from_: float
    until: float | None
    first: int | None
    classes: tuple[str, ...]


class FeatureOptions(ReadingOptions):
    long: int
    token_time: float


def reading_options(command: Command) -> Command:
    """--format and --prefix-block-tokens, and which part of the workload."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def feature_options(command: Command) -> Command:
    """--long and --token-time: what the features of a workload rest on."""
    for option in reversed(_FEATURES):
        command = option(command)
    return command


_FEATURES = (
    click.option(
        "--long",
        type=click.IntRange(1, MOST_TOKENS),
        default=LONG_PROMPT_TOKENS,
        show_default=True,
        metavar="TOKENS",
        help="A prompt of more is long: one of vLLM's steps does not hold it.",
    ),
    click.option(
        "--token-time",
        type=SECONDS,
        default=TOKEN_S,
        show_default=True,
        metavar="SECONDS",
        help="What a token of an answer takes, to say how many requests are under way at once.",
    ),
)

_OPTIONS = (
    click.option(
        "--format",
        "trace_format",
        type=click.Choice([form.value for form in TraceFormat]),
        metavar="FORM",  # all of them would be one line of 110 characters
        help=f"{', '.join(TraceFormat)}.  [default: told from how the file begins]",
    ),
    click.option(
        "--prefix-block-tokens",
        type=click.IntRange(1, MOST_TOKENS),
        metavar="TOKENS",
        help="What one prefix id stands for.  [default: the power of two that agrees with every row]",
    ),
    click.option(
        "--seed",
        type=int,
        default=0,
        show_default=True,
        help="For ServeGen's form, of which requests are drawn.",
    ),
    click.option(
        "--from",
        "from_",
        type=Duration(),
        default="0s",
        metavar="TIME",
        help="Only what is due from then, as 10m.",
    ),
    click.option(
        "--until", type=Duration(), metavar="TIME", help="Only what is due before, as 20m or 1h30m."
    ),
    click.option("--first", type=int, metavar="N", help="Only so many requests."),
    click.option(
        "--class", "classes", multiple=True, metavar="NAME", help="Only this class; may be given again."
    ),
)


def opened(
    path: Path, options: ReadingOptions, part: Slice | None = None
) -> AbstractContextManager[TraceStream]:
    """`part` is that of the options where nothing else is said."""
    form = options["trace_format"]
    return open_trace(
        path,
        trace_format=None if form is None else TraceFormat(form),
        prefix_block_tokens=options["prefix_block_tokens"],
        part=part or part_of(options),
        seed=options["seed"],
    )


def part_of(options: ReadingOptions) -> Slice:
    until = options["until"]
    return Slice(
        options["first"], options["from_"], inf if until is None else until, frozenset(options["classes"])
    )


class Progress:
    """A line on stderr every `SILENT_S` seconds; told how many requests there were so far."""

    def __init__(self, what: str, stream: TraceStream | None = None) -> None:
        self._what = what
        self._stream = stream
        self._next_line_at = time.monotonic() + SILENT_S

    def __call__(self, count: int) -> None:
        now = time.monotonic()
        if now < self._next_line_at:
            return
        self._next_line_at = now + SILENT_S
        stream = self._stream
        share = f", {stream.bytes_read / stream.total_bytes:.0%}" if stream and stream.total_bytes else ""
        click.echo(f"{many(count, 'request')} {self._what}{share}", err=True)
