"""Every fault in turn, on as few servers as there are settings.

names -> made -> Row, Row, ...
"""

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path

from bench.faults.judging import DISTURBED_CORES, Row, judge
from bench.faults.pace import measured
from bench.faults.running import Examined, examine, examine_start, others_cores
from bench.faults.scenarios import CROWDS, FAULTS, Disturbance, Fault, Pace
from bench.faults.servers import KINDS, fresh_cache
from headrace.core.ports import Overrides
from headrace.net.ports import reserved_port
from headrace.targets.process import ServerProcess

Named = tuple[str, Fault]
TRIES = 3
"""Of a fault while others disturb it."""
QUIET_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Look:
    """How the doctor looks: for so long, and where what it saw is kept."""

    for_s: float
    keep: Path | None = None

    def file(self, target: str, name: str, ending: str) -> Path | None:
        return None if self.keep is None else self.keep / f"{target}-{name.replace(' ', '-')}{ending}"


def made(target: str, names: Sequence[str], look: Look) -> Iterator[Row]:
    """The faults of those names, in the order of the table."""
    wanted = [(name, fault) for name, fault in FAULTS.items() if name in names]
    for settings, group in groupby(wanted, key=lambda named: named[1].settings.get(target, {})):
        yield from _on_one_server(target, settings, list(group), look)


def _on_one_server(target: str, settings: Overrides, faults: Sequence[Named], look: Look) -> Iterator[Row]:
    at_start = [named for named in faults if named[1].disturbance is Disturbance.STARTING]
    with ExitStack() as until_then:
        port = until_then.enter_context(reserved_port())
        if at_start and target == "embedded":
            until_then.enter_context(fresh_cache())
        server = KINDS[target].make(settings, port)
        starting = _started(server, until_then)
        for name, _ in at_start:
            seen = asyncio.run(examine_start(server, f"http://127.0.0.1:{port}", look.for_s))
            yield _judged(target, name, seen, look)
        starting.result()
        pace = Pace(asyncio.run(measured(server.url, KINDS[target].model)), CROWDS[target])
        for name, fault in faults:
            if (name, fault) not in at_start:
                yield _at_a_quiet_time(target, (name, fault), server, pace, look)


def _at_a_quiet_time(target: str, named: Named, server: ServerProcess, pace: Pace, look: Look) -> Row:
    """Once more, and once more, while others disturb; the last one counts, disturbed or not."""
    row = _once(target, named, server, pace, look)
    for attempt in range(1, TRIES):
        if not row.is_disturbed:
            break
        row = _once(target, named, server, replace(pace, attempt=attempt), look)
    return row


def _once(target: str, named: Named, server: ServerProcess, pace: Pace, look: Look) -> Row:
    name, fault = named
    pages = look.file(target, name, ".pages.jsonl")
    _wait_for_others(server)
    seen = asyncio.run(examine(fault, server, KINDS[target], pace, look.for_s, pages))
    return _judged(target, name, seen, look)


def _wait_for_others(server: ServerProcess) -> None:
    """Until they leave the machine alone, or long enough."""
    deadline = time.monotonic() + QUIET_WITHIN_S
    while time.monotonic() < deadline and others_cores(server, 1.0) > DISTURBED_CORES:
        pass


def _judged(target: str, name: str, seen: Examined, look: Look) -> Row:
    if (path := look.file(target, name, ".json")) is not None:
        path.write_text(json.dumps(asdict(seen), indent=1), encoding="utf-8")
    return judge(target, name, seen)


def _started(server: ServerProcess, until_then: ExitStack) -> Future[ServerProcess]:
    """Begun, and perhaps not ready yet. Stopped at the end."""
    # The thread that starts a server must live as long as it: the kernel may end both together.
    starter = until_then.enter_context(ThreadPoolExecutor(1))
    until_then.callback(lambda: starter.submit(server.stop).result())
    starting = starter.submit(server.__enter__)
    while server.ended and not starting.done():
        time.sleep(0.02)  # it has not begun
    return starting
