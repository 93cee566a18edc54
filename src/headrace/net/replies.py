"""What we answer, in the shapes of the OpenAI API.

    (choice, Piece), ... --event-->  one SSE event for each output of the engine
    Collected, ...       --whole-->  one JSON body

An event is sent for every output, even while its text is held back (half a character, the
beginning of a stop string, of a tool call): a client can time tokens by events. The
first event of a choice carries the role, its last one the finish reason. What surrounds the text of a
plain event is encoded once per request and choice.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET

from headrace.core.bill import Bill
from headrace.core.errors import (
    BadInput,
    Busy,
    EngineDied,
    HeadraceError,
    TimedOut,
    Unauthorized,
    UnknownModel,
)
from headrace.net.fields import BodyTooLarge, BodyTooSlow
from headrace.net.logprobs import NamedToken, chat_logprobs, completion_logprobs
from headrace.net.shapes import (
    AnswerMessage,
    ChatChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChunkChoice,
    Completion,
    CompletionChunk,
    Delta,
    ErrorBody,
    ErrorInfo,
    FunctionCall,
    FunctionDelta,
    PromptLogprobs,
    PromptTokensDetails,
    TextChoice,
    TextChunkChoice,
    ToolCall,
    ToolCallDelta,
    UsageInfo,
)
from headrace.net.tool_calls import CallFinder, CallPart, Found, call_finder
from headrace.net.tool_fields import ToolChoice
from headrace.net.wire import Delivery

DONE = b"data: [DONE]\n\n"

_TextChoice = TypeVar("_TextChoice", TextChunkChoice, TextChoice)

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class ToldPrompt:
    """What those who asked are told of a prompt."""

    token_ids: list[int] | None = None
    logprobs: PromptLogprobs | None = None
    text: str | None = None
    """As the chat template wrote it."""


@dataclass(slots=True)
class Piece:
    """The text of one engine output. Made once a token, so plain."""

    text: str
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    logprobs: list[NamedToken] | None = None
    token_ids: list[int] | None = None
    prompt: ToldPrompt | None = None
    """Only in the first of a choice."""

    def add(self, later: "Piece") -> None:
        """`later` comes right after it, in the same event."""
        self.text += later.text
        self.finish_reason, self.stop_reason = later.finish_reason, later.stop_reason
        if self.logprobs is not None and later.logprobs is not None:
            self.logprobs += later.logprobs
        if self.token_ids is not None and later.token_ids is not None:
            self.token_ids += later.token_ids

    @property
    def is_plain(self) -> bool:
        """Nothing but text, somewhere in the middle."""
        return (
            self.finish_reason is None
            and self.logprobs is None
            and self.token_ids is None
            and self.prompt is None
        )


@dataclass(slots=True)
class Collected:
    """A whole answer, from its pieces."""

    text: str = ""
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    logprobs: list[NamedToken] | None = None
    token_ids: list[int] | None = None
    prompt: ToldPrompt = ToldPrompt()

    @classmethod
    def of(cls, pieces: Sequence[Piece]) -> "Collected":
        last = pieces[-1]
        named = [token for piece in pieces for token in piece.logprobs or ()]
        ids = [token_id for piece in pieces for token_id in piece.token_ids or ()]
        return cls(
            "".join(piece.text for piece in pieces),
            last.finish_reason,
            last.stop_reason,
            logprobs=None if last.logprobs is None else named,
            token_ids=None if last.token_ids is None else ids,
            prompt=pieces[0].prompt or ToldPrompt(),
        )


@dataclass(slots=True)
class Usage:
    """What a request has used up to now."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    bill: Bill | None = None

    def info(self, *, with_bill: bool = False) -> UsageInfo:
        bill = self.bill.seconds() if with_bill and self.bill is not None else None
        return UsageInfo(
            prompt_tokens=self.prompt_tokens,
            total_tokens=self.prompt_tokens + self.completion_tokens,
            completion_tokens=self.completion_tokens,
            prompt_tokens_details=PromptTokensDetails(self.cached_tokens),
            headrace_bill=UNSET if bill is None else {cause.value: part for cause, part in bill.items()},
        )


@dataclass(frozen=True, slots=True)
class Envelope:
    """What all parts of one answer repeat."""

    id: str
    created: int
    model: str
    shows_bill: bool = False
    """Whether usage says where the time to first token went: only for those who asked."""

    @property
    def fields(self) -> dict[str, Any]:
        return {"id": self.id, "created": self.created, "model": self.model}


@dataclass(slots=True)
class _Turn:
    """One choice of a chat, as far as it has been told."""

    finder: CallFinder | None
    called: bool = False
    around: tuple[bytes, bytes] | None = None


