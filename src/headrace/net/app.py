"""The routes: bytes in, bytes out.

    POST /v1/chat/completions, /v1/completions      GET /v1/models, /health, /ping, /version, /metrics

While an answer is made a watcher listens to the client's connection: when it closes, the
request leaves the engine, whether the answer is streamed or whole.
"""

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from headrace import __version__
from headrace.core.errors import Busy, HeadraceError
from headrace.net.front_end import ClientGone, FrontEnd, Generation
from headrace.net.gate import RETRY_AFTER_S, Gate
from headrace.net.replies import (
    DONE,
    ChatReply,
    CompletionReply,
    Envelope,
    Piece,
    Reply,
    as_event,
    error_json,
    http_error_json,
    status_of,
)
from headrace.net.wire import Asked, BodyTooLarge, read_chat, read_completion

BODY_BYTES_PER_TOKEN = 256
SMALLEST_BODY_LIMIT = 1 << 20
"""A body over `max_model_len` times the one, or this if that is less, cannot hold a prompt that fits."""

BILL_HEADER = "x-headrace-bill"
LONGEST_REQUEST_ID = 128
MOST_DISCARDED_BYTES = 1 << 26


@dataclass(frozen=True, slots=True)
class Dialect:
    """What differs between the two endpoints."""

    id_prefix: str
    read: Callable[[bytes], Asked]
    reply: Callable[[Envelope], Reply]


CHAT = Dialect("chatcmpl-", read_chat, ChatReply)
COMPLETION = Dialect("cmpl-", read_completion, CompletionReply)


