"""One fault on one server: the load runs, the fault is made, the doctor looks.

    Fault, server -> examine -> Examined(what the doctor said, seconds, what others took of the machine)

The doctor is the command that a person types, in a process of its own; so is what disturbs the server.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass
from pathlib import Path

from bench.faults.scenarios import FEW_CONNECTIONS, Disturbance, Fault, Pace
from bench.faults.servers import Kind, engine_of, log_of
from headrace.core.exchange import Answer, Ask, Broken, Sender
from headrace.diagnose.evidence import Evidence
from headrace.diagnose.readers import host
from headrace.measure.run import Ending, run
from headrace.measure.sources import Source
from headrace.net.client import HttpSender
from headrace.net.fetch import fetch
from headrace.net.transcript import StreamBroke
from headrace.targets.process import ServerProcess

NEIGHBOURS = 4
COMPUTE = "while True: pass"
PAGE_EVERY_S, PAGE_WITHIN_S = 1.0, 5.0
PATIENCE_S = 120.0
"""Longer than anything here takes: a doctor that hangs is a failure of its own."""


@dataclass(frozen=True, slots=True)
class Examined:
    said: dict[str, object] | None
    """The doctor's JSON; None where it gave none."""
    exit_code: int
    error: str
    took_s: float
    others_cores: float
    """That neither the server nor this bench kept busy; the doctor is among them."""
    kept_waiting: float = 0.0
    """Threads of the server that were ready and had no core, on average."""


async def examine(
    fault: Fault, server: ServerProcess, kind: Kind, pace: Pace, for_s: float, pages: Path | None = None
) -> Examined:
    """On a server that runs."""
    began_at = time.monotonic()
    lasts_s = fault.settle_s + for_s + 5.0
    with disturbed(fault.disturbance):
        async with (
            under_load(fault, server.url, kind.model, fault.load(pace, lasts_s)),
            keeping(server.url, pages),
        ):
            await asyncio.sleep(fault.settle_s)
            before = host.look(server.session, time.monotonic())
            with stopped(engine_of(server), fault.disturbance is Disturbance.STOPPED_ENGINE):
                code, out, error = await diagnosed([server.url, str(log_of(server))], for_s)
                after = host.look(server.session, time.monotonic())
    machine = Evidence() if before is None or after is None else host.between(before, after, 0, os.getpid())
    noise = (machine.number(f"machine:{name}") or 0.0 for name in ("cores_of_others", "threads_kept_waiting"))
    return Examined(_decoded(out), code, error, time.monotonic() - began_at, *noise)


def others_cores(server: ServerProcess, for_s: float) -> float:
    """That others keep busy during that time; 0 where the machine does not tell."""
    before = host.look(server.session, time.monotonic())
    time.sleep(for_s)
    after = host.look(server.session, time.monotonic())
    if before is None or after is None:
        return 0.0
    return host.between(before, after, 0, os.getpid()).number("machine:cores_of_others") or 0.0


async def examine_start(server: ServerProcess, url: str, for_s: float) -> Examined:
    """On one that another thread is starting."""
    began_at = time.monotonic()
    code, out, error = await diagnosed([url, str(log_of(server))], for_s)
    return Examined(_decoded(out), code, error, time.monotonic() - began_at, 0.0)


async def diagnosed(inputs: list[str], for_s: float) -> tuple[int, str, str]:
    words = [sys.executable, "-m", "headrace", "doctor", *inputs, "--for", f"{for_s:g}s", "--json"]
    doctor = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    async with asyncio.timeout(for_s + PATIENCE_S):
        out, error = await doctor.communicate()
    return doctor.returncode or 0, out.decode(), error.decode()


def _decoded(out: str) -> dict[str, object] | None:
    try:
        return json.loads(out)
    except json.JSONDecodeError:
        return None


@contextlib.asynccontextmanager
async def under_load(fault: Fault, url: str, model: str, source: Source) -> AsyncGenerator[None]:
    """Until it is left; what is still open then is let go."""
    began_at = time.monotonic()

    def clock() -> float:
        return time.monotonic() - began_at

    stop = asyncio.Event()
    async with HttpSender(url, model, clock=clock, timeout_s=PATIENCE_S) as sender:
        few = fault.disturbance is Disturbance.FEW_CONNECTIONS
        through = FewConnections(sender, FEW_CONNECTIONS) if few else sender
        load = asyncio.create_task(run(through, source, clock=clock, ending=Ending(PATIENCE_S, stop)))
        try:
            yield
        finally:
            stop.set()
            await load


@contextlib.asynccontextmanager
async def keeping(url: str, path: Path | None) -> AsyncGenerator[None]:
    """Every second a page of /metrics with its time, a line each, to look into afterwards."""

    async def look(path: Path) -> None:
        with path.open("w", encoding="utf-8") as file:
            while True:
                with contextlib.suppress(StreamBroke):
                    page = await fetch(f"{url}/metrics", timeout_s=PAGE_WITHIN_S)
                    file.write(json.dumps([time.monotonic(), page.decode()]) + "\n")
                await asyncio.sleep(PAGE_EVERY_S)

    if path is None:
        yield
        return
    looking = asyncio.create_task(look(path))
    try:
        yield
    finally:
        looking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await looking


class FewConnections:
    """A client with a small pool: who finds it empty waits, and the server does not know of it."""

    def __init__(self, sender: Sender, most: int) -> None:
        self._sender = sender
        self._free = asyncio.Semaphore(most)

    async def send(self, ask: Ask) -> Answer | Broken:
        async with self._free:
            return await self._sender.send(ask)


@contextlib.contextmanager
def disturbed(how: Disturbance) -> Generator[None]:
    """Processes that compute, ended whatever happens. Each has a session of its own: where the kernel shares
    cores by session (autogroup), four in one would get no more than the server does.
    """
    count = NEIGHBOURS if how is Disturbance.BUSY_NEIGHBOURS else 0
    busy = [subprocess.Popen([sys.executable, "-c", COMPUTE], start_new_session=True) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


@contextlib.contextmanager
def stopped(pid: int, wanted: bool) -> Generator[None]:
    if not wanted:
        yield
        return
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
