"""Workloads that come as JSON lines, but for our own form (`own_form.py`) and logs (`request_logs.py`).

mooncake       {"timestamp": ms, "input_length", "output_length", "hash_ids", "session_id"}   an id for each
               block, the last one included even where it is not full; the last two keys may be missing
llmservingsim  {"arrival_time_ns", "input_toks", "output_toks", "hash_ids"}     full blocks only
measurement    what `headrace bench --output` and `simulate --output` write: replays what was asked
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from headrace.core.errors import BadInput
from headrace.workload.rows import Lines, Row, decoded, nanoseconds


class _MooncakeRow(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()
    session_id: int | str = ""


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


def mooncake(path: Path, lines: Lines) -> Iterator[Row]:
    decoder = msgspec.json.Decoder(_MooncakeRow)
    for number, line in lines:
        row = decoded(path, number, line, decoder)
        yield Row(
            number,
            nanoseconds(path, number, row.timestamp, 1e6),
            row.input_length,
            row.output_length,
            prefix_ids=row.hash_ids,
            session=str(row.session_id),
        )


def llmservingsim(path: Path, lines: Lines) -> Iterator[Row]:
    decoder = msgspec.json.Decoder(_LlmServingSimRow)
    for number, line in lines:
        row = decoded(path, number, line, decoder)
        yield Row(number, row.arrival_time_ns, row.input_toks, row.output_toks, prefix_ids=row.hash_ids)


def measurement(path: Path, lines: Lines) -> Iterator[Row]:
    """In order of when they were due, which a record need not be. Who failed has no known length: 0."""
    decoder = msgspec.json.Decoder(_MeasurementRow)
    rows: list[Row] = []
    _, head = next(lines)
    promised = decoded(path, 1, head, msgspec.json.Decoder(_MeasurementHead)).requests
    for number, line in lines:
        row = decoded(path, number, line, decoder)
        asked = row.timeline or row.failure
        if asked is None:
            raise BadInput(f"{path}, line {number}: neither a timeline nor a failure")
        due_ns = nanoseconds(path, number, asked.due_at, 1e9)
        rows.append(Row(number, due_ns, asked.prompt_tokens, len(asked.token_at), asked.request_class))
    if len(rows) != promised:
        raise BadInput(
            f"{path}: line 1 promises {promised} requests, {len(rows)} are there",
            "it was cut off when copied; copy it again",
        )
    yield from sorted(rows, key=lambda row: row.at_ns)
