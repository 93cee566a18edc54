"""One HTTP request on a connection of its own, its answer handed on as its bytes come off the socket.

    Host, request, Listener -> exchange -> Listener.begins(head), .hears(body, at)...   or raises StreamBroke

Beneath it are asyncio's connections and llhttp (httptools), nothing between: `buffer_updated` is called with
what one read of the socket gave, so an instant taken there is as early as a program can take it.
"""

import asyncio
import errno
import itertools
import os
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import urlsplit

import httptools

from headrace.core.timeline import FailureKind
from headrace.net.transcript import StreamBroke

MOST_HEAD_BYTES = 65_536
"""A server that never ends its head must not fill our memory."""
LOOK_UP_S = 10.0
READ_BYTES = 1 << 16
EYEBALLS_S = 0.25
"""What an address gets before the next one is tried beside it, where a name has several kinds (RFC 8305)."""

Address = tuple[int, str, int]


@dataclass(slots=True)
class Head:
    """Of an answer; its fields by name in lower case."""

    status: int = 0
    reason: str = ""
    fields: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def content_type(self) -> str:
        return self.fields.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def tells_length(self) -> bool:
        """Whether the body says itself where it ends; else the connection's end is its end."""
        return "content-length" in self.fields or "transfer-encoding" in self.fields


class ConnectionBroke(StreamBroke):
    """The connection ended before the answer did, as far as HTTP can tell."""

    def __init__(self, reason: str) -> None:
        super().__init__(FailureKind.CUT, reason)


class Listener(Protocol):
    """Whoever wants the answer. What it raises ends the exchange and is handed on."""

    def begins(self, head: Head, /) -> None: ...

    def hears(self, body: bytes, at: float, /) -> bool:
        """True when it has heard enough."""
        ...


