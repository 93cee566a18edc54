"""One client's connection: uvicorn's, with bounds on what a client may leave undone, and our errors.

no whole head in time          closed (uvicorn alone waits for ever)
what is no HTTP                an error in OpenAI's shape (uvicorn: a line of text)
sent ahead, then gone          heard at once (uvicorn stops listening until the answer is out)
an answer that is not read     cut off, on a Unix socket too
a body in tiny chunks          taken in a few at a time, and refused where it is next to nothing but framing
a whole address to ask for     its path (RFC 9112, 3.2.2; uvicorn: 404)
"""

import asyncio
import re
import sys
from http import HTTPStatus
from typing import Any, cast

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from headrace.net.replies import http_error_json

HEAD_WITHIN_S = 10.0
"""From the connection, or from the answer before, to the whole head of a request."""

READ_WITHIN_S = 60.0
"""A client that takes nothing of its answer for so long is cut off."""

MOST_AHEAD_BYTES = 1 << 16
"""What a client may send beyond the request that is being answered before it is made to wait."""

CHUNKS_AT_ONCE = 64
"""Of a body; then everybody else has a turn. h11 takes 12 to 18 µs for a chunk, however small."""

MOST_SMALL_CHUNKS = 1 << 14
"""Of one body, beside one for every `ENOUGH_BYTES`: some 0.3 s of work in all."""

ENOUGH_BYTES = 64

_ABSOLUTE = re.compile(rb"https?://(?:[^/?#@]*@)?([^/?#]*)", re.IGNORECASE)


class _Connection(h11.Connection):
    """h11's, but it asks for a path, counts a body's chunks, and those of an answer cost next to nothing."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER)
        self._sends_chunks = False
        self._chunks = 0  # of the body that comes
        self._chunk_bytes = 0
        self._chunks_left = CHUNKS_AT_ONCE

    @property
    def has_more(self) -> bool:
        """Whether `next_event` said that it needs data only to end a turn."""
        return not self._chunks_left

    def begin_turn(self) -> None:
        self._chunks_left = CHUNKS_AT_ONCE

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        if self.has_more:
            return h11.NEED_DATA
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._chunks = self._chunk_bytes = 0
            return _of_path(event)
        if isinstance(event, h11.Data):
            self._count(event)
        return event

    def _count(self, data: h11.Data) -> None:
        self._chunks += data.chunk_end
        self._chunks_left -= data.chunk_end
        self._chunk_bytes += len(data.data)
        if self._chunks > MOST_SMALL_CHUNKS + self._chunk_bytes // ENOUGH_BYTES:
            raise h11.RemoteProtocolError(
                f"a body of {self._chunks:,} chunks that hold {self._chunk_bytes:,} bytes; send larger ones",
                HTTPStatus.BAD_REQUEST,
            )

    def send(self, event: h11.Event) -> Any:
        """h11 looks at its whole state for every chunk, a tenth of what a token of a stream costs."""
        if isinstance(event, h11.Data) and self._sends_chunks:
            return b"%x\r\n%b\r\n" % (len(event.data), event.data) if event.data else b""
        sent = super().send(event)
        if isinstance(event, h11.Response):
            self._sends_chunks = sent is not None and b"\r\ntransfer-encoding: chunked\r\n" in sent.lower()
        return sent


def _of_path(request: h11.Request) -> h11.Request:
    """The host of a whole address goes before the header's."""
    found = _ABSOLUTE.match(request.target)
    if found is None:
        return request
    rest = request.target[found.end() :]
    others = [(name, value) for name, value in request.headers if name != b"host"]
    return h11.Request(
        method=request.method,
        target=rest if rest.startswith(b"/") else b"/" + rest,
        headers=[(b"host", found[1]), *others],
        http_version=request.http_version,
    )


class Patient(H11Protocol):
    """uvicorn's connection, which is patient with clients, within bounds."""

    head_within_s = HEAD_WITHIN_S
    read_within_s = READ_WITHIN_S

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn = _Connection()
        self._overdue: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def handle_events(self) -> None:
        """Of what has come, as much as others can wait for; the rest in the loop's next turns."""
        self.conn.begin_turn()
        super().handle_events()
        if self._is_ahead():
            self.flow.resume_reading()
        if self.conn.has_more and not self.transport.is_closing():
            self.transport.pause_reading()
            self.loop.call_soon(self._go_on)
        self._watch()

    def _go_on(self) -> None:
        self.handle_events()
        if not (self.conn.has_more or self.flow.read_paused or self.transport.is_closing()):
            self.transport.resume_reading()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Called while h11's error is handled: it says what is wrong, and with which status."""
        error = sys.exception()
        status = HTTPStatus(error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400)
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:  # else another answer has begun
            problem = str(error or msg).partition(": bytearray")[0]  # after it, bytes as Python writes them
            said = http_error_json(status, "BadRequestError", f"this cannot be taken as HTTP: {problem}")
            self._say(status, msgspec.json.encode(said))
        if (cycle := self._cycle) is not None and not cycle.response_complete:
            cycle.disconnected = True  # a route that does not wait for the body would answer as well
        self.transport.close()

    @property
    def _cycle(self) -> RequestResponseCycle | None:
        return cast("RequestResponseCycle | None", self.cycle)

    def _say(self, status: HTTPStatus, body: bytes) -> None:
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        head = h11.Response(status_code=status, headers=headers, reason=status.phrase.encode())
        for event in (head, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")

    def _is_ahead(self) -> bool:
        """Whether it has sent (not too much of) its next request while this one is answered."""
        waits = self.conn.their_state is h11.DONE and self.flow.read_paused
        return waits and len(self.conn.trailing_data[0]) < MOST_AHEAD_BYTES

    def _watch(self) -> None:
        """Between requests the clock runs from the first moment on; more bytes do not set it back."""
        cycle = self._cycle
        if cycle is not None and not cycle.response_complete:
            self._stop_watching()
        elif self._overdue is None:
            self._overdue = self.loop.call_later(self.head_within_s, self.transport.abort)

    def _stop_watching(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None

    def _watch_reader(self) -> None:
        held_bytes = self.transport.get_write_buffer_size()
        self._unread = self.loop.call_later(self.read_within_s, self._has_read, held_bytes)

    def _has_read(self, held_bytes: int) -> None:
        """Nothing is added while writing is paused: less is held, or nobody reads."""
        if self.transport.get_write_buffer_size() < held_bytes:
            self._watch_reader()
        else:
            self.transport.abort()
