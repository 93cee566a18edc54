"""What the clients of a soak send, and what may come back for it.

    chance (seeded) -> Visit: bytes on the wire, how the client behaves, which statuses are allowed

Pure: no sockets, no clock. The same seed makes the same visits.
"""

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"

MOST_ANSWER_TOKENS = 48
"""Short, so that many requests fit into a soak; long enough to be left in the middle."""


class Manner(StrEnum):
    """How a client behaves once it is connected."""

    READS = "reads"
    READS_SLOWLY = "reads slowly"
    LEAVES_BEFORE = "leaves before the first token"
    LEAVES_AT_FIRST = "leaves at the first token"
    LEAVES_LATER = "leaves after some tokens"
    HALF_BODY_LEAVES = "sends half a body and leaves"
    HALF_BODY_STAYS = "sends half a body and waits"


@dataclass(frozen=True, slots=True)
class Visit:
    """One request of one client."""

    name: str
    """What the table calls it."""
    head: bytes
    body: bytes
    allowed: frozenset[int]
    """Statuses while the engine is there. Empty for a client that does not wait for one."""
    manner: Manner = Manner.READS
    may_be_refused: bool = False
    """Whether it gets as far as the limits of the queue, so that 503 and 504 are right answers too."""
    stream: bool = False
    max_tokens: int | None = None
    """As many tokens as a whole answer has. None: no answer to count."""
    expected_text: str | None = None
    """What a whole answer says. None: anything."""
    leaves_after_s: float = 0.0
    leaves_after_events: int = 0


@dataclass(frozen=True, slots=True)
class Facts:
    """What the visits need to know of the server."""

    model: str
    max_model_len: int
    api_key: str
    known_answers: Mapping[str, str]
    """By question: the greedy answer of KNOWN_ANSWER_TOKENS tokens, asked for while nobody else was there."""


SMALL_VOCABULARY = 256
"""Every model has so many tokens, the scripted one too."""

KNOWN_ANSWER_TOKENS = 12
QUESTIONS = (
    "What is the capital of France?",
    "How many days are in a week?",
    "Name the largest ocean.",
    "Say the colours of the rainbow.",
)


def known_body(question: str) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": question}],
        "max_tokens": KNOWN_ANSWER_TOKENS,
        "ignore_eos": True,
        "temperature": 0,
        "seed": 1,  # the scripted executor goes by it
    }


def known(facts: Facts, chance: random.Random) -> Visit:
    question = chance.choice(QUESTIONS)
    body = known_body(question) | {"stream": chance.random() < 0.5}
    return replace(_good(facts, "good, answer known", body), expected_text=facts.known_answers[question])


def sampled(facts: Facts, chance: random.Random) -> Visit:
    return _good(facts, "good", _body(chance))


def slow_reader(facts: Facts, chance: random.Random) -> Visit:
    body = _streamed(_body(chance))
    return replace(_good(facts, "reads slowly", body), manner=Manner.READS_SLOWLY)


