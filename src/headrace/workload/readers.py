"""Traces from files, in any of the forms of `workload/forms.py`.

    file --read_trace--> ReadTrace(requests, left out)

A file is read line by line, and no further than asked; every complaint names its line. Instants
count from the first request kept, so a slice starts at 0.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf
from pathlib import Path
from typing import BinaryIO

from headrace.core.errors import BadInput
from headrace.workload.forms import KNOWN, ROWS, Lines, Row, TraceFormat, form_of
from headrace.workload.trace import LONGEST_S, TraceRequest

MOST_LINE_BYTES = 1 << 24
MOST_TOKENS = 1 << 24
"""Of one request. No context is that long; a number beyond is a slip that would only take memory."""


@dataclass(frozen=True, slots=True)
class ReadTrace:
    """What a file gave."""

    trace_format: TraceFormat
    requests: tuple[TraceRequest, ...]
    left_out: int
    """Rows that no server is asked for: without an output token, or failed, so of unknown length."""


def read_trace(
    path: Path,
    *,
    trace_format: TraceFormat | None = None,
    prefix_block_tokens: int | None = None,
    first: int | None = None,
    until_s: float | None = None,
) -> ReadTrace:
    """The requests of a file: all, the `first` ones, or those due within `until_s` seconds.

    `prefix_block_tokens` says how many tokens a prefix id stands for, where that is not the power of
    two that all rows agree with. Raises `BadInput` with the line that is wrong.
    """
    _refuse_empty_slices(first, until_s)
    try:
        with path.open("rb") as file:
            lines = _numbered(path, file)
            head = next(lines, None)
            if head is None:
                raise BadInput(f"{path} is empty", "a workload has at least one request")
            form = trace_format or form_of(path, head[1])
            rows = ROWS[form](path, chain([head], lines))
            kept, left_out = _kept(path, rows, first, inf if until_s is None else until_s)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from error
    if not kept:
        raise BadInput(f"{path} holds no request; {left_out} rows ask for no output")
    if prefix_block_tokens is None:
        prefix_block_tokens = _block_tokens(path, kept, whole_only=form is TraceFormat.LLMSERVINGSIM)
    return ReadTrace(form, _requests(kept, prefix_block_tokens), left_out)


def _requests(rows: Sequence[Row], prefix_block_tokens: int) -> tuple[TraceRequest, ...]:
    return tuple(
        TraceRequest(
            due_at=(row.at_ns - rows[0].at_ns) / 1e9,
            prompt_tokens=row.prompt_tokens,
            output_tokens=row.output_tokens,
            request_class=row.request_class,
            prefix_ids=row.prefix_ids,
            prefix_block_tokens=prefix_block_tokens if row.prefix_ids else 0,
        )
        for row in rows
    )


def _refuse_empty_slices(first: int | None, until_s: float | None) -> None:
    if first is not None and first < 1:
        raise BadInput(f"the first {first} requests are none", "ask for at least 1")
    if until_s is not None and not until_s > 0:
        raise BadInput(f"no request is due before {until_s:g} s", "ask for more than 0 seconds")


def _numbered(path: Path, file: BinaryIO) -> Lines:
    number = 0
    while line := file.readline(MOST_LINE_BYTES + 1):
        number += 1
        if len(line) > MOST_LINE_BYTES:
            raise BadInput(f"{path}, line {number} is longer than {MOST_LINE_BYTES} bytes", KNOWN)
        if stripped := line.removeprefix(b"\xef\xbb\xbf").strip():
            yield number, stripped


def _kept(path: Path, rows: Iterable[Row], first: int | None, until_s: float) -> tuple[list[Row], int]:
    """The rows to simulate and how many were left out. Reads no further than the slice."""
    kept: list[Row] = []
    left_out = 0
    before_ns = None
    for row in rows:
        if before_ns is not None and row.at_ns < before_ns:
            raise BadInput(
                f"{path}, line {row.line}: out of order, {(before_ns - row.at_ns) / 1e9:g} s before the row "
                "above it",
                "sort the file by time",
            )
        before_ns = row.at_ns
        _check_lengths(path, row)
        if not row.output_tokens:
            left_out += 1
            continue
        since_s = (row.at_ns - kept[0].at_ns) / 1e9 if kept else 0.0
        if since_s >= until_s:
            break
        if since_s > LONGEST_S:
            raise BadInput(
                f"{path}, line {row.line}: {since_s:g} s after the first request; at most {LONGEST_S:g}",
                "is the unit of time another one?",
            )
        kept.append(row)
        if len(kept) == first:
            break
    return kept, left_out


def _check_lengths(path: Path, row: Row) -> None:
    """An output of 0 tokens is a row that somebody logged; a prompt of 0 tokens is a mistake."""
    for what, tokens, least in (("prompt", row.prompt_tokens, 1), ("output", row.output_tokens, 0)):
        if not least <= tokens <= MOST_TOKENS:
            raise BadInput(
                f"{path}, line {row.line}: {tokens} {what} tokens; it must be {least} to {MOST_TOKENS}"
            )


def _block_tokens(path: Path, rows: Iterable[Row], *, whole_only: bool) -> int:
    """How many tokens a prefix id stands for: the power of two that agrees with every row.

        n ids, the last may be partial:  n - 1 < tokens / block <= n
        n ids of whole blocks:           n <= tokens / block < n + 1

    Where several agree, every row has at most one id, and they come to the same.
    """
    candidates = [1 << exponent for exponent in range(15)]
    for row in rows:
        tokens, ids = row.prompt_tokens, len(row.prefix_ids)
        if not ids:
            continue
        agreeing = [
            size for size in candidates if (tokens // size if whole_only else -(-tokens // size)) == ids
        ]
        if not agreeing:
            raise BadInput(
                f"{path}, line {row.line}: {ids} prefix ids for {tokens} tokens; no power of two of tokens "
                "an id agrees with this row and those above it",
                "say how many tokens an id stands for: --prefix-block-tokens",
            )
        candidates = agreeing
    return candidates[0]
