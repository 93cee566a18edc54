"""What every reader of a form gives, and what they share.

numbered lines --a reader--> Row, Row, ...      Every complaint names its line.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from headrace.core.errors import BadInput

T = TypeVar("T")
Lines = Iterator[tuple[int, bytes]]
"""Numbered from 1, without empty ones."""

MOST_NS = 1 << 62
"""As an instant, counted from whenever: some 146 years."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Row(NamedTuple):
    """One row of any form."""

    line: int
    at_ns: int
    prompt_tokens: int
    output_tokens: int
    request_class: str = "trace"
    prefix_ids: tuple[int, ...] = ()
    priority: int = 0
    tenant: str = ""
    session: str = ""
    think_ns: int | None = None
    ended_ns: int | None = None
    """When its answer was whole, where the form says it."""


def decoded(path: Path, number: int, line: bytes, decoder: "msgspec.json.Decoder[T]") -> T:
    try:
        return decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        cut = "" if line.endswith(b"}") else "the line is cut off; copy the file again"
        raise BadInput(f"{path}, line {number}: {error}", cut) from error


def nanoseconds(path: Path, number: int, amount: float, unit_ns: float) -> int:
    """Of an amount of time in a file, which may be any number."""
    if not abs(amount) * unit_ns < MOST_NS:
        raise BadInput(f"{path}, line {number}: {amount:g} is no time", "is the unit of time another one?")
    return round(amount * unit_ns)


def since_epoch_ns(text: str) -> int:
    """Of an ISO date, of which those without a zone are UTC. Raises `ValueError`.

    Seven digits of a second are one more than Python keeps; a tenth of a microsecond is lost.
    """
    at = datetime.fromisoformat(text)
    return ((at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND * 1000
