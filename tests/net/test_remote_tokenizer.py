"""What servers say of the tokens of a message, in the ways in which they say it."""

import asyncio
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import TargetFailed
from headrace.net.remote_tokenizer import RemoteTokenizer
from tests.net.awkward import Behaviour, Exchange, awkward_server

MESSAGES = [f"{'word ' * length}end" for length in range(40)]


def tokens(text: str) -> list[int]:
    return [1, *(len(word) for word in text.split()), 2]


async def like_vllm(exchange: Exchange) -> None:
    content = exchange.body["messages"][0]["content"]
    await exchange.json("200 OK", {"count": 0, "max_model_len": 9, "tokens": tokens(content)})


async def like_llama_cpp(exchange: Exchange) -> None:
    if exchange.path == "/apply-template":
        await exchange.json("200 OK", {"prompt": f"<s> {exchange.body['messages'][0]['content']}"})
    else:
        content = exchange.body.get("content", "")
        await exchange.json("200 OK", {"tokens": tokens(content) if content else []})


def asked(behave: Behaviour, messages: list[str]) -> list[list[int]]:
    with awkward_server(behave, absent=()) as url:
        return asyncio.run(RemoteTokenizer(url, "m").tokens_of(messages))


def test_a_server_that_tokenizes_conversations_is_asked_many_at_a_time_and_answered_in_order() -> None:
    assert asked(like_vllm, MESSAGES) == [tokens(message) for message in MESSAGES]
    assert asked(like_vllm, []) == []


def test_a_server_that_tokenizes_texts_renders_first() -> None:
    assert asked(like_llama_cpp, MESSAGES) == [tokens(f"<s> {message}") for message in MESSAGES]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"tokens": "none"}, "gives no tokens"),
        ({"count": 3}, "gives no tokens"),
        (["not", "that"], "gives no tokens"),
    ],
)
def test_what_is_no_answer_is_a_reason_and_no_exception_of_another_kind(answer: Any, why: str) -> None:
    async def strange(exchange: Exchange) -> None:
        await exchange.json("200 OK", answer)

    with pytest.raises(TargetFailed, match=why):
        asked(strange, MESSAGES[:3])


@pytest.mark.slow
@settings(max_examples=30)
@given(st.binary(max_size=200), st.booleans())
def test_whatever_comes_back_is_tokens_or_a_reason(answer: bytes, resets: bool) -> None:
    async def hostile(exchange: Exchange) -> None:
        await exchange.send(answer)
        if resets:
            exchange.reset()

    with pytest.raises(TargetFailed, match=re.escape("its /tokenize")):
        asked(hostile, MESSAGES[:3])
