"""Whether what a client saw is what it had to see.

    judge(visit, outcome, away, bounds) -> Fault | None

Pure. While the engine is away (killed and not yet back) a request that needs it may be
told so; everything else must be as always.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from bench.soak.client import Outcome
from bench.soak.requests import Visit

BUSY, TOO_LATE = 503, 504


class Kind(StrEnum):
    HUNG = "hung"
    WRONG_STATUS = "wrong status"
    WRONG_ANSWER = "wrong answer"


@dataclass(frozen=True, slots=True)
class Fault:
    kind: Kind
    what: str


@dataclass(frozen=True, slots=True)
class Away:
    """From when to when there was no engine, on the monotonic clock."""

    killed_at: float
    back_at: float

    def overlaps(self, outcome: Outcome) -> bool:
        return self.killed_at <= outcome.ended_at and outcome.began_at <= self.back_at


@dataclass(frozen=True, slots=True)
class Answer:
    """What came over the wire, taken apart."""

    status: int
    headers: dict[str, str]
    body: bytes


def judge(visit: Visit, outcome: Outcome, away: Sequence[Away], request_timeout_s: float) -> Fault | None:
    """The first thing that is wrong, or None."""
    if outcome.hung:
        return Fault(Kind.HUNG, f"no end after {outcome.elapsed_s:.0f} s")
    answer = parse(bytes(outcome.received))
    if answer is None:
        if outcome.left or not visit.allowed:
            return None
        return Fault(
            Kind.WRONG_STATUS, f"the connection ended without an answer, {sorted(visit.allowed)} expected"
        )
    has_no_engine = any(each.overlaps(outcome) for each in away)
    is_late = outcome.elapsed_s >= 0.9 * request_timeout_s
    wrong = _wrong_status(visit, answer, is_late=is_late)
    if wrong is None and answer.status != 200 and not outcome.left:
        wrong = _wrong_error(answer)
    if wrong:
        return Fault(Kind.WRONG_STATUS, wrong)
    if answer.status != 200 or outcome.left or visit.max_tokens is None:
        return None
    wrong = (
        _wrong_stream(visit, answer, may_fail=has_no_engine or is_late)
        if visit.stream
        else _wrong_whole(visit, answer)
    )
    return Fault(Kind.WRONG_ANSWER, wrong) if wrong else None


def _wrong_status(visit: Visit, answer: Answer, *, is_late: bool) -> str | None:
    if answer.status in visit.allowed or (visit.may_be_refused and answer.status == TOO_LATE and is_late):
        return None
    said = answer.body[:200].decode(errors="replace")
    if visit.may_be_refused and answer.status == BUSY:
        retry_after = answer.headers.get("retry-after", "")
        is_told = retry_after.isdigit() and int(retry_after) >= 1
        return None if is_told else f"503 without a Retry-After: {said}"
    return f"{answer.status}, {sorted(visit.allowed)} expected: {said}"


def _wrong_error(answer: Answer) -> str | None:
    """Errors have OpenAI's shape, whatever was sent."""
    try:
        error = json.loads(answer.body)["error"]
        if error["message"] and error["code"] == answer.status and error["type"]:
            return None
    except (ValueError, KeyError, TypeError):
        pass
    return f"{answer.status} not in OpenAI's shape: {answer.body[:200].decode(errors='replace')}"


def _wrong_whole(visit: Visit, answer: Answer) -> str | None:
    try:
        body: dict[str, Any] = json.loads(answer.body)
    except ValueError:
        return f"a body of {len(answer.body)} bytes that is no JSON"
    choice = body["choices"][0]
    return _wrong_text(visit, choice["message"]["content"], choice["finish_reason"], body["usage"])


def _wrong_stream(visit: Visit, answer: Answer, *, may_fail: bool) -> str | None:
    data = [
        line[6:] for line in answer.body.decode(errors="replace").split("\n") if line.startswith("data: ")
    ]
    if not data or data[-1] != "[DONE]":
        last = data[-1] if data else ""
        if may_fail and last.startswith('{"error"'):
            return None
        return f"a stream that ends with {last[:200]!r}"
    events = [json.loads(each) for each in data[:-1]]
    choices = [event["choices"][0] for event in events if event.get("choices")]
    usages = [event["usage"] for event in events if event.get("usage")]
    if not choices or not usages:
        return f"a stream of {len(events)} events without choices or without usage: {data[0][:200]}"
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    return _wrong_text(visit, text, choices[-1]["finish_reason"], usages[-1])


def _wrong_text(visit: Visit, text: str, finish_reason: str | None, usage: dict[str, Any]) -> str | None:
    if finish_reason != "length":
        return f"finish_reason {finish_reason}, length expected"
    if usage["completion_tokens"] != visit.max_tokens:
        return f"{usage['completion_tokens']} tokens, {visit.max_tokens} expected"
    if visit.expected_text is not None and text != visit.expected_text:
        return f"{text!r}, {visit.expected_text!r} expected"
    return None


def parse(received: bytes) -> Answer | None:
    """An HTTP/1.1 answer; None if it has not even a whole head."""
    head, end, body = received.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split()
    if not end or len(words) < 2 or not words[1].isdigit():
        return None
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    if headers.get("transfer-encoding") == "chunked":
        body = _joined(body)
    return Answer(int(words[1]), headers, body)


def _joined(chunked: bytes) -> bytes:
    """As much as has come; the client may have left in the middle of a chunk."""
    body = b""
    while chunked:
        size, _, chunked = chunked.partition(b"\r\n")
        try:
            length = int(size, 16)
        except ValueError:
            return body
        body, chunked = body + chunked[:length], chunked[length + 2 :]
    return body
