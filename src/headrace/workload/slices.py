"""Which rows of a workload are wanted, and whether they can be requests at all.

Row, Row, … --kept--> the rows of the part, in order, of sane lengths; the others counted
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Protocol

from headrace.core.errors import BadInput
from headrace.workload.rows import MOST_NS, Row
from headrace.workload.trace import LONGEST_S

MOST_TOKENS = 1 << 24
"""Of one request. No context is that long; a number beyond is a slip that would only take memory."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of a workload. Times are in the workload's own, from its first request. Raises `BadInput`."""

    first: int | None = None
    """Only so many requests."""
    from_s: float = 0.0
    until_s: float = inf
    classes: frozenset[str] = frozenset()
    """Only these; all if empty."""
    sort: bool = False
    """Rows may come out of order: all of them are read, and sorted by time, before the first is given."""

    def __post_init__(self) -> None:
        if self.first is not None and self.first < 1:
            raise BadInput(f"the first {self.first} requests are none", "ask for at least 1")
        if not self.from_s >= 0:
            raise BadInput(f"no request is due at {self.from_s:g} s", "ask for 0 seconds or more")
        if not self.until_s > self.from_s:
            raise BadInput(
                f"no request is due from {self.from_s:g} s and before {self.until_s:g} s",
                f"ask for more than {self.from_s:g} seconds",
            )


ALL = Slice()


class Counts(Protocol):
    """Of a stream, what cutting it finds out."""

    path: Path
    left_out: int
    base_ns: int | None


def kept(stream: Counts, rows: Iterable[Row], part: Slice) -> Iterator[Row]:
    """The rows of `part`; reads no further than that. Raises `BadInput` with the line that is wrong."""
    count = 0
    if part.sort:
        rows = sorted(rows, key=lambda row: row.at_ns)
    for since_s, row in _dated(stream, rows):
        if since_s >= part.until_s:
            if not count:
                raise _between(stream.path, part, since_s)
            return
        if since_s > LONGEST_S:
            raise BadInput(
                f"{stream.path}, line {row.line}: {since_s:g} s after the first request; at most "
                f"{LONGEST_S:g}",
                "is the unit of time another one?",
            )
        if since_s < part.from_s or (part.classes and row.request_class not in part.classes):
            continue
        if stream.base_ns is None:
            stream.base_ns = row.at_ns
        yield row
        count += 1
        if count == part.first:
            return


def _dated(stream: Counts, rows: Iterable[Row]) -> Iterator[tuple[float, Row]]:
    """With its seconds after the first of all; those that ask for no output are counted instead."""
    start_ns = None if stream.base_ns is None else 0
    for row in _in_order(stream.path, rows):
        if not row.output_tokens:
            stream.left_out += 1
            continue
        if start_ns is None:
            start_ns = row.at_ns
        yield (row.at_ns - start_ns) / 1e9, row


def _in_order(path: Path, rows: Iterable[Row]) -> Iterator[Row]:
    before_ns = None
    for row in rows:
        at_ns = row.at_ns
        if not -MOST_NS < at_ns < MOST_NS:
            raise BadInput(f"{path}, line {row.line}: {at_ns} ns is no time")
        if before_ns is not None and at_ns < before_ns:
            raise BadInput(
                f"{path}, line {row.line}: out of order, {(before_ns - at_ns) / 1e9:g} s before the row "
                "above it",
                "sort the file by time: `headrace workload convert --sort` does",
            )
        before_ns = at_ns
        _check_lengths(path, row)
        yield row


def _check_lengths(path: Path, row: Row) -> None:
    """An output of 0 tokens is a row that somebody logged; an answer to a prompt of 0 is a mistake."""
    least_prompt = 1 if row.output_tokens else 0
    if not least_prompt <= row.prompt_tokens <= MOST_TOKENS:
        raise _bad_length(path, row, "prompt", row.prompt_tokens, least_prompt)
    if not 0 <= row.output_tokens <= MOST_TOKENS:
        raise _bad_length(path, row, "output", row.output_tokens, 0)
    if row.think_ns is not None and row.think_ns < 0:
        raise BadInput(
            f"{path}, line {row.line}: it comes {-row.think_ns / 1e9:g} s before the answer it waits for"
        )


def _bad_length(path: Path, row: Row, what: str, tokens: int, least: int) -> BadInput:
    return BadInput(f"{path}, line {row.line}: {tokens} {what} tokens; it must be {least} to {MOST_TOKENS}")


def _between(path: Path, part: Slice, next_s: float) -> BadInput:
    """The part lies where nothing was due."""
    whose = f" of {', '.join(sorted(part.classes))}" if part.classes else ""
    return BadInput(
        f"{path} holds no request{whose} due from {part.from_s:g} s and before {part.until_s:g} s of its own "
        f"time; the next of all is due at {next_s:g} s",
        "ask for a longer part, or for one that begins elsewhere",
    )


def what_was_left(stream: Counts, part: Slice) -> BadInput:
    """The complaint where nothing is kept."""
    asked = "" if part == ALL else " in the part that is asked for"
    return BadInput(f"{stream.path} holds no request{asked}; {stream.left_out} rows ask for no output")
