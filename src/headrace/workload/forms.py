"""The forms in which public workloads come, told apart by what their first line says.

    azure          TIMESTAMP,ContextTokens,GeneratedTokens           Azure LLM inference traces, CSV
    mooncake       {"timestamp": ms, "input_length", "output_length", "hash_ids"}   an id for each block,
                   the last one included even where it is not full
    llmservingsim  {"arrival_time_ns", "input_toks", "output_toks", "hash_ids"}     full blocks only
    measurement    what `headrace bench --output` and `simulate --output` write: replays what was asked

lines --form_of--> TraceFormat --rows--> Row, Row, ...      Every complaint names its line.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from headrace.core.errors import BadInput

KNOWN = (
    "known are Azure's CSV (TIMESTAMP,ContextTokens,GeneratedTokens), JSON lines with timestamp, "
    "input_length, output_length (Mooncake) or arrival_time_ns, input_toks, output_toks, "
    "and records of `headrace bench`"
)


class TraceFormat(StrEnum):
    """Whose form a file has."""

    AZURE = "azure"
    MOONCAKE = "mooncake"
    LLMSERVINGSIM = "llmservingsim"
    MEASUREMENT = "measurement"


class Row(NamedTuple):
    """One row of any form."""

    line: int
    at_ns: int
    prompt_tokens: int
    output_tokens: int
    request_class: str = "trace"
    prefix_ids: tuple[int, ...] = ()


class _MooncakeRow(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()


class _LlmServingSimRow(msgspec.Struct):
    arrival_time_ns: int
    input_toks: int
    output_toks: int
    hash_ids: tuple[int, ...] = ()


class _Asked(msgspec.Struct):
    """Of a timeline or a failure, what was asked."""

    due_at: float
    prompt_tokens: int
    request_class: str
    token_at: tuple[float, ...] = ()


class _MeasurementHead(msgspec.Struct):
    requests: int


class _MeasurementRow(msgspec.Struct):
    timeline: _Asked | None = None
    failure: _Asked | None = None


T = TypeVar("T")
Lines = Iterator[tuple[int, bytes]]
"""Numbered from 1, without empty ones."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_AZURE_HEAD = b"TIMESTAMP,ContextTokens,GeneratedTokens"
_KEYS = {
    frozenset({"timestamp", "input_length", "output_length"}): TraceFormat.MOONCAKE,
    frozenset({"arrival_time_ns", "input_toks", "output_toks"}): TraceFormat.LLMSERVINGSIM,
    frozenset({"format", "version", "requests"}): TraceFormat.MEASUREMENT,
}


def form_of(path: Path, line: bytes) -> TraceFormat:
    if line.startswith(_AZURE_HEAD):
        return TraceFormat.AZURE
    try:
        names = msgspec.json.decode(line, type=dict[str, object]).keys()
    except (msgspec.DecodeError, UnicodeDecodeError):
        names = frozenset[str]()
    for needed, form in _KEYS.items():
        if needed <= names:
            return form
    seen = line[:60].decode(errors="replace")
    raise BadInput(f"{path}, line 1: not a workload: {seen!r}", KNOWN)


def _azure(path: Path, lines: Lines) -> Iterator[Row]:
    for number, line in lines:
        if line.startswith(_AZURE_HEAD):
            continue
        fields = line.split(b",")
        try:
            when, prompt, output = fields
            # Seven digits of a second are one more than Python keeps; a tenth of a microsecond is lost.
            at = datetime.fromisoformat(when.decode())
            since = (at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH
            row = Row(number, since // _MICROSECOND * 1000, int(prompt), int(output))
        except ValueError as error:
            seen = line[:80].decode(errors="replace")
            raise BadInput(
                f"{path}, line {number}: {seen!r} is not a time and two numbers of tokens",
                "the line may be cut off",
            ) from error
        yield row


def _mooncake(path: Path, lines: Lines) -> Iterator[Row]:
    decoder = msgspec.json.Decoder(_MooncakeRow)
    for number, line in lines:
        row = _decoded(path, number, line, decoder)
        yield Row(
            number,
            round(row.timestamp * 1e6),
            row.input_length,
            row.output_length,
            prefix_ids=row.hash_ids,
        )


def _llmservingsim(path: Path, lines: Lines) -> Iterator[Row]:
    decoder = msgspec.json.Decoder(_LlmServingSimRow)
    for number, line in lines:
        row = _decoded(path, number, line, decoder)
        yield Row(number, row.arrival_time_ns, row.input_toks, row.output_toks, prefix_ids=row.hash_ids)


def _measurement(path: Path, lines: Lines) -> Iterator[Row]:
    """In order of when they were due, which a record need not be. Who failed has no known length: 0."""
    decoder = msgspec.json.Decoder(_MeasurementRow)
    rows: list[Row] = []
    _, head = next(lines)
    promised = _decoded(path, 1, head, msgspec.json.Decoder(_MeasurementHead)).requests
    for number, line in lines:
        row = _decoded(path, number, line, decoder)
        asked = row.timeline or row.failure
        if asked is None:
            raise BadInput(f"{path}, line {number}: neither a timeline nor a failure")
        rows.append(
            Row(
                number,
                round(asked.due_at * 1e9),
                asked.prompt_tokens,
                len(asked.token_at),
                asked.request_class,
            )
        )
    if len(rows) != promised:
        raise BadInput(
            f"{path}: line 1 promises {promised} requests, {len(rows)} are there",
            "it was cut off when copied; copy it again",
        )
    yield from sorted(rows, key=lambda row: row.at_ns)


ROWS = {
    TraceFormat.AZURE: _azure,
    TraceFormat.MOONCAKE: _mooncake,
    TraceFormat.LLMSERVINGSIM: _llmservingsim,
    TraceFormat.MEASUREMENT: _measurement,
}


def _decoded(path: Path, number: int, line: bytes, decoder: "msgspec.json.Decoder[T]") -> T:
    try:
        return decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        cut = "" if line.endswith(b"}") else "the line is cut off; copy the file again"
        raise BadInput(f"{path}, line {number}: {error}", cut) from error
