"""One HTTP request and its answer, handed on as its bytes come off the socket.

    Host, request, Listener -> exchange -> Listener.begins(head), .hears(body, at)...   or raises StreamBroke

Beneath it are asyncio's connections and llhttp (httptools), nothing between: `buffer_updated` is called with
what one read of the socket gave, so an instant taken there is as early as a program can take it.

A connection whose answer is over may be kept for the next request. Servers close those that nobody uses,
and one that is closing just then has not read what is sent into it. So none is used again after more
than `KEPT_S`, and a request whose kept connection ends at once without a byte of answer is sent again, on
a new one.
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
KEPT_S = 1.0
"""Idle for longer, a connection is not used again. Servers close theirs after 2 s (gunicorn), 5 s (uvicorn,
and so vLLM) or more."""
STALE_S = 1.0
"""A kept connection that ends within this without an answer had been closed before it was asked."""
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


class _Unread(Exception):
    """A kept connection was closed before it was asked."""


class Listener(Protocol):
    """Whoever wants the answer. What it raises ends the exchange and is handed on."""

    def begins(self, head: Head, /) -> None: ...

    def hears(self, body: bytes, at: float, /) -> bool:
        """True when it has heard enough."""
        ...


class Host:
    """Where a server listens. Its name is looked up once, before the run; its addresses take turns."""

    def __init__(self, url: str, clock: Callable[[], float], *, kept_s: float = 0.0) -> None:
        """`kept_s` is how long a connection may have been idle to be used again; 0 opens one for each."""
        parts = urlsplit(url)
        self.name = parts.hostname or ""
        self.clock = clock
        self.opened = self.sent_again = 0
        """Connections, and requests that found their kept connection closed."""
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._addresses: list[Address] = []
        self._turns = itertools.count()
        self._kept_s = kept_s
        self._open = set[_Connection]()
        self._idle = dict[_Connection, float]()  # since when; the one used last is last
        self._ending = dict[_Connection, float]()  # heard enough of, but the server has not ended its answer
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

    def close(self) -> None:
        for connection in tuple(self._open):
            connection.drop()

    def gains(self, connection: "_Connection") -> None:
        self.opened += 1
        self._open.add(connection)

    def loses(self, connection: "_Connection") -> None:
        self._open.discard(connection)
        self._idle.pop(connection, None)
        self._ending.pop(connection, None)

    def keeps(self, connection: "_Connection") -> bool:
        """Whether it will use it again."""
        self._ending.pop(connection, None)
        if self._kept_s > 0:
            self._idle[connection] = self.clock()
        return self._kept_s > 0

    def lets_end(self, connection: "_Connection") -> None:
        """Its last chunk often comes by itself; with that it can be used again."""
        if not (self._kept_s > 0 and connection.has_an_end):
            connection.drop()
            return
        now = self.clock()
        while self._ending and now - next(iter(self._ending.values())) > self._kept_s:
            next(iter(self._ending)).drop()
        self._ending[connection] = now

    def kept(self) -> "_Connection | None":
        """The one used last: where that has been idle for too long, all others have."""
        while self._idle:
            connection, since = self._idle.popitem()
            if self.clock() - since <= self._kept_s and connection.is_open:
                return connection
            connection.drop()
        return None

    async def connect(self, protocol: Callable[[], "_Connection"]) -> "_Connection":
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


async def exchange(host: Host, request: bytes, listener: Listener) -> None:
    """Send `request`; `listener` hears the answer. Raises `StreamBroke`, or what the listener raises."""
    kept = host.kept()
    if kept is not None:
        try:
            kept.ask(request, listener)
            await kept.finished()
        except _Unread:
            host.sent_again += 1
        else:
            return
    made = await host.connect(lambda: _Connection(host, request, listener))
    await made.finished()


class _Connection(asyncio.BufferedProtocol):
    """Asked once when it is made, and again each time that it was kept.

    The parser's callbacks (`on_…`) run inside `buffer_updated`, whose instant is theirs.
    """

    def __init__(self, host: Host, request: bytes, listener: Listener) -> None:
        self._host = host
        self._clock = host.clock
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._is_fresh = True
        self._at = 0.0
        self._begin(request, listener)

    def _begin(self, request: bytes, listener: Listener) -> None:
        self._request = request
        self._listener = listener
        self._head = Head()
        self._head_bytes = 0
        self._has_begun = self._is_complete = self._may_be_kept = False
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def ask(self, request: bytes, listener: Listener) -> None:
        """On a connection that is open and idle."""
        assert self._transport is not None, "only who had an answer is kept"
        self._is_fresh = False
        self._begin(request, listener)
        self._at = self._clock()
        self._transport.write(request)

    async def finished(self) -> None:
        """Return when the listener has heard enough, or all there is. Raises what went wrong."""
        ended = self._ended
        try:
            await ended
        except BaseException:
            if self._ended is ended:  # else it is somebody else's already
                self.drop()
            raise
        if self._ended is ended and not self._is_complete:
            self._host.lets_end(self)

    @property
    def has_an_end(self) -> bool:
        """Of its answer, other than its own."""
        return self._head.tells_length

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def drop(self) -> None:
        self._host.loses(self)
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio's callbacks ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), "create_connection makes a transport of both ways"
        self._transport = transport
        self._host.gains(self)
        transport.write(self._request)

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint  # asyncio's own reads allocate a quarter of a megabyte for every token
        return self._host.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._at = self._clock()
        if self._is_complete:
            self.drop()  # nobody asked for more
            return
        was_enough = self._ended.done()
        if not self._has_begun:
            self._head_bytes += nbytes
        try:
            self._parser.feed_data(self._host.buffer[:nbytes])
        except httptools.HttpParserError as error:
            self._fail(self._wrong(error))
        except httptools.HttpParserUpgrade:
            self._fail(StreamBroke(FailureKind.MALFORMED, "it wants to speak another protocol"))
        if not self._has_begun and self._head_bytes > MOST_HEAD_BYTES:
            why = f"its head is longer than {MOST_HEAD_BYTES:,} bytes"
            self._fail(StreamBroke(FailureKind.MALFORMED, why))
        if self._is_complete:
            self._rest()
        elif was_enough:
            self.drop()  # one read is enough for the end of a body that nobody listens to

    def _rest(self) -> None:
        assert self._transport is not None, "what is read has come over it"
        # A server may answer before it has heard the request out.
        is_idle = self._may_be_kept and not self._transport.get_write_buffer_size()
        if not (is_idle and self._host.keeps(self)):
            self.drop()

    def connection_lost(self, exc: Exception | None) -> None:
        self._host.loses(self)
        if not (self._is_fresh or self._head_bytes) and self._clock() - self._at <= STALE_S:
            self._end(_Unread())
        elif not self._has_begun and exc is None:
            why = "the server closed the connection before it answered"
            self._end(ConnectionBroke(why))
        elif exc is not None or self._head.tells_length:
            why = f"the connection broke: {_reason(exc) if exc else 'closed before the answer was whole'}"
            self._end(ConnectionBroke(why))
        else:
            self._end(None)

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

    def on_message_begin(self) -> None:
        if self._is_complete:
            raise ConnectionBroke("a second answer to one request")

    def on_body(self, body: bytes) -> None:
        if not self._ended.done() and self._listener.hears(body, self._at):
            self._end(None)

    def on_message_complete(self) -> None:
        if self._has_begun and not self._is_complete:
            self._is_complete = True
            self._may_be_kept = self._parser.should_keep_alive()
            self._end(None)

    def _fail(self, error: Exception) -> None:
        self._may_be_kept = False
        self._end(error)

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
