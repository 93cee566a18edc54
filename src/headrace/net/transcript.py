"""One streamed chat completion, event by event: what it said, when, and whether it is whole.

    (data, at), ... -> Transcript.hear -> Transcript.answer -> Answer      or raises StreamBroke

Accepts what OpenAI-compatible servers really send, and nothing that would pass off half an answer
as a whole one: an answer is whole once the server has said why it finished, or sent `[DONE]`.
Knows nothing of sockets and clocks.
"""

import math
from typing import Any

import msgspec

from headrace.core.bill import CAUSES, Cause
from headrace.core.exchange import Answer, Ask
from headrace.core.timeline import FailureKind
from headrace.net.token_times import Piece, token_times

UNSTATED = "unstated"
"""The finish reason of a stream that ended with `[DONE]` and gave none."""

GAVE_UP = frozenset({"abort", "error"})
"""Finish reasons by which servers say that they stopped halfway."""


class StreamBroke(Exception):
    """Not an answer. Stays inside `net`, whose client turns it into a `Broken`."""

    def __init__(self, kind: FailureKind, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None

    @property
    def num_chars(self) -> int:
        # One at a time: this is done for every token.
        chars = len(self.content) if self.content else 0
        if thought := self.reasoning_content or self.reasoning:
            chars += len(thought)
        return chars + len(self.tool_calls) if self.tool_calls else chars


class _Choice(msgspec.Struct, gc=False):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Event(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None
    object: str | None = None
    message: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _PromptDetails | None = None
    headrace_bill: dict[str, float] | None = None


_EVENTS = msgspec.json.Decoder(_Event)


class Transcript:
    """Owned by the one request whose stream it follows."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._most_events = 64 + 16 * ask.max_tokens  # far more than any way to cut up an answer
        self._pieces: list[Piece] = []
        self._usage: _Usage | None = None
        self._claimed_tokens: int | None = None
        self._finish_reason: str | None = None
        self._announcement: Piece | None = None  # a first event that shows nothing but a role
        self.has_ended = False
        """`[DONE]` has come: there is nothing more to listen to."""

    @property
    def is_whole(self) -> bool:
        return self.has_ended or self._finish_reason is not None

    @property
    def tokens_received(self) -> int:
        """As far as can be told without a usage."""
        return len(token_times(self._pieces, None))

    def hear(self, data: bytes, at: float) -> None:
        if not data.startswith(b"{") and data.strip() == b"[DONE]":
            self.has_ended = True
            return
        try:
            event = _EVENTS.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise StreamBroke(FailureKind.MALFORMED, f"{error}: {shorten(data)}") from error
        if event.error is not None or event.object == "error":
            raise StreamBroke(FailureKind.CUT, f"the server broke off: {error_message(data)}")
        if event.usage is not None:
            self._hear_usage(event.usage)
        if event.choices:  # we ask for one
            self._hear_choice(event.choices[0], at)

    def _hear_choice(self, choice: _Choice, at: float) -> None:
        chars = choice.delta.num_chars if choice.delta else 0
        piece = Piece(at, chars)
        if not chars and not self._pieces and not self._announcement and not choice.finish_reason:
            self._announcement = piece
        else:
            self._pieces.append(piece)
        if len(self._pieces) > self._most_events:
            why = f"{len(self._pieces)} events; {self._ask.max_tokens} tokens were asked for"
            raise StreamBroke(FailureKind.MALFORMED, f"still streaming after {why}")
        self._finish_reason = choice.finish_reason or self._finish_reason

    def _hear_usage(self, raw: object) -> None:
        """What is none, or claims what cannot be, is kept as a claim: then the events alone are believed."""
        try:
            usage = msgspec.convert(raw, _Usage)
        except msgspec.ValidationError:
            return
        self._claimed_tokens = usage.completion_tokens
        plausible = usage.prompt_tokens >= 0 and 0 <= usage.completion_tokens <= self._ask.max_tokens
        self._usage = usage if plausible else None

    def answer(self, sent_at: float) -> Answer:
        """The answer of a stream that is over."""
        if not self.is_whole:
            raise StreamBroke(
                FailureKind.CUT, f"the stream ended after {self.tokens_received} tokens, without a finish"
            )
        if self._finish_reason in GAVE_UP:
            raise StreamBroke(FailureKind.CUT, f'the server ended it with "{self._finish_reason}"')
        usage = self._usage
        bill_s = _read_bill(usage.headrace_bill) if usage and usage.headrace_bill else None
        pieces = self._pieces
        if bill_s is not None and self._announcement is not None:
            # Headrace sends no event without a token: this one held back half a character.
            pieces = [self._announcement, *pieces]
        token_at = token_times(pieces, usage.completion_tokens if usage else None)
        if not token_at:
            raise StreamBroke(FailureKind.EMPTY, "the stream ended properly, without a token")
        details = usage.prompt_tokens_details if usage else None
        return Answer(
            sent_at=sent_at,
            token_at=token_at,
            finish_reason=self._finish_reason or UNSTATED,
            prompt_tokens=usage.prompt_tokens if usage else self._ask.expected_prompt_tokens,
            cached_tokens=(details.cached_tokens or 0) if details else 0,
            bill_s=bill_s,
            usage_tokens=self._claimed_tokens,
            token_events=sum(piece.chars > 0 for piece in pieces),
        )


def error_message(body: bytes) -> str:
    """What a server says went wrong, from the shapes in which servers say it."""
    try:
        said = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return shorten(body)
    for key in ("error", "message", "detail"):
        if isinstance(said, dict) and said.get(key):
            said = said[key]
    return shorten(said if isinstance(said, str) else body)


def shorten(text: str | bytes, most_chars: int = 200) -> str:
    """One line of bounded length: a whole HTML page is nobody's error message, and what a server
    sends must not steer our terminal.
    """
    if isinstance(text, bytes):
        text = text[: 4 * most_chars].decode(errors="replace")
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= most_chars else line[: most_chars - 1] + "…"


def _read_bill(bill_s: dict[str, float]) -> dict[Cause, float] | None:
    """None for a bill with causes that are not ours: its parts would no longer add up."""
    if any(name not in CAUSES or not (math.isfinite(s) and s >= 0) for name, s in bill_s.items()):
        return None
    return {cause: bill_s.get(cause, 0.0) for cause in CAUSES}
