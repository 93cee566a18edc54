"""What a connection may do to an exchange beside what a stream may say."""

import asyncio
import time

import pytest

from headrace.core.errors import BadInput
from headrace.core.exchange import Answer, Ask, Broken
from headrace.core.timeline import FailureKind
from headrace.net.client import HttpSender
from headrace.net.exchange import MOST_HEAD_BYTES
from headrace.net.fetch import fetch
from headrace.net.transcript import StreamBroke
from tests.net.awkward import Behaviour, Exchange, answer_well, awkward_server

ASK = Ask("r", "short", "five words in a prompt", max_tokens=2)


def outcome(behave: Behaviour, name: str = "127.0.0.1") -> Answer | Broken:
    async def send(url: str) -> Answer | Broken:
        async with HttpSender(url, "awkward", clock=time.monotonic, timeout_s=5) as sender:
            return await sender.send(ASK)

    with awkward_server(behave) as url:
        return asyncio.run(send(url.replace("127.0.0.1", name)))


async def waits_and_answers(exchange: Exchange) -> None:
    await exchange.send(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\nX: y\r\n\r\n")
    await answer_well(exchange)


async def resets_when_whole(exchange: Exchange) -> None:
    await exchange.head("200 OK", "Content-Type: text/event-stream", "Transfer-Encoding: chunked")
    data = b'data: {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}\n\n'
    await exchange.send(b"%x\r\n%b\r\n" % (len(data), data))
    exchange.reset()


async def resets_halfway(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.text("a")
    exchange.reset()


async def promises_more_than_it_sends(exchange: Exchange) -> None:
    await exchange.head("200 OK", "Content-Type: text/event-stream", "Content-Length: 1000")
    await exchange.text("a")


async def head_without_end(exchange: Exchange) -> None:
    await exchange.send(b"HTTP/1.1 200 OK\r\n")
    for number in range(2 * MOST_HEAD_BYTES // 1000):
        await exchange.send(b"X-%d: %b\r\n" % (number, b"x" * 1000))


async def another_protocol(exchange: Exchange) -> None:
    await exchange.head("101 Switching Protocols", "Upgrade: other", "Connection: upgrade")


async def longer_than_any_refusal(exchange: Exchange) -> None:
    await exchange.head("500 Internal Server Error", "Content-Type: text/html")
    while True:
        await exchange.send(b"<p>" * 1000)


@pytest.mark.parametrize("behave", [answer_well, waits_and_answers, resets_when_whole])
def test_an_answer_is_whole_when_all_its_tokens_came(behave: Behaviour) -> None:
    assert isinstance(outcome(behave), Answer)


@pytest.mark.parametrize(
    ("behave", "kind", "reason"),
    [
        (resets_halfway, FailureKind.CUT, "the connection broke: Connection reset by peer"),
        (promises_more_than_it_sends, FailureKind.CUT, "closed before the answer was whole"),
        (head_without_end, FailureKind.MALFORMED, "its head is longer than 65,536 bytes"),
        (another_protocol, FailureKind.MALFORMED, "another protocol"),
        (longer_than_any_refusal, FailureKind.REFUSED, "500 Internal Server Error: <p><p>"),
    ],
)
def test_a_connection_that_misbehaves_is_a_failure_with_a_reason(
    behave: Behaviour, kind: FailureKind, reason: str
) -> None:
    result = outcome(behave)

    assert isinstance(result, Broken)
    assert result.kind is kind, result
    assert reason in result.reason


def test_a_name_with_addresses_of_two_kinds_finds_the_one_that_listens() -> None:
    """`localhost` is ::1 as well on most machines, where nobody listens."""
    assert isinstance(outcome(answer_well, "localhost"), Answer)


def test_a_name_that_nobody_knows_is_said_so() -> None:
    result = outcome(answer_well, "no-such-host.invalid")

    assert isinstance(result, Broken)
    assert (result.kind, result.reason) == (
        FailureKind.UNREACHABLE,
        "no host of the name no-such-host.invalid",
    )


def test_a_key_that_would_end_its_line_is_refused() -> None:
    with pytest.raises(BadInput, match="API key"):
        HttpSender("h:1", "m", clock=time.monotonic, api_key="k\r\nX-Other: 1")


def test_what_is_fetched_must_be_200_and_of_bounded_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.net.fetch._MOST_BODY_BYTES", 100)

    async def long(exchange: Exchange) -> None:
        if exchange.path == "/long":
            await exchange.json("200 OK", "x" * 101)
        await exchange.json("404 Not Found", "xxx")

    with awkward_server(long) as url:
        for path, reason in (("/long", "longer than 100 bytes"), ("/other", "404 Not Found: xxx")):
            with pytest.raises(StreamBroke, match=reason):
                asyncio.run(fetch(url + path, timeout_s=5))
