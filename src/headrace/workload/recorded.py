"""Several logs as one workload, in order of time.

    logs, PrefixNames --record_logs--> Recorded(requests)

Logs are mostly written when a request has ended, so their lines are not in order of arrival: all
are read, then sorted. What is kept of one is some hundred bytes, whatever its text.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from headrace.core.errors import BadInput
from headrace.workload.columns import ROWS_A_REPORT
from headrace.workload.forms import LOGS, TraceFormat
from headrace.workload.prefix_names import PrefixNames
from headrace.workload.readers import as_request, open_trace
from headrace.workload.rows import Row
from headrace.workload.slices import Slice
from headrace.workload.trace import TraceRequest


@dataclass(frozen=True, slots=True)
class Recorded:
    requests: tuple[TraceRequest, ...]
    left_out: int
    """Lines without an answer."""
    trace_format: TraceFormat


def record_logs(
    logs: Sequence[Path],
    names: PrefixNames,
    trace_format: TraceFormat | None,
    on_rows: Callable[[int], None] = lambda _count: None,
) -> Recorded:
    """Raises `BadInput` with the line that is wrong, for what is no log, and for logs of two forms."""
    rows: list[Row] = []
    left_out = 0
    for path in logs:
        with open_trace(path, trace_format=trace_format, part=Slice(sort=True), names=names) as stream:
            if stream.trace_format not in LOGS:
                raise BadInput(
                    f"{path} is no log but a workload already ({stream.trace_format.value})",
                    "`headrace workload convert` writes it in our own form",
                )
            if trace_format not in {None, stream.trace_format}:
                raise BadInput(f"{path} is a {stream.trace_format.value}, the log before it a {trace_format}")
            trace_format = stream.trace_format
            while some := list(islice(stream.rows, ROWS_A_REPORT)):
                rows += some
                on_rows(len(rows))
            left_out += stream.left_out
    assert trace_format is not None, "at least one log was read"
    rows = list(_thinking(sorted(rows, key=lambda row: row.at_ns)))
    requests = tuple(as_request(row, rows[0].at_ns, names.block_tokens) for row in rows)
    return Recorded(requests, left_out, trace_format)


def _thinking(rows: Sequence[Row]) -> Iterator[Row]:
    """Turns that came after the answer before them in their session wait for it, and as long as they did: on
    a slower server they would have come later. Calls of a session that overlap wait for nothing.
    """
    ended_ns: dict[str, int | None] = {}
    for row in rows:
        before_ns = ended_ns.get(row.session) if row.session else None
        if before_ns is not None and before_ns <= row.at_ns:
            yield row._replace(think_ns=row.at_ns - before_ns)
        else:
            yield row
        ended_ns[row.session] = row.ended_ns
