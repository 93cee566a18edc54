"""Public workloads that come as CSV.

azure      TIMESTAMP,ContextTokens,GeneratedTokens                            Azure LLM inference traces
burstgpt   Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type     and perhaps Session ID;
           seconds from the start; an answer of 0 tokens has failed
"""

import csv
from collections.abc import Iterator
from pathlib import Path

from headrace.core.errors import BadInput
from headrace.workload.rows import Lines, Row, nanoseconds, since_epoch_ns

AZURE_HEAD = b"TIMESTAMP,ContextTokens,GeneratedTokens"
BURSTGPT_COLUMNS = frozenset({"Timestamp", "Request tokens", "Response tokens"})


def azure(path: Path, lines: Lines) -> Iterator[Row]:
    for number, line in lines:
        if line.startswith(AZURE_HEAD):
            continue
        try:
            when, prompt, output = line.split(b",")
            row = Row(number, since_epoch_ns(when.decode()), int(prompt), int(output))
        except ValueError as error:
            seen = line[:80].decode(errors="replace")
            raise BadInput(
                f"{path}, line {number}: {seen!r} is not a time and two numbers of tokens",
                "the line may be cut off",
            ) from error
        yield row


def burstgpt(path: Path, lines: Lines) -> Iterator[Row]:
    """The class is the kind of log: `conversation` or `api`."""
    number, head = next(lines)
    if not is_burstgpt(head):
        raise BadInput(
            f"{path}, line {number}: the header lacks one of {', '.join(sorted(BURSTGPT_COLUMNS))}",
            "is it BurstGPT's form?",
        )
    columns = _fields(head)
    for number, line in lines:
        try:
            fields = dict(zip(columns, _fields(line), strict=True))
            yield Row(
                number,
                nanoseconds(path, number, float(fields["Timestamp"]), 1e9),
                int(fields["Request tokens"]),
                int(fields["Response tokens"]),
                request_class=fields.get("Log Type", "trace").removesuffix("log").strip().lower() or "trace",
                session=fields.get("Session ID", ""),
            )
        except (ValueError, csv.Error) as error:
            seen = line[:80].decode(errors="replace")
            raise BadInput(
                f"{path}, line {number}: {seen!r} does not fit the columns {', '.join(columns)}",
                "the line may be cut off",
            ) from error


def is_burstgpt(line: bytes) -> bool:
    try:
        return set(_fields(line)) >= BURSTGPT_COLUMNS
    except (csv.Error, ValueError):
        return False


def _fields(line: bytes) -> list[str]:
    return next(csv.reader([line.decode()]))
