"""What every HTTP request passes before a route sees it: its key, and bounds on its body.

bytes -> Patient (net/connection.py) -> Door (one length, key, body within a bound) -> routes
"""

import asyncio
import contextlib
import hashlib
import secrets
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.core.errors import BadInput, HeadraceError, Unauthorized
from headrace.net.fields import BodyTooSlow
from headrace.net.responses import error_response

BODY_WITHIN_S = 60.0
"""From the head to the last byte of the body: a megabyte from 17 kB/s on."""


MOST_DISCARDED_BYTES = 1 << 20

OPEN = frozenset({"/health", "/ping", "/load", "/metrics", "/version"})
"""What is about the server needs no key. (vLLM guards only what begins with /v1: /tokenize works for all.)"""


_TWO_LENGTHS = BadInput(
    "Transfer-Encoding beside Content-Length, or in HTTP/1.0: the body has no certain end",
    "send one of the two",
)


class Keys:
    """The keys that open the door. Compared in constant time, by their hashes: lengths do not show."""

    def __init__(self, keys: Sequence[str]) -> None:
        # HTTP does not say which bytes a letter is: curl sends UTF-8, many clients latin-1.
        self._hashes = [_hash(each) for key in keys for each in _encodings(key)]

    def fit(self, headers: Headers) -> bool:
        """Whether `Authorization: Bearer KEY` names one of them, or there are none."""
        scheme, _, key = headers.get("authorization", "").encode("latin-1").partition(b" ")
        given, known = _hash(key.strip()), False
        for each in self._hashes:
            known |= secrets.compare_digest(given, each)
        return not self._hashes or (known and scheme.lower() == b"bearer")


class Door:
    """An ASGI application around another."""

    body_within_s = BODY_WITHIN_S

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._keys = Keys(keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "there are neither websockets nor a lifespan"
        receive = _in_time(receive, self.body_within_s)
        headers = Headers(scope=scope)
        is_guarded = scope["path"] not in OPEN and scope["method"] != "OPTIONS"
        if _has_two_lengths(scope, headers):
            await _closing(_TWO_LENGTHS)(scope, receive, send)
        elif is_guarded and not self._keys.fit(headers):
            await _discard(receive)
            refusal = Unauthorized("no valid API key", "send it as `Authorization: Bearer KEY`")
            await error_response(refusal)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


async def _discard(receive: Receive) -> None:
    """Reads a body, up to a bound: a connection closed on unread bytes takes our answer along."""
    size, more = 0, True
    with contextlib.suppress(BodyTooSlow):
        while more and size < MOST_DISCARDED_BYTES:
            message = await receive()
            size += len(message.get("body", b""))
            more = message.get("more_body", False)


def _closing(error: HeadraceError) -> Response:
    response = error_response(error)
    response.headers["connection"] = "close"
    return response


def _has_two_lengths(scope: Scope, headers: Headers) -> bool:
    """A proxy may have gone by the other one; what follows could be somebody else's (RFC 9112, 6.1)."""
    is_chunked = "transfer-encoding" in headers
    return is_chunked and ("content-length" in headers or scope["http_version"] == "1.0")


def _in_time(receive: Receive, within_s: float) -> Receive:
    """`receive`, but it raises `BodyTooSlow` when the body takes longer to come."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    is_whole = False

    async def receive_in_time() -> Message:
        nonlocal is_whole
        if is_whole:
            return await receive()
        try:
            async with asyncio.timeout_at(deadline):
                message = await receive()
        except TimeoutError:
            raise BodyTooSlow(
                f"the body did not come to its end within {within_s:g} s", "send all of Content-Length"
            ) from None
        is_whole = not message.get("more_body", False)
        return message

    return receive_in_time


def _encodings(key: str) -> set[bytes]:
    encodings = {key.encode(errors="surrogateescape")}
    with contextlib.suppress(UnicodeEncodeError):
        encodings.add(key.encode("latin-1"))
    return encodings


def _hash(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
