"""What we answer, in the shapes of the OpenAI API.

    Piece, Piece, ...  --event-->  one SSE event for each output of the engine
    Answer             --whole-->  one JSON body

An event is sent for every output, even while its text is held back (half a character, the
beginning of a stop string): a client can time tokens by events. The first event carries the
role, the last one the finish reason. What surrounds the text is encoded once per request.
"""

from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import msgspec

from headrace.core.bill import Bill
from headrace.core.errors import BadInput, Busy, EngineDied, HeadraceError, UnknownModel
from headrace.net.wire import BodyTooLarge

DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class Piece:
    """The text of one engine output. Made once a token, so plain."""

    text: str
    finish_reason: str | None = None
    stop_reason: str | int | None = None


@dataclass(slots=True)
class Usage:
    """What a request has used up to now."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    bill: Bill | None = None

    def json(self, *, with_bill: bool) -> dict[str, Any]:
        usage: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }
        if with_bill and self.bill is not None:
            usage["headrace_bill"] = {cause.value: part for cause, part in self.bill.seconds().items()}
        return usage


@dataclass(frozen=True, slots=True)
class Envelope:
    """What all parts of one answer repeat."""

    id: str
    created: int
    model: str
    shows_bill: bool = False
    """Whether usage says where the time to first token went: only for those who asked."""

    def json(self, kind: str, choices: list[Any], usage: Usage | None = None) -> dict[str, Any]:
        body: dict[str, Any] = {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }
        if usage is not None:
            body["usage"] = usage.json(with_bill=self.shows_bill)
        return body


@dataclass(slots=True)
class ChatReply:
    """Answers of /v1/chat/completions."""

    envelope: Envelope
    _role_sent: bool = False
    _around: tuple[bytes, bytes] = field(init=False)

    def __post_init__(self) -> None:
        self._around = _cut_at_text(self.envelope.json("chat.completion.chunk", [_chunk_choice("")]))

    def event(self, piece: Piece) -> bytes:
        if self._role_sent and piece.finish_reason is None:
            before, after = self._around
            return before + _encode(piece.text) + after
        choice = _chunk_choice(piece.text, piece.finish_reason, piece.stop_reason)
        if not self._role_sent:
            choice["delta"] = {"role": "assistant", "content": piece.text}
            self._role_sent = True
        return as_event(self.envelope.json("chat.completion.chunk", [choice]))

    def usage_event(self, usage: Usage) -> bytes:
        return as_event(self.envelope.json("chat.completion.chunk", [], usage))

    def whole(self, text: str, last: Piece, usage: Usage) -> bytes:
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text},
            "logprobs": None,
            "finish_reason": last.finish_reason,
            "stop_reason": last.stop_reason,
        }
        return _encode(self.envelope.json("chat.completion", [choice], usage))


@dataclass(slots=True)
class CompletionReply:
    """Answers of /v1/completions."""

    envelope: Envelope
    _around: tuple[bytes, bytes] = field(init=False)

    def __post_init__(self) -> None:
        self._around = _cut_at_text(self.envelope.json("text_completion", [_text_choice("")]))

    def event(self, piece: Piece) -> bytes:
        if piece.finish_reason is None:
            before, after = self._around
            return before + _encode(piece.text) + after
        return as_event(self.envelope.json("text_completion", [_text_choice(piece.text, piece)]))

    def usage_event(self, usage: Usage) -> bytes:
        return as_event(self.envelope.json("text_completion", [], usage))

    def whole(self, text: str, last: Piece, usage: Usage) -> bytes:
        return _encode(self.envelope.json("text_completion", [_text_choice(text, last)], usage))


Reply = ChatReply | CompletionReply

_STATUS: tuple[tuple[type[HeadraceError], HTTPStatus, str], ...] = (
    (UnknownModel, HTTPStatus.NOT_FOUND, "NotFoundError"),
    (BodyTooLarge, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "RequestEntityTooLargeError"),
    (BadInput, HTTPStatus.BAD_REQUEST, "BadRequestError"),
    (Busy, HTTPStatus.SERVICE_UNAVAILABLE, "ServiceUnavailableError"),
    (EngineDied, HTTPStatus.SERVICE_UNAVAILABLE, "ServiceUnavailableError"),
)


def status_of(error: HeadraceError) -> tuple[HTTPStatus, str]:
    """The HTTP status of `error`, and its type in OpenAI's words."""
    for kind, status, name in _STATUS:
        if isinstance(error, kind):
            return status, name
    return HTTPStatus.INTERNAL_SERVER_ERROR, "InternalServerError"


def error_json(error: HeadraceError) -> dict[str, Any]:
    """`error` in OpenAI's shape, what to do next included in its message."""
    status, name = status_of(error)
    message = f"{error}; {error.hint}" if error.hint else str(error)
    return http_error_json(status, name, message, getattr(error, "param", None))


def http_error_json(status: int, name: str, message: str, param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": name, "param": param, "code": int(status)}}


def as_event(body: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + _encode(body) + b"\n\n"


_MARK = "\ufdd0"
"""A noncharacter: stands where the text will be, and occurs nowhere else in an envelope."""


def _cut_at_text(body: dict[str, Any]) -> tuple[bytes, bytes]:
    """The event around the text, which is the only empty string in `choices[0]`."""
    choice = body["choices"][0]
    if "delta" in choice:
        choice["delta"]["content"] = _MARK
    else:
        choice["text"] = _MARK
    before, _, after = as_event(body).rpartition(_encode(_MARK))
    return before, after


def _chunk_choice(
    text: str, finish_reason: str | None = None, stop_reason: str | int | None = None
) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "index": 0,
        "delta": {"content": text},
        "logprobs": None,
        "finish_reason": finish_reason,
    }
    if finish_reason is not None:
        choice["stop_reason"] = stop_reason
    return choice


def _text_choice(text: str, last: Piece | None = None) -> dict[str, Any]:
    return {
        "index": 0,
        "text": text,
        "logprobs": None,
        "finish_reason": last.finish_reason if last else None,
        "stop_reason": last.stop_reason if last else None,
    }
