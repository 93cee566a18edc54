"""Our client and our server: what the one sends, the other counts."""

import asyncio
import time

import pytest

from headrace.core.exchange import Answer, Ask, Broken
from headrace.core.timeline import FailureKind
from headrace.net.client import HttpSender, served_models
from tests.net.scripted import ScriptedRecipe
from tests.net.serving import running, service

STEP_S = 0.01


async def send(url: str, *asks: Ask) -> list[Answer | Broken]:
    async with HttpSender(url, "scripted", clock=time.monotonic, timeout_s=20) as sender:
        return await asyncio.gather(*map(sender.send, asks))


@pytest.mark.slow
@pytest.mark.parametrize("answer", ["plain", "日本語", "é, then more"])
def test_every_token_of_ours_is_timed_by_itself_even_while_its_text_is_held_back(answer: str) -> None:
    """A byte is a token here, so half of the tokens of such answers show no text."""
    with running(service(ScriptedRecipe(answer=answer.encode(), step_s=STEP_S))) as server:
        (result,) = asyncio.run(send(server.url, Ask("r", "short", "hello", max_tokens=12)))

    assert isinstance(result, Answer), result
    assert len(set(result.token_at)) == 12
    assert result.token_at[-1] - result.token_at[0] >= 11 * STEP_S
    assert result.finish_reason == "length"


@pytest.mark.slow
def test_the_servers_bill_is_never_more_than_its_client_waited() -> None:
    asks = [Ask(f"r{n}", "short", f"{n} tell me about water", max_tokens=4) for n in range(20)]

    with running(service(ScriptedRecipe(step_s=STEP_S))) as server:
        results = asyncio.run(send(server.url, *asks))

    for result in results:
        assert isinstance(result, Answer), result
        assert result.bill_s is not None
        assert 0 < sum(result.bill_s.values()) <= result.token_at[0] - result.sent_at


@pytest.mark.slow
def test_a_prompt_too_long_for_our_server_is_refused_with_the_numbers() -> None:
    with running(service()) as server:
        assert asyncio.run(served_models(server.url))[0] == "scripted"
        (result,) = asyncio.run(send(server.url, Ask("r", "long", "word " * 1000, max_tokens=4)))

    assert isinstance(result, Broken)
    assert result.kind is FailureKind.REFUSED
    assert "512" in result.reason
