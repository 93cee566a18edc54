"""What every HTTP request passes before a route sees it: its key, and a bound on its body's arrival.

bytes -> Patient (uvicorn: a head within a bound) -> Door (key, body within a bound) -> routes
"""

import asyncio
import contextlib
import hashlib
import secrets
from collections.abc import Sequence
from typing import Any, cast

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from headrace.core.errors import Unauthorized
from headrace.net.fields import BodyTooSlow
from headrace.net.responses import error_response

HEAD_WITHIN_S = 10.0
"""From the connection, or from the answer before, to the whole head of a request."""

BODY_WITHIN_S = 60.0
"""From the head to the last byte of the body: a megabyte from 17 kB/s on."""


MOST_DISCARDED_BYTES = 1 << 20

OPEN = frozenset({"/health", "/ping", "/load", "/metrics", "/version"})
"""What is about the server needs no key. (vLLM guards only what begins with /v1: /tokenize works for all.)"""


class Keys:
    """The keys that open the door. Compared in constant time, by their hashes: lengths do not show."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._hashes = [_hash(key) for key in keys]

    def fit(self, headers: Headers) -> bool:
        """Whether `Authorization: Bearer KEY` names one of them, or there are none."""
        scheme, _, key = headers.get("authorization", "").partition(" ")
        given, known = _hash(key.strip()), False
        for each in self._hashes:
            known |= secrets.compare_digest(given, each)
        return not self._hashes or (known and scheme.lower() == "bearer")


class Door:
    """An ASGI application around another."""

    body_within_s = BODY_WITHIN_S

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._keys = Keys(keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "there are neither websockets nor a lifespan"
        receive = _in_time(receive, self.body_within_s)
        is_guarded = scope["path"] not in OPEN and scope["method"] != "OPTIONS"
        if is_guarded and not self._keys.fit(Headers(scope=scope)):
            await self._refuse(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reads the body first, up to a bound: a connection closed on unread bytes takes our answer along."""
        size, more = 0, True
        with contextlib.suppress(BodyTooSlow):
            while more and size < MOST_DISCARDED_BYTES:
                message = await receive()
                size += len(message.get("body", b""))
                more = message.get("more_body", False)
        refusal = Unauthorized("no valid API key", "send it as `Authorization: Bearer KEY`")
        await error_response(refusal)(scope, receive, send)


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


class Patient(H11Protocol):
    """uvicorn's connection; one that sends no whole head in time is closed. uvicorn alone waits for ever."""

    head_within_s = HEAD_WITHIN_S

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._overdue: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Between requests the clock runs from the first moment on; more bytes do not set it back."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is not None and not cycle.response_complete:
            self._stop_watching()
        elif self._overdue is None:
            self._overdue = self.loop.call_later(self.head_within_s, self.transport.abort)

    def _stop_watching(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()
