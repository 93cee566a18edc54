"""Our own form of a workload: versioned JSON lines that hold no text.

    line 1     {"format": "headrace.workload", "version": 1, "made_of": …, "seed": …, "slo": …,
                "prefix_block_tokens": 64}
    line 2…    {"at_ns": 1500000000, "prompt_tokens": 374, "output_tokens": 44, "class": "chat",
                "priority": 0, "tenant": "t3", "session": "s17", "think_ns": 8000000000,
                "prefix_ids": [0, 5, 6]}
    last line  {"requests": 2}           so that a file that lost its end is refused, not shortened

What is at its default is left out of a row. Written beside the file and moved into place when whole.
docs/workloads.md says what each field means.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from headrace.core.errors import BadInput
from headrace.core.slo import parse_goals
from headrace.core.whole_file import replace_file
from headrace.workload.rows import Lines, Row, decoded
from headrace.workload.trace import About, TraceRequest

FORMAT = "headrace.workload"
VERSION = 1


class Head(msgspec.Struct, kw_only=True):
    format: str
    version: int
    made_of: str = ""
    seed: int | None = None
    slo: str = ""
    prefix_block_tokens: int = 0


class _Mark(msgspec.Struct):
    """What every version of the head has: enough to tell whether the rest can be read."""

    format: str
    version: int


class _Line(msgspec.Struct, rename={"request_class": "class"}, omit_defaults=True, kw_only=True):
    at_ns: int
    prompt_tokens: int
    output_tokens: int
    request_class: str = "trace"
    priority: int = 0
    tenant: str = ""
    session: str = ""
    think_ns: int | None = None
    prefix_ids: tuple[int, ...] = ()


class _End(msgspec.Struct):
    requests: int


_ENCODER = msgspec.json.Encoder()
_END_MARK = b'{"requests":'


def read_head(path: Path, line: bytes) -> About:
    """Raises `BadInput` for another format or version."""
    mark = decoded(path, 1, line, msgspec.json.Decoder(_Mark))
    if mark.format != FORMAT:
        raise BadInput(f"{path}, line 1: the format is {mark.format!r}, not {FORMAT!r}")
    if mark.version != VERSION:
        raise BadInput(
            f"{path}, line 1: version {mark.version} of the format; this headrace reads version {VERSION}",
            "read it with the headrace that wrote it",
        )
    head = decoded(path, 1, line, msgspec.json.Decoder(Head))
    if head.prefix_block_tokens < 0:
        raise BadInput(f"{path}, line 1: a prefix id cannot stand for {head.prefix_block_tokens} tokens")
    parse_goals(head.slo)
    return About(head.made_of, head.seed, head.slo, head.prefix_block_tokens)


def own_rows(path: Path, lines: Lines) -> Iterator[Row]:
    """Raises `BadInput` where the end is missing, or comes too early."""
    next(lines)
    decoder = msgspec.json.Decoder(_Line)
    found, number, promised = 0, 1, None
    for number, line in lines:
        if promised is not None:
            raise BadInput(f"{path}, line {number}: after the end, which line {number - 1} marks")
        if line.startswith(_END_MARK):
            promised = decoded(path, number, line, msgspec.json.Decoder(_End)).requests
            continue
        row = decoded(path, number, line, decoder)
        found += 1
        yield Row(
            number,
            row.at_ns,
            row.prompt_tokens,
            row.output_tokens,
            row.request_class,
            row.prefix_ids,
            row.priority,
            row.tenant,
            row.session,
            row.think_ns,
        )
    if found != promised:
        says = "the last line, which says how many requests there are, is missing"
        if promised is not None:
            says = f"its end says {promised} requests, {found} are there"
        raise BadInput(f"{path}, line {number}: {says}", "it was cut off when copied; copy it again")


def workload_lines(about: About, requests: Iterable[TraceRequest]) -> Iterator[bytes]:
    """A workload as the lines of a file, each with its end."""
    head = Head(
        format=FORMAT,
        version=VERSION,
        made_of=about.made_of,
        seed=about.seed,
        slo=about.slo,
        prefix_block_tokens=about.prefix_block_tokens,
    )
    yield _ENCODER.encode(head) + b"\n"
    count = 0
    for traced in requests:
        count += 1
        line = _Line(
            at_ns=round(traced.due_at * 1e9),
            prompt_tokens=traced.prompt_tokens,
            output_tokens=traced.output_tokens,
            request_class=traced.request_class,
            priority=traced.priority,
            tenant=traced.tenant,
            session=traced.session,
            think_ns=None if traced.think_s is None else round(traced.think_s * 1e9),
            prefix_ids=traced.prefix_ids,
        )
        yield _ENCODER.encode(line) + b"\n"
    yield _ENCODER.encode(_End(requests=count)) + b"\n"


def write_workload(path: Path, about: About, requests: Iterable[TraceRequest]) -> None:
    """Replace `path` when all `requests` have come. Raises `BadInput` where nothing can be written."""
    replace_file(path, workload_lines(about, requests))
