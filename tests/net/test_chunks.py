"""A body in tiny chunks costs far more than its bytes; whoever sends one holds up nobody else."""

import asyncio

import uvicorn
import uvicorn.server
from starlette.types import Receive, Scope, Send

from headrace.net.connection import CHUNKS_AT_ONCE, Patient

HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


class Wire(asyncio.Transport):
    """Notes whether more would be read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = True

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass


class Counting:
    """An application that notes how much of a body came at once, and whether more was read meanwhile."""

    def __init__(self, wire: Wire, bodies: int) -> None:
        self.parts: list[tuple[int, bool]] = []
        self.have_come = asyncio.Event()
        self._wire = wire
        self._bodies = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        more = True
        while more:
            message = await receive()
            self.parts.append((len(message["body"]), self._wire.reads))
            more = message["more_body"]
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})
        self._bodies -= 1
        if not self._bodies:
            self.have_come.set()


def parts_of(*bodies: bytes) -> tuple[list[tuple[int, bool]], Wire]:
    """What the application got, in how many bytes at once, when all `bodies` came in one read."""

    async def come_at_once() -> tuple[list[tuple[int, bool]], Wire]:
        wire = Wire()
        counting = Counting(wire, len(bodies))
        connection = Patient(uvicorn.Config(counting), uvicorn.server.ServerState(), {})
        connection.connection_made(wire)
        connection.data_received(b"".join(HEAD + body for body in bodies))
        await asyncio.wait_for(counting.have_come.wait(), 20)
        connection.connection_lost(None)
        return counting.parts, wire

    return asyncio.run(come_at_once())


def test_a_body_in_tiny_chunks_is_taken_in_a_few_at_a_time_and_others_have_their_turns() -> None:
    """256 KB of it in one read were half a second, in which no token was sent to anybody."""
    parts, wire = parts_of(b"1\r\na\r\n" * 1000 + END)
    assert sum(size for size, _ in parts) == 1000
    assert max(size for size, _ in parts) == CHUNKS_AT_ONCE
    assert not any(reads for _, reads in parts[:-1]), "what has not been looked at would pile up"
    assert wire.reads, "the next request is heard"


def test_a_body_in_large_chunks_is_taken_in_at_once() -> None:
    parts, _ = parts_of(b"3e8\r\n" + b"a" * 1000 + b"\r\n" + END)
    assert parts == [(1000, True)]


def test_requests_sent_ahead_in_tiny_chunks_are_all_answered() -> None:
    tiny = b"1\r\na\r\n" * (2 * CHUNKS_AT_ONCE) + END
    parts, wire = parts_of(tiny, tiny, tiny)
    assert sum(size for size, _ in parts) == 3 * 2 * CHUNKS_AT_ONCE
    assert wire.reads