class Host:
    """Where a server listens. Its name is looked up once, before the run; its addresses take turns."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.name = parts.hostname or ""
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._addresses: list[Address] = []
        self._turns = itertools.count()
        # One for all its connections: what was read is parsed before anything else is read.
        self.buffer = memoryview(bytearray(READ_BYTES))

    async def look_up(self) -> None:
        """A name that nobody knows has no addresses."""
        loop = asyncio.get_running_loop()
        with suppress(OSError, UnicodeError, TimeoutError):
            async with asyncio.timeout(LOOK_UP_S):
                found = await loop.getaddrinfo(self.name, self._port, type=socket.SOCK_STREAM)
                self._addresses = [(family, str(at[0]), int(at[1])) for family, _, _, _, at in found]
                if len({family for family, _, _ in self._addresses}) > 1:
                    await self._settle()

    async def _settle(self) -> None:
        """IPv6 or IPv4, whichever takes us first: behind the other may be nobody, or somebody else."""
        transport, _ = await asyncio.get_running_loop().create_connection(
            asyncio.Protocol, self.name, self._port, happy_eyeballs_delay=EYEBALLS_S
        )
        taken: socket.AddressFamily = transport.get_extra_info("socket").family
        transport.abort()
        self._addresses = [address for address in self._addresses if address[0] == taken]

    async def connect(self, protocol: Callable[[], "_Exchange"]) -> "_Exchange":
        """To the next address, or else any. Raises `StreamBroke` when none takes us."""
        broke = StreamBroke(FailureKind.UNREACHABLE, f"no host of the name {self.name}")
        first = next(self._turns)
        for place in range(len(self._addresses)):
            family, host, port = self._addresses[(first + place) % len(self._addresses)]
            try:
                _, made = await asyncio.get_running_loop().create_connection(
                    protocol,
                    host,
                    port,
                    family=family,
                    ssl=self._tls,
                    server_hostname=self.name if self._tls else None,
                )
            except OSError as error:
                broke = StreamBroke(*_no_connection(error))
            else:
                return made
        raise broke


async def exchange(host: Host, request: bytes, listener: Listener, clock: Callable[[], float]) -> None:
    """Send `request`; `listener` hears the answer. Raises `StreamBroke`, or what the listener raises."""
    made = await host.connect(lambda: _Exchange(request, listener, clock, host.buffer))
    await made.finished()


class _Exchange(asyncio.BufferedProtocol):
    """The parser's callbacks (`on_…`) run inside `buffer_updated`, whose instant is theirs."""

    def __init__(
        self, request: bytes, listener: Listener, clock: Callable[[], float], buffer: memoryview
    ) -> None:
        self._request = request
        self._listener = listener
        self._clock = clock
        self._buffer = buffer
        self._parser = httptools.HttpResponseParser(self)
        self._head = Head()
        self._head_bytes = 0
        self._has_begun = False
        self._at = 0.0
        self._transport: asyncio.Transport | None = None
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def finished(self) -> None:
        """Return when the listener has heard enough, or all there is. Raises what went wrong."""
        try:
            await self._ended
        finally:
            if self._transport is not None:
                self._transport.abort()

    # --- asyncio's callbacks ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), "create_connection makes a transport of both ways"
        self._transport = transport
        transport.write(self._request)

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint  # asyncio's own reads allocate a quarter of a megabyte for every token
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._at = self._clock()
        if self._ended.done():
            return
        if not self._has_begun:
            self._head_bytes += nbytes
        try:
            self._parser.feed_data(self._buffer[:nbytes])
        except httptools.HttpParserError as error:
            self._end(self._wrong(error))
        except httptools.HttpParserUpgrade:
            self._end(StreamBroke(FailureKind.MALFORMED, "it wants to speak another protocol"))
        if not self._has_begun and self._head_bytes > MOST_HEAD_BYTES:
            why = f"its head is longer than {MOST_HEAD_BYTES:,} bytes"
            self._end(StreamBroke(FailureKind.MALFORMED, why))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._has_begun and exc is None:
            why = "the server closed the connection before it answered"
        elif exc is not None or self._head.tells_length:
            why = f"the connection broke: {_reason(exc) if exc else 'closed before the answer was whole'}"
        else:
            self._end(None)
            return
        self._end(ConnectionBroke(why))

    # --- the parser's callbacks ---------------------------------------------------------------

    def on_status(self, status: bytes) -> None:
        self._head.reason += status.decode("latin-1")

    def on_header(self, name: bytes, value: bytes | None) -> None:
        if self._has_begun:
            return  # fields after the body, as many as a server likes
        self._head.fields[name.decode("latin-1").lower()] = (value or b"").decode("latin-1")

    def on_headers_complete(self) -> None:
        self._head.status = self._parser.get_status_code()
        if self._head.status < 200:  # "100 Continue" and its like: the answer is still to come
            self._head = Head()
            return
        self._has_begun = True
        self._listener.begins(self._head)

    def on_body(self, body: bytes) -> None:
        if not self._ended.done() and self._listener.hears(body, self._at):
            self._end(None)

    def on_message_complete(self) -> None:
        if self._has_begun:
            self._end(None)

    def _wrong(self, error: httptools.HttpParserError) -> Exception:
        """The parser wraps what a callback raises."""
        if isinstance(error, httptools.HttpParserCallbackError) and isinstance(error.__context__, Exception):
            return error.__context__
        if self._has_begun:
            return ConnectionBroke(f"the connection broke: {error}")
        return StreamBroke(FailureKind.MALFORMED, f"not an HTTP answer: {error}")

    def _end(self, error: Exception | None) -> None:
        if self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)
            self._ended.exception()  # who was told to stop listening asks no more; it is no error of ours


def _no_connection(error: OSError) -> tuple[FailureKind, str]:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return FailureKind.CLIENT_ERROR, "out of file handles here; raise the limit (ulimit -n)"
    if isinstance(error, ssl.SSLCertVerificationError):
        why = f"{error.verify_message} (SSL_CERT_FILE=ca.pem trusts an authority of your own)"
        return FailureKind.UNREACHABLE, f"no secure connection: {why}"
    if isinstance(error, ssl.SSLError):
        return FailureKind.UNREACHABLE, f"no secure connection: {_reason(error)}"
    return FailureKind.UNREACHABLE, f"no connection: {_reason(error)}"


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or str(error)
    if isinstance(error, OSError) and error.errno and error.errno > 0:
        return os.strerror(error.errno)
    return str(error)