def leaver(facts: Facts, chance: random.Random) -> Visit:
    body = _body(chance)
    manner = chance.choice([Manner.LEAVES_BEFORE, Manner.LEAVES_AT_FIRST, Manner.LEAVES_LATER])
    if manner is not Manner.LEAVES_BEFORE:
        body = _streamed(body)
    return replace(
        _good(facts, "leaves", body),
        manner=manner,
        leaves_after_s=chance.choice([0.0, chance.uniform(0.0, 1.0)]),
        leaves_after_events=chance.randint(2, MOST_ANSWER_TOKENS // 2),
    )


def half_body(facts: Facts, chance: random.Random) -> Visit:
    head, body = _posted(facts, CHAT, _raw(_body(chance)))
    return Visit(
        "half a body", head, body[: chance.randrange(len(body))], frozenset(), Manner.HALF_BODY_LEAVES
    )


def stalled_body(facts: Facts, chance: random.Random) -> Visit:
    head, body = _posted(facts, CHAT, _raw(_body(chance)))
    return Visit("half a body, waits", head, body[: len(body) // 2], frozenset({408}), Manner.HALF_BODY_STAYS)


def about(facts: Facts, chance: random.Random) -> Visit:
    path = chance.choice(["/metrics", "/load", "/v1/models", "/version", "/openapi.json"])
    return Visit("about the server", _head(facts, "GET", path, 0), b"", frozenset({200}))


def tokens(facts: Facts, chance: random.Random) -> Visit:
    if chance.random() < 0.5:
        path, body = "/tokenize", {"prompt": _words(chance, chance.randint(1, 400))}
    else:
        ids = [chance.randrange(SMALL_VOCABULARY) for _ in range(chance.randint(1, 400))]
        path, body = "/detokenize", {"tokens": ids}
    return Visit("tokenize, detokenize", *_posted(facts, path, _raw(body)), frozenset({200}))


def malformed(facts: Facts, chance: random.Random) -> Visit:
    whole = _raw(_body(chance))
    raw = chance.choice(
        [
            b"",
            b"null",
            b"{}",
            b"[" * chance.choice([10, 1000, 100_000]),
            b'{"messages":' * chance.choice([10, 1000, 50_000]),
            b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
            whole[: chance.randrange(len(whole))],
            whole.replace(b"content", b"c\xff\xfentent"),
            b"\xff\xfe" + whole,
            whole.decode().encode("utf-16"),
            bytes(chance.randrange(256) for _ in range(chance.randint(1, 300))),
            whole + whole,
        ]
    )
    return Visit("malformed", *_posted(facts, chance.choice([CHAT, COMPLETIONS]), raw), frozenset({400}))


ABSURD: tuple[dict[str, Any], ...] = (
    {"max_tokens": 10**30},
    {"max_tokens": -1},
    {"max_tokens": "many"},
    {"max_tokens": 1.5},
    {"temperature": -1},
    {"temperature": 1e308},
    {"temperature": "hot"},
    {"top_p": 0},
    {"top_p": [1]},
    {"top_k": -2},
    {"n": 0},
    {"n": 10**9},
    {"seed": 10**40},
    {"stop": ["x"] * 1000},
    {"stop": [[]]},
    {"logit_bias": {"x": 1}},
    {"logit_bias": {"-5": 1}},
    {"top_logprobs": 10**6, "logprobs": True},
    {"messages": []},
    {"messages": "hello"},
    {"messages": [{"role": "user", "content": 7}]},
    {"messages": [{"content": "no role"}]},
    {"stream": "yes"},
    {"stream_options": {"include_usage": True}, "stream": False},
    {"structured_outputs": {"regex": "("}},
    {"structured_outputs": {"choice": []}},
    {"response_format": {"type": "poem"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "no"}}}},
    {"tools": "all"},
    {"prompt_logprobs": 300},
    {"priority": 5},
)


def absurd(facts: Facts, chance: random.Random) -> Visit:
    """All are seen in the body alone but a bad grammar, which is read only where there is room."""
    value = chance.choice(ABSURD)
    is_grammar = not value.keys().isdisjoint({"structured_outputs", "response_format"})
    posted = _posted(facts, CHAT, _raw(_body(chance) | value))
    return Visit("wrong or absurd value", *posted, frozenset({400}), may_be_refused=is_grammar)


def never_fits(facts: Facts, chance: random.Random) -> Visit:
    too_long = facts.max_model_len + chance.randint(1, 500)
    body = chance.choice(
        [
            {"prompt": [1] * too_long, "max_tokens": 1},
            {"prompt": "word " * too_long, "max_tokens": 1},
            {"prompt": "short", "max_tokens": too_long},
        ]
    )
    return Visit(
        "never fits", *_posted(facts, COMPLETIONS, _raw(body)), frozenset({400}), may_be_refused=True
    )


def oversized(facts: Facts, chance: random.Random) -> Visit:
    """Larger than any prompt that fits. The client sends it all, as most do, or only says how much."""
    if chance.random() < 0.3:
        return Visit("oversized", _head(facts, "POST", CHAT, 10**12), b'{"messages":', frozenset({413}))
    body = {"prompt": "x" * (facts.max_model_len * chance.randint(1100, 1500)), "max_tokens": 1}
    return Visit("oversized", *_posted(facts, COMPLETIONS, _raw(body)), frozenset({413}))


def unknown(facts: Facts, chance: random.Random) -> Visit:
    if chance.random() < 0.3:
        return Visit(
            "no such path", _head(facts, "GET", "/v2/" + _words(chance, 1), 0), b"", frozenset({404})
        )
    if chance.random() < 0.2:
        return Visit("wrong method", _head(facts, "GET", CHAT, 0), b"", frozenset({405}))
    body = _body(chance) | {"model": _words(chance, 1) + "-70b"}
    return Visit("unknown model", *_posted(facts, CHAT, _raw(body)), frozenset({404}))


def wrong_key(facts: Facts, chance: random.Random) -> Visit:
    stranger = replace(facts, api_key=_words(chance, 1))
    head, body = _posted(stranger, CHAT, _raw(_body(chance)))
    return Visit("wrong key", head, body, frozenset({401}))


def not_http(_: Facts, chance: random.Random) -> Visit:
    raw = chance.choice([b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 300, b"hello\r\n\r\n"])
    return Visit("not HTTP", raw, b"", frozenset({400}))


MIX: dict[Callable[[Facts, random.Random], Visit], int] = {
    known: 14,
    sampled: 14,
    slow_reader: 4,
    leaver: 22,
    half_body: 6,
    stalled_body: 1,
    about: 5,
    tokens: 5,
    malformed: 9,
    absurd: 9,
    never_fits: 4,
    oversized: 1,
    unknown: 5,
    wrong_key: 3,
    not_http: 2,
}
"""Out of a hundred or so."""


def _body(chance: random.Random) -> dict[str, Any]:
    words = chance.choice([3, 20, 60, chance.randint(1, 200)])
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": _words(chance, words)}],
        "max_tokens": chance.randint(1, MOST_ANSWER_TOKENS),
        "ignore_eos": True,
        "temperature": chance.choice([0, 0.7, 1.3]),
        "seed": chance.randrange(2**31),
        "stream": chance.random() < 0.6,
    }
    if chance.random() < 0.2:
        body |= {"logprobs": True, "top_logprobs": chance.randint(0, 5)}
    if not body["stream"] and chance.random() < 0.2:
        body |= {"prompt_logprobs": chance.randint(0, 5)}
    if chance.random() < 0.2:
        body |= {"repetition_penalty": 1.1, "min_p": 0.05, "presence_penalty": 0.5}
    return body


