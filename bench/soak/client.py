"""One client of a soak: sends what the visit says, behaves as it says, notes what came.

    make_visit(visit, host, port, within_s) -> Outcome

Speaks raw HTTP over a connection of its own, because half of what it sends is no HTTP.
"""

import asyncio
import contextlib
import socket
import time
from dataclasses import dataclass, field

from bench.soak.requests import Manner, Visit

SMALL_BUFFER_BYTES = 4096
SIP_BYTES, SIP_EVERY_S = 256, 0.02


@dataclass(slots=True)
class Outcome:
    """What a client saw. Instants are of the monotonic clock."""

    began_at: float
    ended_at: float = 0.0
    received: bytearray = field(default_factory=bytearray)
    left: bool = False
    """The client closed the connection, as it meant to."""
    hung: bool = False
    """Nobody closed it within the bound."""
    cut: bool = False
    """The server broke the connection, or did not take one."""

    @property
    def elapsed_s(self) -> float:
        return self.ended_at - self.began_at


async def make_visit(visit: Visit, host: str, port: int, within_s: float) -> Outcome:
    """Returns when the answer has come to its end, the client has left, or the bound has passed."""
    outcome = Outcome(time.monotonic())
    try:
        async with asyncio.timeout(within_s):
            await _visit(visit, host, port, outcome)
    except TimeoutError:
        outcome.hung = True
    except OSError:
        outcome.cut = True
    outcome.ended_at = time.monotonic()
    return outcome


async def _visit(visit: Visit, host: str, port: int, outcome: Outcome) -> None:
    connection = socket.socket()
    connection.setblocking(False)
    if visit.manner is Manner.READS_SLOWLY:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
    try:
        await asyncio.get_running_loop().sock_connect(connection, (host, port))
        limit = SMALL_BUFFER_BYTES if visit.manner is Manner.READS_SLOWLY else 1 << 16
        reader, writer = await asyncio.open_connection(sock=connection, limit=limit)
    except BaseException:
        connection.close()
        raise
    try:
        await _send(visit, writer)
        await _behave(visit, reader, outcome)
    finally:
        writer.transport.abort() if outcome.left else writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _send(visit: Visit, writer: asyncio.StreamWriter) -> None:
    """A server may refuse and close before it has read all; what it said is there to read all the same."""
    with contextlib.suppress(ConnectionError):
        writer.write(visit.head + visit.body)
        await writer.drain()


async def _behave(visit: Visit, reader: asyncio.StreamReader, outcome: Outcome) -> None:
    match visit.manner:
        case Manner.HALF_BODY_LEAVES:
            outcome.left = True
        case Manner.LEAVES_BEFORE:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(visit.leaves_after_s):
                    await _read_to_end(reader, outcome)
            outcome.left = True
        case Manner.LEAVES_AT_FIRST:
            outcome.received += await reader.read(1 << 16)
            outcome.left = True
        case Manner.LEAVES_LATER:
            while outcome.received.count(b"data: ") < visit.leaves_after_events:
                if not (data := await reader.read(1 << 16)):
                    return
                outcome.received += data
            outcome.left = True
        case Manner.READS_SLOWLY:
            while data := await reader.read(SIP_BYTES):
                outcome.received += data
                await asyncio.sleep(SIP_EVERY_S)
        case Manner.READS | Manner.HALF_BODY_STAYS:
            await _read_to_end(reader, outcome)


async def _read_to_end(reader: asyncio.StreamReader, outcome: Outcome) -> None:
    while data := await reader.read(1 << 16):
        outcome.received += data