class ChatReply:
    """Answers of /v1/chat/completions."""

    def __init__(self, envelope: Envelope, delivery: Delivery) -> None:
        self._envelope = envelope
        self._delivery = delivery
        self._turns: dict[int, _Turn] = {}

    def event(self, index: int, piece: Piece, usage: Usage) -> bytes:
        """`usage`: of this choice, up to now."""
        turn = self._turn(index)
        is_plain = piece.is_plain and turn.finder is None and not self._delivery.continuous_usage_stats
        if is_plain:
            turn.around = turn.around or _around(self._chunk([ChunkChoice(index, Delta(content=_MARK))]))
            return turn.around[0] + _encode(piece.text) + turn.around[1]
        delta = self._delta(turn, piece)
        choice = ChunkChoice(index, delta)
        chunk = self._chunk([choice], usage.info() if self._delivery.continuous_usage_stats else UNSET)
        if piece.prompt is not None:
            delta.role = self._delivery.role
            delta.content = (
                delta.content or ""
            )  # who sees the role looks for it, as vLLM's first event has it
            chunk.prompt_token_ids, chunk.prompt_text = piece.prompt.token_ids, piece.prompt.text
        if piece.logprobs is not None:
            choice.logprobs = chat_logprobs(piece.logprobs)
        if piece.finish_reason is not None:
            choice.finish_reason = self._finish_reason(turn, piece.finish_reason)
            choice.stop_reason = piece.stop_reason
        choice.token_ids = piece.token_ids
        return as_event(chunk)

    def usage_event(self, usage: Usage) -> bytes:
        return as_event(self._chunk([], usage.info(with_bill=self._envelope.shows_bill)))

    def whole(self, answers: Sequence[Collected], usage: Usage) -> bytes:
        choices = [self._choice(index, answer) for index, answer in enumerate(answers)]
        info = usage.info(with_bill=self._envelope.shows_bill)
        prompt = answers[0].prompt
        return _encode(
            ChatCompletion(
                **self._envelope.fields,
                choices=choices,
                usage=info,
                prompt_logprobs=prompt.logprobs,
                prompt_token_ids=prompt.token_ids,
                prompt_text=prompt.text,
            )
        )

    def _chunk(self, choices: list[ChunkChoice], usage: Any = UNSET) -> ChatCompletionChunk:
        return ChatCompletionChunk(**self._envelope.fields, choices=choices, usage=usage)

    def _turn(self, index: int) -> _Turn:
        if index not in self._turns:
            tools = self._delivery.tools
            early = self._delivery.stream
            self._turns[index] = _Turn(call_finder(tools, early=early) if tools else None)
        return self._turns[index]

    def _delta(self, turn: _Turn, piece: Piece) -> Delta:
        if turn.finder is None:
            return Delta(content=piece.text)
        found = _found(turn.finder, piece.text, ended=piece.finish_reason is not None)
        turn.called = turn.called or bool(found.calls)
        calls = [_call_delta(part) for part in found.calls]
        return Delta(content=found.content or UNSET, tool_calls=calls or UNSET)

    def _choice(self, index: int, answer: Collected) -> ChatChoice:
        turn = self._turn(index)
        message = AnswerMessage(self._delivery.role, answer.text)
        if turn.finder is not None:
            found = _found(turn.finder, answer.text, ended=True)
            turn.called = bool(found.calls)
            message.content = found.content if found.content.strip() or not found.calls else None
            message.tool_calls = [_call(part) for part in found.calls] or UNSET
        return ChatChoice(
            index,
            message,
            None if answer.logprobs is None else chat_logprobs(answer.logprobs),
            self._finish_reason(turn, answer.finish_reason),
            answer.stop_reason,
            answer.token_ids,
        )

    def _finish_reason(self, turn: _Turn, reason: str | None) -> str | None:
        """OpenAI's: a call that the model chose to make is a reason of its own, one that was named is not."""
        tools = self._delivery.tools
        chosen = turn.called and tools is not None and tools.choice is not ToolChoice.NAMED
        return "tool_calls" if chosen and reason == "stop" else reason


