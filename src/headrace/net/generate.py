"""The endpoints that run the model: bytes in, answers out, whole or streamed.

While an answer is made a watcher listens to the client's connection: when it closes, all of its
requests leave the engine.
"""

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from headrace.core.errors import HeadraceError
from headrace.net.front_end import FrontEnd
from headrace.net.gate import Gate
from headrace.net.generation import Answer, ClientGone, Pieces, unhurried
from headrace.net.reading import most_body_bytes, read_body
from headrace.net.replies import (
    DONE,
    ChatReply,
    Collected,
    CompletionReply,
    Envelope,
    Piece,
    Reply,
    as_event,
    error_json,
)
from headrace.net.responses import error_response
from headrace.net.wire import LONGEST_REQUEST_ID, Asked, Delivery, read_chat, read_completion

BILL_HEADER = "x-headrace-bill"


@dataclass(frozen=True, slots=True)
class Dialect:
    """What differs between the two endpoints."""

    id_prefix: str
    read: Callable[[bytes], Asked]
    reply: Callable[[Envelope, Delivery], Reply]


CHAT = Dialect("chatcmpl-", read_chat, ChatReply)
COMPLETION = Dialect("cmpl-", read_completion, CompletionReply)


class GenerateEndpoint:
    """One of the two endpoints that run the model; an ASGI application."""

    def __init__(self, front_end: FrontEnd, gate: Gate, dialect: Dialect) -> None:
        self._front_end = front_end
        self._gate = gate
        self._dialect = dialect
        self._most_bytes = most_body_bytes(front_end.engine.settings.max_model_len)

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
        asked = await self._front_end.take_in(body, self._dialect.read)
        gone = asyncio.create_task(_until_gone(receive))
        try:
            told = await self._front_end.tokenize(asked)
            if gone.done():
                raise ClientGone
            answer = await self._front_end.begin(asked, told, arrived_ns)
            gone.add_done_callback(lambda _: answer.abandon())
            await self._deliver(answer, asked, headers, send)
        finally:
            gone.cancel()  # and with it, whatever has not ended leaves the engine

    async def _deliver(self, answer: Answer, asked: Asked, headers: Headers, send: Send) -> None:
        sent_id = headers.get("x-request-id", "")[:LONGEST_REQUEST_ID]
        request_id = sent_id or asked.request_id or secrets.token_hex(16)
        envelope = Envelope(
            id=self._dialect.id_prefix + request_id,
            created=int(time.time()),
            model=asked.model or self._front_end.model_names[0],
            shows_bill=headers.get(BILL_HEADER) == "1",
        )
        reply = self._dialect.reply(envelope, asked.delivery)
        own = (b"x-request-id", _as_header(request_id))
        # Nothing is sent before the first token: until then the engine may refuse, with a status.
        first = await answer.news()
        if asked.delivery.stream:
            await send(_head(b"text/event-stream; charset=utf-8", (b"cache-control", b"no-cache"), own))
            await _stream(answer, first, reply, asked.delivery, send)
        else:
            body = await _whole(answer, first, reply)
            await send(_head(b"application/json", (b"content-length", b"%d" % len(body)), own))
            await send(_body(body))


async def _stream(answer: Answer, news: Pieces, reply: Reply, delivery: Delivery, send: Send) -> None:
    try:
        while True:
            named = sum(len(piece.logprobs or ()) for _, piece in news)
            events = await unhurried(named, partial(_events, answer, news, reply))
            if answer.is_over:
                break
            await send(_body(events, more=True))
            news = await answer.news()
        if delivery.include_usage:
            events += reply.usage_event(answer.usage)
        events += DONE
    except HeadraceError as error:  # no [DONE]: nobody may take half an answer for a whole one
        events = as_event(error_json(error))
    await send(_body(events))


def _events(answer: Answer, news: Pieces, reply: Reply) -> bytes:
    return b"".join(reply.event(index, piece, answer.usage_of(index)) for index, piece in news)


async def _whole(answer: Answer, news: Pieces, reply: Reply) -> bytes:
    pieces: list[list[Piece]] = [[] for _ in range(answer.size)]
    while True:
        for index, piece in news:
            pieces[index].append(piece)
        if answer.is_over:
            named = sum(_named(piece) for each in pieces for piece in each)
            return await unhurried(
                named, lambda: reply.whole([Collected.of(each) for each in pieces], answer.usage)
            )
        news = await answer.news()


def _named(piece: Piece) -> int:
    """How many tokens have names in it."""
    of_prompt = piece.prompt.logprobs if piece.prompt is not None else None
    return len(piece.logprobs or ()) + len(of_prompt or ())


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _as_header(text: str) -> bytes:
    """What of a body's text can stand in a header; of a header's, all of it."""
    return "".join(character for character in text if character.isprintable()).encode("latin-1", "replace")


def _head(content_type: bytes, *headers: tuple[bytes, bytes]) -> Message:
    return {
        "type": "http.response.start",
        "status": 200,
        "headers": [(b"content-type", content_type), *headers],
    }


def _body(data: bytes, *, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}