def _streamed(body: dict[str, Any]) -> dict[str, Any]:
    """Log probabilities of a prompt do not come with a stream."""
    return {name: value for name, value in body.items() if name != "prompt_logprobs"} | {"stream": True}


def _good(facts: Facts, name: str, body: dict[str, Any]) -> Visit:
    options = {"stream_options": {"include_usage": True}} if body["stream"] else {}
    return Visit(
        name,
        *_posted(facts, CHAT, _raw(body | options)),
        frozenset({200}),
        may_be_refused=True,
        stream=body["stream"],
        max_tokens=body["max_tokens"],
    )


def _words(chance: random.Random, number: int) -> str:
    return " ".join("".join(chance.choices("abcdefgh", k=chance.randint(2, 6))) for _ in range(number))


def _raw(body: object) -> bytes:
    return json.dumps(body).encode()


def _posted(facts: Facts, path: str, raw: bytes) -> tuple[bytes, bytes]:
    return _head(facts, "POST", path, len(raw)), raw


def _head(facts: Facts, method: str, path: str, length: int) -> bytes:
    lines = (
        f"{method} {path} HTTP/1.1",
        "Host: soak",
        "Connection: close",
        f"Authorization: Bearer {facts.api_key}",
        f"Content-Length: {length}",
    )
    return ("\r\n".join(lines) + "\r\n\r\n").encode()
