"""Counts what passes the door: an ASGI application around all others, refusals included.

Labels come from what we know, never from the client's words: anybody could fill the memory with them.
"""

import time
from collections.abc import Collection

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.net.metrics.of_http import Exchange, HttpSeries

NOT_COUNTED = frozenset({"/metrics", "/health", "/load", "/ping", "/version"})
"""As in vLLM: probes and scrapes would drown the rest."""

NO_ROUTE = "none"
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"})
OTHER_METHOD = "other"


class Meter:
    def __init__(self, app: ASGIApp, paths: Collection[str], series: HttpSeries) -> None:
        self._app = app
        self._paths = frozenset(paths)
        self._series = series

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        if path in NOT_COUNTED:
            await self._app(scope, receive, send)
            return
        exchange = Exchange(
            path if path in self._paths else NO_ROUTE, method if method in METHODS else OTHER_METHOD
        )

        async def count_received() -> Message:
            message = await receive()
            exchange.request_bytes += len(message.get("body", b""))
            return message

        async def count_sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
            else:
                exchange.response_bytes += len(message.get("body", b""))
            await send(message)

        began_at = time.monotonic()
        try:
            await self._app(scope, count_received, count_sent)
        finally:
            self._series.on_over(exchange, time.monotonic() - began_at)
