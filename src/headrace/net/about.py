"""What the server says about itself, its model and its tokenizer."""

import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.datastructures import Headers
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headrace import __version__
from headrace.core.errors import Busy, HeadraceError
from headrace.core.ports import Chat, Tokenizer
from headrace.net.bodies import DetokenizeBody, TokenizeBody, TokenizeChatBody
from headrace.net.fields import BadField, decode, has_field, within_vocabulary
from headrace.net.front_end import FrontEnd
from headrace.net.gate import RETRY_AFTER_S, Gate
from headrace.net.generation import ClientGone, unhurried
from headrace.net.prompt_fields import Prompt, read_chat_prompt
from headrace.net.reading import most_body_bytes, read_body
from headrace.net.responses import error_response, json_response
from headrace.net.shapes import (
    DetokenizeAnswer,
    LoadAnswer,
    ModelCard,
    ModelList,
    TokenizeAnswer,
    VersionAnswer,
)


class About:
    """Endpoints that take no body."""

    def __init__(self, front_end: FrontEnd, gate: Gate) -> None:
        self._front_end = front_end
        self._gate = gate
        self._started_at = int(time.time())

    async def health(self, _: HttpRequest) -> Response:
        if (problem := self._front_end.engine.what_is_wrong()) is not None:
            return error_response(problem)
        if not self._gate.is_open:
            return error_response(Busy("the server is shutting down", RETRY_AFTER_S))
        return Response()

    async def models(self, _: HttpRequest) -> Response:
        names = self._front_end.model_names
        length = self._front_end.engine.settings.max_model_len
        return json_response(
            ModelList([ModelCard(name, self._started_at, names[0], length) for name in names])
        )

    async def version(self, _: HttpRequest) -> Response:
        return json_response(VersionAnswer(__version__))

    async def load(self, _: HttpRequest) -> Response:
        return json_response(LoadAnswer(self._gate.inside))

    async def metrics(self, _: HttpRequest) -> Response:
        return Response(self._front_end.engine.metrics.exposition(), media_type=CONTENT_TYPE_LATEST)


class TokensEndpoint:
    """/tokenize or /detokenize; an ASGI application."""

    def __init__(self, front_end: FrontEnd, answer: Callable[[FrontEnd, bytes], Awaitable[Any]]) -> None:
        self._front_end = front_end
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        most_bytes = most_body_bytes(self._front_end.engine.settings.max_model_len)
        try:
            raw = await read_body(Headers(scope=scope), receive, most_bytes)
            response = json_response(await self._answer(self._front_end, raw))
        except ClientGone:
            return
        except HeadraceError as error:
            response = error_response(error)
        await response(scope, receive, send)


async def tokenize(front_end: FrontEnd, raw: bytes) -> TokenizeAnswer:
    """A text, or a conversation, in tokens. Raises `BadInput`."""
    body, prompt = await front_end.read(raw, _read_tokenize)
    front_end.check_model(body.model or None)
    special = (
        bool(body.add_special_tokens) if isinstance(prompt, Chat) else body.add_special_tokens is not False
    )
    token_ids = await front_end.token_ids(prompt, add_special_tokens=special)
    names: list[str] | None = None
    if body.return_token_strs:
        tokenizer = front_end.tokenizer
        names = await unhurried(len(token_ids), lambda: [_name(tokenizer, each) for each in token_ids])
    return TokenizeAnswer(
        count=len(token_ids),
        max_model_len=front_end.engine.settings.max_model_len,
        tokens=list(token_ids),
        token_strs=names,
    )


async def detokenize(front_end: FrontEnd, raw: bytes) -> DetokenizeAnswer:
    """The text of tokens, special ones included. Raises `BadInput`."""
    body = await front_end.read(raw, partial(_read_detokenize, front_end.tokenizer.vocab_size))
    front_end.check_model(body.model or None)
    return DetokenizeAnswer(await front_end.text_of(body.tokens))


def _read_tokenize(raw: bytes) -> tuple[TokenizeBody | TokenizeChatBody, Prompt]:
    is_chat = has_field(raw, "messages")
    if is_chat and has_field(raw, "prompt"):
        raise BadField("prompt", "there is a prompt, and there are messages", "send one of them")
    if is_chat:
        chat = decode(TokenizeChatBody, raw)
        return chat, read_chat_prompt(chat)
    body = decode(TokenizeBody, raw)
    return body, body.prompt


def _read_detokenize(vocab_size: int, raw: bytes) -> DetokenizeBody:
    body = decode(DetokenizeBody, raw)
    within_vocabulary("tokens", body.tokens, vocab_size)
    return body


def _name(tokenizer: Tokenizer, token_id: int) -> str:
    return tokenizer.token_bytes(token_id).decode(errors="replace")