class GenerateEndpoint:
    """One of the two endpoints that run the model; an ASGI application."""

    def __init__(self, front_end: FrontEnd, gate: Gate, dialect: Dialect) -> None:
        self._front_end = front_end
        self._gate = gate
        self._dialect = dialect
        self._most_bytes = max(
            SMALLEST_BODY_LIMIT, BODY_BYTES_PER_TOKEN * front_end.engine.settings.max_model_len
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrived_ns = time.monotonic_ns()
        try:
            with self._gate.enter():
                await self._answer(Headers(scope=scope), receive, send, arrived_ns)
        except ClientGone:
            return
        except HeadraceError as error:
            await error_response(error)(scope, receive, send)

    async def _answer(self, headers: Headers, receive: Receive, send: Send, arrived_ns: int) -> None:
        body = await read_body(headers, receive, self._most_bytes)
        asked = self._dialect.read(body)
        gone = asyncio.create_task(_until_gone(receive))
        try:
            token_ids = await self._front_end.tokenize(asked)
            if gone.done():
                raise ClientGone
            generation = self._front_end.begin(asked, token_ids, arrived_ns)
            gone.add_done_callback(lambda _: generation.abandon())
            await self._deliver(generation, asked, headers, send)
        finally:
            gone.cancel()

    async def _deliver(self, generation: Generation, asked: Asked, headers: Headers, send: Send) -> None:
        request_id = headers.get("x-request-id", "")[:LONGEST_REQUEST_ID]
        envelope = Envelope(
            id=self._dialect.id_prefix + (request_id or secrets.token_hex(16)),
            created=int(time.time()),
            model=asked.model or self._front_end.model_names[0],
            shows_bill=headers.get(BILL_HEADER) == "1",
        )
        reply = self._dialect.reply(envelope)
        echo = [(b"x-request-id", request_id.encode("latin-1"))] if request_id else []
        # Nothing is sent before the first token: until then the engine may refuse, with a status.
        first = await generation.next_piece()
        if asked.stream:
            await send(_head(b"text/event-stream; charset=utf-8", (b"cache-control", b"no-cache"), *echo))
            await _stream(generation, first, reply, asked, send)
        else:
            body = await _whole(generation, first, reply)
            await send(_head(b"application/json", (b"content-length", b"%d" % len(body)), *echo))
            await send(_body(body))


async def read_body(headers: Headers, receive: Receive, most_bytes: int) -> bytes:
    """The whole body. Raises `BodyTooLarge`, or `ClientGone` when it does not come to its end.

    What is too large is still read (up to a bound) and thrown away: a connection closed with
    unread bytes in it takes our answer along.
    """
    announced = int(headers.get("content-length", "0"))
    parts: list[bytes] = []
    size, more = 0, True
    while more and max(size, announced) <= MOST_DISCARDED_BYTES:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        size += len(part)
        if size <= most_bytes:
            parts.append(part)
        more = message.get("more_body", False)
    if more or size > most_bytes:
        raise BodyTooLarge(
            f"the body has more than {most_bytes} bytes, and no prompt that fits needs so many",
            "shorten the prompt",
        )
    return b"".join(parts)


async def _stream(generation: Generation, piece: Piece, reply: Reply, asked: Asked, send: Send) -> None:
    try:
        while piece.finish_reason is None:
            await send(_body(reply.event(piece), more=True))
            piece = await generation.next_piece()
        last = reply.event(piece)
        if asked.include_usage:
            last += reply.usage_event(generation.usage)
    except HeadraceError as error:
        last = as_event(error_json(error))
    await send(_body(last + DONE))


async def _whole(generation: Generation, piece: Piece, reply: Reply) -> bytes:
    texts = [piece.text]
    while piece.finish_reason is None:
        piece = await generation.next_piece()
        texts.append(piece.text)
    return reply.whole("".join(texts), piece, generation.usage)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _head(content_type: bytes, *headers: tuple[bytes, bytes]) -> Message:
    return {
        "type": "http.response.start",
        "status": 200,
        "headers": [(b"content-type", content_type), *headers],
    }


def _body(data: bytes, *, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


def make_app(front_end: FrontEnd, gate: Gate) -> Starlette:
    """All routes over one engine."""
    about = _About(front_end, gate)
    return Starlette(
        routes=[
            Route("/v1/chat/completions", GenerateEndpoint(front_end, gate, CHAT), methods=["POST"]),
            Route("/v1/completions", GenerateEndpoint(front_end, gate, COMPLETION), methods=["POST"]),
            Route("/v1/models", about.models),
            Route("/health", about.health),
            Route("/ping", about.health, methods=["GET", "POST"]),
            Route("/version", about.version),
            Route("/metrics", about.metrics),
        ],
        exception_handlers={HTTPException: _on_http_error, Exception: _on_bug},
    )


class _About:
    """What the server says about itself."""

    def __init__(self, front_end: FrontEnd, gate: Gate) -> None:
        self._front_end = front_end
        self._gate = gate
        self._started_at = int(time.time())

    async def health(self, _: HttpRequest) -> Response:
        if (died := self._front_end.engine.died) is not None:
            return error_response(died)
        if not self._gate.is_open:
            return error_response(Busy("the server is shutting down", RETRY_AFTER_S))
        return Response()

    async def models(self, _: HttpRequest) -> Response:
        names = self._front_end.model_names
        card = {
            "object": "model",
            "created": self._started_at,
            "owned_by": "headrace",
            "root": names[0],
            "parent": None,
            "max_model_len": self._front_end.engine.settings.max_model_len,
        }
        return _json({"object": "list", "data": [{"id": name, **card} for name in names]})

    async def version(self, _: HttpRequest) -> Response:
        return _json({"version": __version__})

    async def metrics(self, _: HttpRequest) -> Response:
        return Response(self._front_end.engine.metrics.exposition(), media_type=CONTENT_TYPE_LATEST)


def error_response(error: HeadraceError) -> Response:
    """`error` as an answer, with the time to wait where waiting helps."""
    headers = {"retry-after": f"{error.retry_after_s:.0f}"} if isinstance(error, Busy) else None
    return _json(error_json(error), status_of(error)[0], headers)


def _json(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), status, headers, "application/json")


async def _on_http_error(request: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for nothing else"
    name = {404: "NotFoundError", 405: "MethodNotAllowedError"}.get(error.status_code, "BadRequestError")
    headers = dict(error.headers) if error.headers else None
    message = error.detail
    if error.status_code == 404:
        paths = ", ".join(route.path for route in request.app.routes)
        message = f"there is no {request.url.path} here; there are {paths}"
    elif error.status_code == 405 and headers:
        message = f"{request.url.path} does not take {request.method}; it takes {headers['Allow']}"
    return _json(http_error_json(error.status_code, name, message), error.status_code, headers)


async def _on_bug(_: HttpRequest, error: Exception) -> Response:
    message = f"the server has a bug: {type(error).__name__}"
    return _json(http_error_json(500, "InternalServerError", message), 500)
