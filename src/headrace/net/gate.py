"""Who is inside: lets requests in until it is closed, then waits for the last one to leave."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from headrace.core.errors import Busy

RETRY_AFTER_S = 5.0
"""What those who come while we drain are told: by then another server, or none, is at this address."""


class Gate:
    def __init__(self) -> None:
        self._inside = 0
        self._open = True
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def is_open(self) -> bool:
        return self._open

    @property
    def inside(self) -> int:
        return self._inside

    @contextmanager
    def enter(self) -> Generator[None, None, None]:
        """Counts the caller as inside. Raises `Busy` when closed."""
        if not self._open:
            raise Busy("the server is shutting down", RETRY_AFTER_S, "ask another server")
        self._inside += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._empty.set()

    def close(self) -> None:
        self._open = False

    async def wait_empty(self, within_s: float) -> bool:
        """True once nobody is inside; False if that takes longer than `within_s`."""
        try:
            async with asyncio.timeout(within_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True
