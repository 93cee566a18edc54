"""How busy our own side is while it measures: a client that is late reads tokens late.

    async with watched(clock) as watch: ...        watch.load() -> ClientLoad

A task looks at the clock every 20 ms. What it is late by, a token may be late by as well: the loop was
doing something else, or the machine was.
"""

import asyncio
import gc
import sys
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress

import numpy as np

from headrace.core.measurement import ClientLoad

EVERY_S = 0.02
PATIENCE_S = 0.0005
"""Of the loop that times tokens, with another thread of this process."""


class Watch:
    """Of one run."""

    def __init__(self) -> None:
        self._cpu_began_s = time.process_time()
        self._late_s: list[float] = []

    async def look(self, clock: Callable[[], float]) -> None:
        while True:
            due_at = clock() + EVERY_S
            await asyncio.sleep(EVERY_S)
            self._late_s.append(max(0.0, clock() - due_at))

    def load(self) -> ClientLoad:
        late_s = np.array(self._late_s or [0.0])
        p50, p99 = np.percentile(late_s, (50, 99)).tolist()
        cpu_s = time.process_time() - self._cpu_began_s
        return ClientLoad(cpu_s, len(self._late_s), p50, p99, float(late_s.max()))


@asynccontextmanager
async def watched(clock: Callable[[], float]) -> AsyncGenerator[Watch]:
    watch = Watch()
    looking = asyncio.create_task(watch.look(clock))
    try:
        yield watch
    finally:
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking


@contextmanager
def few_pauses() -> Generator[None]:
    """What is there already is looked through no more, and what comes but rarely: a full collection of a
    long timetable stops everything for tens of milliseconds. And another thread, as that which draws the
    progress, gives way after half a millisecond instead of five.
    """
    before, patience_s = gc.get_threshold(), sys.getswitchinterval()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 1_000)
    sys.setswitchinterval(PATIENCE_S)
    try:
        yield
    finally:
        sys.setswitchinterval(patience_s)
        gc.set_threshold(*before)
        gc.unfreeze()
