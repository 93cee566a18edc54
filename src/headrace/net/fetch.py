"""Small questions to a server, beside the load: what does it serve, which version, what do its metrics say?

    address -> fetch -> the body of an answer that is 200            or raises StreamBroke

Also what every request of ours says of itself, and what a refusal says in one line.
"""

import asyncio
import time
from urllib.parse import urlsplit, urlunsplit

from headrace import __version__
from headrace.core.errors import BadInput
from headrace.core.timeline import FailureKind
from headrace.net.exchange import Head, Host, exchange
from headrace.net.transcript import StreamBroke, error_message, shorten

_MOST_BODY_BYTES = 1 << 26

CLOSES = b"Connection: close\r\n"
"""Of a request whose connection is not kept."""
BODY_FIELDS = b"Content-Type: application/json\r\nContent-Length: "
"""After the other fields of a request; what follows is the number, a blank line and the body."""


async def fetch(
    address: str, *, timeout_s: float, api_key: str | None = None, body: bytes | None = None
) -> bytes:
    """The body of an answer that is 200; `body` is JSON to be posted. Raises `StreamBroke`."""
    whole = _Whole()
    host = Host(address, time.monotonic)
    head = request_head("GET" if body is None else "POST", address, api_key) + CLOSES
    rest = b"\r\n" if body is None else BODY_FIELDS + b"%d\r\n\r\n%b" % (len(body), body)
    try:
        async with asyncio.timeout(timeout_s):
            await host.look_up()
            await exchange(host, head + rest, whole)
    except TimeoutError:
        why = f"did not answer within {timeout_s:g} s"
        raise StreamBroke(FailureKind.TIMED_OUT, why) from None
    if whole.head.status != 200:
        raise StreamBroke(FailureKind.REFUSED, refusal(whole.head, bytes(whole.body)))
    return bytes(whole.body)


class _Whole:
    """Gathers an answer that is not a stream."""

    def __init__(self) -> None:
        self.head = Head()
        self.body = bytearray()

    def begins(self, head: Head) -> None:
        self.head = head

    def hears(self, body: bytes, _at: float, /) -> bool:
        self.body += body
        if len(self.body) > _MOST_BODY_BYTES:
            why = f"its answer is longer than {_MOST_BODY_BYTES:,} bytes"
            raise StreamBroke(FailureKind.MALFORMED, why)
        return False


def request_head(method: str, address: str, api_key: str | None) -> bytes:
    """All fields but the body's, each line ended. Raises `BadInput` for a key that would end one early."""
    parts = urlsplit(address)
    path = urlunsplit(("", "", parts.path or "/", parts.query, ""))
    fields = [
        f"{method} {path} HTTP/1.1",
        f"Host: {parts.netloc}",
        f"User-Agent: headrace/{__version__}",
        "Accept: */*",
        "Accept-Encoding: identity",
        "X-Headrace-Bill: 1",
    ]
    if api_key:
        if not (api_key.isascii() and api_key.isprintable()):
            raise BadInput(
                "the API key has characters that no key has", "was it read from a file with its newline?"
            )
        fields.append(f"Authorization: Bearer {api_key}")
    return "".join(f"{line}\r\n" for line in fields).encode()


def refusal(head: Head, body: bytes) -> str:
    status = f"{head.status} {head.reason}".strip()
    if 300 <= head.status < 400:
        return f"{status}: redirects to {shorten(head.fields.get('location', 'nowhere'))}"
    said = error_message(body)
    return f"{status}: {said}" if said else status