class CompletionReply:
    """Answers of /v1/completions."""

    def __init__(self, envelope: Envelope, delivery: Delivery) -> None:
        self._envelope = envelope
        self._delivery = delivery
        self._around: dict[int, tuple[bytes, bytes]] = {}
        self._offsets: dict[int, int] = {}  # of the next token in its choice's text

    def event(self, index: int, piece: Piece, usage: Usage) -> bytes:
        """`usage`: of this choice, up to now."""
        if piece.is_plain and not self._delivery.continuous_usage_stats:
            if index not in self._around:
                self._around[index] = _around(self._chunk([TextChunkChoice(index, _MARK)]))
            before, after = self._around[index]
            return before + _encode(piece.text) + after
        shown = usage.info() if self._delivery.continuous_usage_stats else UNSET
        choice = self._filled(TextChunkChoice(index, piece.text), piece)
        return as_event(self._chunk([choice], shown))

    def usage_event(self, usage: Usage) -> bytes:
        return as_event(self._chunk([], usage.info(with_bill=self._envelope.shows_bill)))

    def whole(self, answers: Sequence[Collected], usage: Usage) -> bytes:
        choices = [
            self._filled(TextChoice(index, answer.text, prompt_logprobs=answer.prompt.logprobs), answer)
            for index, answer in enumerate(answers)
        ]
        info = usage.info(with_bill=self._envelope.shows_bill)
        return _encode(Completion(**self._envelope.fields, choices=choices, usage=info))

    def _chunk(self, choices: list[TextChunkChoice], usage: Any = UNSET) -> CompletionChunk:
        return CompletionChunk(**self._envelope.fields, choices=choices, usage=usage)

    def _filled(self, choice: _TextChoice, told: Piece | Collected) -> _TextChoice:
        """`choice` with what whole answers and events have in common."""
        choice.finish_reason, choice.stop_reason = told.finish_reason, told.stop_reason
        choice.token_ids = told.token_ids
        choice.prompt_token_ids = told.prompt.token_ids if told.prompt is not None else None
        if told.logprobs is not None:
            offset = self._offsets.get(choice.index, 0)
            choice.logprobs = completion_logprobs(told.logprobs, offset)
            self._offsets[choice.index] = offset + sum(len(token.text) for token in told.logprobs)
        return choice


Reply = ChatReply | CompletionReply

_STATUS: tuple[tuple[type[HeadraceError], HTTPStatus, str], ...] = (
    (UnknownModel, HTTPStatus.NOT_FOUND, "NotFoundError"),
    (Unauthorized, HTTPStatus.UNAUTHORIZED, "AuthenticationError"),
    (BodyTooLarge, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "RequestEntityTooLargeError"),
    (BodyTooSlow, HTTPStatus.REQUEST_TIMEOUT, "RequestTimeoutError"),
    (BadInput, HTTPStatus.BAD_REQUEST, "BadRequestError"),
    (Busy, HTTPStatus.SERVICE_UNAVAILABLE, "ServiceUnavailableError"),
    (TimedOut, HTTPStatus.GATEWAY_TIMEOUT, "TimeoutError"),
    (EngineDied, HTTPStatus.SERVICE_UNAVAILABLE, "ServiceUnavailableError"),
)


def status_of(error: HeadraceError) -> tuple[HTTPStatus, str]:
    """The HTTP status of `error`, and its type in OpenAI's words."""
    for kind, status, name in _STATUS:
        if isinstance(error, kind):
            return status, name
    return HTTPStatus.INTERNAL_SERVER_ERROR, "InternalServerError"


def error_json(error: HeadraceError) -> ErrorBody:
    """`error` in OpenAI's shape, what to do next included in its message."""
    status, name = status_of(error)
    message = f"{error}; {error.hint}" if error.hint else str(error)
    param = "model" if isinstance(error, UnknownModel) else getattr(error, "param", None)
    return http_error_json(status, name, message, param)


def http_error_json(status: int, name: str, message: str, param: str | None = None) -> ErrorBody:
    return ErrorBody(ErrorInfo(message, name, param, int(status)))


def as_event(body: msgspec.Struct) -> bytes:
    """One server-sent event."""
    return b"data: " + _encode(body) + b"\n\n"


_MARK = "\ufdd0"
"""A noncharacter: stands where the text will be, and occurs nowhere else in an envelope."""


def _around(body: msgspec.Struct) -> tuple[bytes, bytes]:
    """The event around the text, for which the mark stands."""
    before, _, after = as_event(body).rpartition(_encode(_MARK))
    return before, after


def _found(finder: CallFinder, text: str, *, ended: bool) -> Found:
    found = finder.push(text)
    if ended:
        rest = finder.finish()
        found.content += rest.content
        found.calls += rest.calls
    return found


def _call(part: CallPart) -> ToolCall:
    return ToolCall(_call_id(), FunctionCall(part.name or "", part.arguments))


def _call_delta(part: CallPart) -> ToolCallDelta:
    if part.name is None:
        return ToolCallDelta(part.index, FunctionDelta(part.arguments))
    return ToolCallDelta(part.index, FunctionDelta(part.arguments, part.name), _call_id(), "function")


def _call_id() -> str:
    return f"chatcmpl-tool-{secrets.token_hex(16)}"
