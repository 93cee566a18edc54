"""Server-sent events, as a client reads them: bytes in whatever pieces the network cuts, events out.

    bytes -> EventStream.push -> [data of one event, ...]

Follows the WHATWG rules: lines end in LF, CR or CRLF; several `data:` lines make one event; a
blank line ends it; comments and other fields are passed over; what is unfinished at the end of
the stream is no event. Knows nothing of JSON.
"""

import re

from headrace.core.errors import HeadraceError

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"

MOST_EVENT_BYTES = 1 << 20
"""A server that never ends a line must not fill our memory."""


class EventTooLong(HeadraceError):
    """One event has grown past `MOST_EVENT_BYTES`."""


class EventStream:
    """The unfinished rest between two reads: a line, and the data lines of an event."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._data: list[bytes] = []
        self._size = 0
        self._after_cr = False  # the last read ended in CR: a LF now belongs to it
        self._at_start = True
        self._is_between_events = False

    def push(self, received: bytes) -> list[bytes]:
        """The data of each event that `received` completes."""
        if (
            self._is_between_events
            and len(received) < MOST_EVENT_BYTES
            and (whole := _whole_events(received))
        ):
            return whole
        if self._after_cr and received.startswith(b"\n"):
            received = received[1:]
            self._after_cr = False
        if not received:
            return []
        self._after_cr = received.endswith(b"\r")
        *ends, rest = _LINE_END.split(received)
        events = list[bytes]()
        for end in ends:
            self._grow(end)
            event = self._take_line()
            if event is not None:
                events.append(event)
        self._grow(rest)
        self._is_between_events = not (self._at_start or self._data or self._after_cr or self._size)
        return events

    def _grow(self, part: bytes) -> None:
        self._line += part
        self._size += len(part)
        if self._size > MOST_EVENT_BYTES:
            raise EventTooLong(f"one event of the stream is larger than {MOST_EVENT_BYTES} bytes")

    def _take_line(self) -> bytes | None:
        """Close the line; the event's data when it was the blank line that ends one."""
        line = bytes(self._line)
        self._line.clear()
        if self._at_start:
            line = line.removeprefix(_BOM)
            self._at_start = False
        if not line:
            data, self._data, self._size = self._data, [], 0
            return b"\n".join(data) if data else None
        if line == b"data" or line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
        elif not self._data:
            self._size = 0  # comments between events may go on for as long as a server likes
        return None


def _whole_events(received: bytes) -> list[bytes] | None:
    """What nearly every read of a stream gives: whole events of one `data:` line each. None for all else."""
    if not (received.startswith(b"data: ") and received.endswith(b"\n\n")) or b"\r" in received:
        return None
    events = received[6:-2].split(b"\n\ndata: ")
    return events if received.count(b"\n") == 2 * len(events) else None
