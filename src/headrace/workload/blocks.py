"""How many tokens a prefix id stands for, where nobody says.

    n ids, the last may be partial:  n - 1 < tokens / block <= n
    n ids of whole blocks:           n <= tokens / block < n + 1

It is the power of two that agrees with the rows. Where several agree, every row has at most one id, and
they come to the same. The first `LOOK_AHEAD` rows with ids decide, so that a file can be read as a
stream; later ones must agree.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from headrace.core.errors import BadInput
from headrace.workload.forms import TraceFormat
from headrace.workload.rows import Row

LOOK_AHEAD = 4096
_CANDIDATES = tuple(1 << exponent for exponent in range(15))


class Blocks(Protocol):
    """Of a stream, what reading its ids finds out."""

    path: Path
    trace_format: TraceFormat
    prefix_block_tokens: int


def with_block_tokens(stream: Blocks, rows: Iterator[Row], said: int | None) -> Iterator[Row]:
    """The same rows; the stream knows what their ids stand for before the first one comes."""
    if said is not None:
        stream.prefix_block_tokens = said
        yield from rows
        return
    candidates = _CANDIDATES
    ahead: list[Row] = []
    for row in rows:
        ahead.append(row)
        if row.prefix_ids:
            candidates = _agreeing(stream, row, candidates)
        if len(ahead) == LOOK_AHEAD:
            break
    has_ids = any(row.prefix_ids for row in ahead)
    stream.prefix_block_tokens = candidates[0] if has_ids else 0
    yield from ahead
    for row in rows:
        if row.prefix_ids:
            candidates = _agreeing(stream, row, candidates)
            if not stream.prefix_block_tokens:
                stream.prefix_block_tokens = candidates[0]
        yield row


def _agreeing(stream: Blocks, row: Row, candidates: tuple[int, ...]) -> tuple[int, ...]:
    tokens, ids = row.prompt_tokens, len(row.prefix_ids)
    whole_only = stream.trace_format is TraceFormat.LLMSERVINGSIM
    agreeing = tuple(
        size for size in candidates if (tokens // size if whole_only else -(-tokens // size)) == ids
    )
    if not agreeing or stream.prefix_block_tokens not in {0, *agreeing}:
        raise BadInput(
            f"{stream.path}, line {row.line}: {ids} prefix ids for {tokens} tokens; no power of two of "
            "tokens an id agrees with this row and those above it",
            "say how many tokens an id stands for: --prefix-block-tokens",
        )
    return agreeing
