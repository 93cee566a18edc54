"""Workloads from files and folders, in any of the forms of `workload/forms.py`.

    path --open_trace--> TraceStream: requests one by one, as far as they are asked for
    path --read_trace--> ReadTrace(requests, left out)

A file is read line by line, and no further than asked; every complaint names its line. Instants
count from the first request kept, so a slice starts at 0; in our own form from the start of the
workload, or of the slice.
"""

import gzip
import io
import secrets
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from headrace.core.errors import BadInput
from headrace.workload.bench_result import bench_result, looks_like_one
from headrace.workload.blocks import with_block_tokens
from headrace.workload.forms import KNOWN, LOGS, ROWS, TraceFormat, form_of
from headrace.workload.own_form import read_head
from headrace.workload.prefix_names import SALT_BYTES, PrefixNames
from headrace.workload.rows import Lines, Row
from headrace.workload.servegen import servegen
from headrace.workload.slices import ALL, Slice, kept, what_was_left
from headrace.workload.trace import About, TraceRequest

MOST_LINE_BYTES = 1 << 24
_BEGINNING = 4096
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class ReadTrace:
    """What a file gave."""

    trace_format: TraceFormat
    requests: tuple[TraceRequest, ...]
    left_out: int
    """Rows that no server is asked for: without an output token, or failed, so of unknown length."""
    about: About = field(default_factory=About)


@dataclass(slots=True)
class TraceStream:
    """A workload that is being read: rows come when they are asked for, and the counts grow with them."""

    path: Path
    trace_format: TraceFormat
    about: About
    total_bytes: int
    """0 where nobody knows: of a folder, or a compressed file."""
    bytes_read: int = 0
    left_out: int = 0
    base_ns: int | None = None
    """What instants count from; known when the first row has come."""
    prefix_block_tokens: int = 0
    rows: Iterator[Row] = field(default_factory=lambda: iter(()))

    def requests(self) -> Iterator[TraceRequest]:
        for row in self.rows:
            assert self.base_ns is not None, "set by the first row"
            yield as_request(row, self.base_ns, self.prefix_block_tokens)


def as_request(row: Row, base_ns: int, prefix_block_tokens: int) -> TraceRequest:
    return TraceRequest(
        (row.at_ns - base_ns) / 1e9,
        row.prompt_tokens,
        row.output_tokens,
        row.request_class,
        row.priority,
        row.prefix_ids,
        prefix_block_tokens if row.prefix_ids else 0,
        row.tenant,
        row.session,
        None if row.think_ns is None else row.think_ns / 1e9,
    )


def read_trace(
    path: Path,
    *,
    trace_format: TraceFormat | None = None,
    prefix_block_tokens: int | None = None,
    part: Slice = ALL,
) -> ReadTrace:
    """The requests of a file, or of a part of it, at once. Raises `BadInput` with the line that is wrong."""
    with open_trace(
        path, trace_format=trace_format, prefix_block_tokens=prefix_block_tokens, part=part
    ) as stream:
        requests = tuple(stream.requests())
    return ReadTrace(stream.trace_format, requests, stream.left_out, stream.about)


@contextmanager
def open_trace(
    path: Path,
    *,
    trace_format: TraceFormat | None = None,
    prefix_block_tokens: int | None = None,
    part: Slice = ALL,
    seed: int = 0,
    names: PrefixNames | None = None,
) -> Generator[TraceStream]:
    """Raises `BadInput`, then or when a row is asked for: with the line that is wrong, or for no row at all.

    `prefix_block_tokens` says how many tokens a prefix id stands for, where that is not the power of
    two that all rows agree with. Only ServeGen's form, which says how likely what is, looks at `seed`, and
    only logs at `names`: how their prefixes are named, under a salt of its own where nothing is said.
    """
    try:
        if path.is_dir() or trace_format is TraceFormat.SERVEGEN:
            stream = TraceStream(path, TraceFormat.SERVEGEN, About(f"ServeGen, {path.name}", seed), 0)
            stream.rows = _finished(stream, servegen(path, seed), part, prefix_block_tokens)
            yield stream
            return
        with path.open("rb") as raw:
            names = names or PrefixNames(secrets.token_bytes(SALT_BYTES))
            file = _unpacked(raw)
            total_bytes = path.stat().st_size if file is raw else 0
            yield _open_file(path, file, _Said(trace_format, prefix_block_tokens, names, total_bytes), part)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadInput(
            f"{path} is compressed with gzip, and damaged or cut off: {error}", "copy it again"
        ) from error
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from error


def _unpacked(raw: BinaryIO) -> BinaryIO:
    """What is in it, where it is compressed. Told from how it begins; names of files lie."""
    if not raw.seekable():
        return raw
    beginning = raw.read(len(_GZIP))
    raw.seek(0)
    return io.BufferedReader(gzip.GzipFile(fileobj=raw)) if beginning == _GZIP else raw


@dataclass(frozen=True, slots=True)
class _Said:
    """What a caller knows of a file."""

    trace_format: TraceFormat | None
    prefix_block_tokens: int | None
    names: PrefixNames
    total_bytes: int


def _open_file(path: Path, file: BinaryIO, said: _Said, part: Slice) -> TraceStream:
    beginning = file.read(_BEGINNING) if file.seekable() else b""
    if file.seekable():
        file.seek(0)
    if said.trace_format is TraceFormat.VLLM_BENCH or (
        said.trace_format is None and looks_like_one(beginning)
    ):
        stream = TraceStream(path, TraceFormat.VLLM_BENCH, About(), said.total_bytes)
        stream.rows = _finished(stream, bench_result(path, file), part, said.prefix_block_tokens)
        return stream
    stream = TraceStream(path, said.trace_format or TraceFormat.HEADRACE, About(), said.total_bytes)
    lines = _numbered(stream, file)
    head = next(lines, None)
    if head is None:
        raise BadInput(f"{path} is empty", "a workload has at least one request")
    stream.trace_format = form = said.trace_format or form_of(path, head[1], beginning)
    lines = chain([head], lines)
    if form in LOGS:
        stream.rows = _finished(stream, LOGS[form](path, lines, said.names), part, said.names.block_tokens)
        return stream
    block_tokens = said.prefix_block_tokens
    if form is TraceFormat.HEADRACE:
        stream.about = read_head(path, head[1])
        stream.base_ns = round(part.from_s * 1e9)
        block_tokens = block_tokens or stream.about.prefix_block_tokens or None
    stream.rows = _finished(stream, ROWS[form](path, lines), part, block_tokens)
    return stream


def _finished(
    stream: TraceStream, rows: Iterator[Row], part: Slice, prefix_block_tokens: int | None
) -> Iterator[Row]:
    """Checked, cut to the part that is asked for, and with what a prefix id stands for."""
    cut = with_block_tokens(stream, kept(stream, rows, part), prefix_block_tokens)
    first = next(cut, None)
    if first is None:
        raise what_was_left(stream, part)
    yield first
    yield from cut


def _numbered(stream: TraceStream, file: BinaryIO) -> Lines:
    number = 0
    while line := file.readline(MOST_LINE_BYTES + 1):
        number += 1
        stream.bytes_read += len(line)
        if len(line) > MOST_LINE_BYTES:
            raise BadInput(f"{stream.path}, line {number} is longer than {MOST_LINE_BYTES} bytes", KNOWN)
        if stripped := line.removeprefix(b"\xef\xbb\xbf").strip():
            yield number, stripped
