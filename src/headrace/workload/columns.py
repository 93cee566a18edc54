"""A workload as columns of numbers: what is kept of ten million requests to describe them exactly.

TraceStream --collect--> Columns      25 bytes a request, whatever their prefixes, tenants and sessions
"""

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import BadInput
from headrace.workload.readers import TraceStream
from headrace.workload.rows import Row
from headrace.workload.shared import SharedPrefixes

MOST_CLASSES = 256
MOST_NAMES = 1_000_000
"""Of tenants and of sessions. Those beyond are one more, together."""
ROWS_A_REPORT = 50_000
ALONE = -1


@dataclass(frozen=True, slots=True)
class Columns:
    """One entry a request, in order of arrival."""

    at_ns: NDArray[np.int64]
    prompt_tokens: NDArray[np.int32]
    output_tokens: NDArray[np.int32]
    shared_tokens: NDArray[np.int32]
    """Of the prompt, what an earlier request had too; never all of it."""
    class_index: NDArray[np.uint8]
    session_index: NDArray[np.int32]
    """Equal for requests of one session; `ALONE` for those of none."""
    classes: tuple[str, ...]
    tenants: dict[str, int]
    """Requests of each, where the workload names them."""
    sessions: dict[str, int]
    prefix_blocks: int
    """All that the requests name; 0 in a workload that does not say what is shared."""
    prefix_hits: float
    """Of those, what an earlier request had named. Estimated beyond millions of different ones."""
    waiting: int
    """Requests that wait for the answer before them in their session."""
    left_out: int


class _Names:
    """How often each name came."""

    def __init__(self) -> None:
        self.counts = dict[str, int]()
        self._places = dict[str, int]()

    def add(self, name: str) -> int:
        """Which name it is."""
        if name not in self._places and len(self._places) >= MOST_NAMES:
            name = "…"
        self.counts[name] = self.counts.get(name, 0) + 1
        return self._places.setdefault(name, len(self._places))


class _Gathering:
    """The columns while they grow."""

    def __init__(self) -> None:
        self.at_ns, self.prompt, self.output = array("q"), array("i"), array("i")
        self.shared, self.class_index, self.session_index = array("i"), array("B"), array("i")
        self.classes = dict[str, int]()
        self.tenants, self.sessions = _Names(), _Names()
        self.prefixes = SharedPrefixes()
        self.waiting = 0

    def add(self, row: Row, block_tokens: int) -> None:
        _, at_ns, prompt, output, name, ids, _, tenant, session, think_ns, _ = row
        self.at_ns.append(at_ns)
        self.prompt.append(prompt)
        self.output.append(output)
        self.shared.append(self.prefixes.shared_tokens(ids, prompt, block_tokens) if ids else 0)
        index = self.classes.setdefault(name, len(self.classes))
        if index >= MOST_CLASSES:
            raise BadInput(
                f"line {row.line}: more than {MOST_CLASSES} classes of requests",
                "is a class a name of somebody?",
            )
        self.class_index.append(index)
        if tenant:
            self.tenants.add(tenant)
        self.session_index.append(self.sessions.add(session) if session else ALONE)
        if think_ns is not None:
            self.waiting += 1


def collect(stream: TraceStream, on_rows: Callable[[int], None] = lambda _count: None) -> Columns:
    """All of the stream; `on_rows` is told now and then how many rows there were so far."""
    gathering = _Gathering()
    count = 0
    while some := list(islice(stream.rows, ROWS_A_REPORT)):
        for row in some:
            gathering.add(row, stream.prefix_block_tokens)
        count += len(some)
        on_rows(count)
    return Columns(
        at_ns=np.frombuffer(gathering.at_ns, dtype=np.int64),
        prompt_tokens=np.frombuffer(gathering.prompt, dtype=np.int32),
        output_tokens=np.frombuffer(gathering.output, dtype=np.int32),
        shared_tokens=np.frombuffer(gathering.shared, dtype=np.int32),
        class_index=np.frombuffer(gathering.class_index, dtype=np.uint8),
        session_index=np.frombuffer(gathering.session_index, dtype=np.int32),
        classes=tuple(gathering.classes),
        tenants=gathering.tenants.counts,
        sessions=gathering.sessions.counts,
        prefix_blocks=gathering.prefixes.blocks,
        prefix_hits=gathering.prefixes.hits,
        waiting=gathering.waiting,
        left_out=stream.left_out,
    )
