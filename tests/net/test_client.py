import asyncio
import json
import time

import pytest

from headrace.core.errors import BadInput, TargetFailed
from headrace.core.exchange import Answer, Ask, Broken
from headrace.core.timeline import FailureKind
from headrace.net.client import HttpSender, base_url, served_models, server_version
from tests.net.awkward import Behaviour, Exchange, answer_well, awkward_server

ASK = Ask("r", "short", "five words in a prompt", max_tokens=4)


async def send(
    url: str, ask: Ask = ASK, timeout_s: float = 5.0, api_key: str | None = None
) -> Answer | Broken:
    async with HttpSender(
        url, "awkward", clock=time.monotonic, timeout_s=timeout_s, api_key=api_key
    ) as sender:
        return await sender.send(ask)


def outcome(behave: Behaviour, timeout_s: float = 5.0) -> Answer | Broken:
    with awkward_server(behave) as url:
        return asyncio.run(send(url, timeout_s=timeout_s))


def broken(behave: Behaviour, timeout_s: float = 5.0) -> Broken:
    result = outcome(behave, timeout_s)
    assert isinstance(result, Broken), result
    return result


def test_a_good_stream_is_an_answer_with_an_instant_for_every_token() -> None:
    answer = outcome(answer_well)

    assert isinstance(answer, Answer)
    assert len(answer.token_at) == 4
    assert answer.sent_at <= answer.token_at[0]
    assert (answer.finish_reason, answer.prompt_tokens) == ("length", 5)


def test_the_server_is_asked_for_a_stream_with_usage_and_for_the_bill() -> None:
    asked = list[dict[str, object]]()

    async def look(exchange: Exchange) -> None:
        asked.append(exchange.body)
        await answer_well(exchange)

    outcome(look)

    assert asked == [
        {
            "model": "awkward",
            "messages": [{"role": "user", "content": ASK.prompt}],
            "max_tokens": 4,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
        }
    ]


def test_a_key_is_sent_as_a_bearer_token_and_only_when_there_is_one() -> None:
    heads = list[str]()

    async def look(exchange: Exchange) -> None:
        heads.append(exchange.request_head)
        await answer_well(exchange)

    with awkward_server(look) as url:
        asyncio.run(send(url, api_key="k-123"))
        asyncio.run(send(url))

    assert ["authorization: bearer k-123" in head for head in heads] == [True, False]
    assert all("x-headrace-bill: 1" in head for head in heads)


def test_a_token_is_timed_when_its_bytes_come_and_not_when_the_stream_ends() -> None:
    with awkward_server(pause_between_tokens) as url:
        answer = asyncio.run(send(url))

    assert isinstance(answer, Answer)
    first, second = answer.token_at
    assert second - first >= 0.05


async def pause_between_tokens(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.text("a")
    await asyncio.sleep(0.06)
    await exchange.text("b", "length")


async def half_lines(exchange: Exchange) -> None:
    whole = b"".join(
        b"data: %s\r\n\r\n" % json.dumps({"choices": [{"delta": {"content": c}}]}).encode() for c in "ab"
    )
    await exchange.head()
    for at in range(0, len(whole), 7):
        await exchange.send(whole[at : at + 7])
        await asyncio.sleep(0)
    await exchange.text("", "length")
    await exchange.usage(2)


def test_events_torn_into_pieces_are_put_together() -> None:
    answer = outcome(half_lines)

    assert isinstance(answer, Answer)
    assert len(answer.token_at) == 2


async def too_many_requests(exchange: Exchange) -> None:
    await exchange.json("429 Too Many Requests", {"error": {"message": "slow down"}}, "Retry-After: 1")


async def elsewhere(exchange: Exchange) -> None:
    await exchange.head("307 Temporary Redirect", "Location: http://elsewhere/", "Content-Length: 0")


async def whole_html_page(exchange: Exchange) -> None:
    await exchange.head("200 OK", "Content-Type: text/html")
    await exchange.send(b"<html>Please log in</html>")


async def not_streamed(exchange: Exchange) -> None:
    await exchange.json("200 OK", {"choices": [{"message": {"content": "all at once"}}]})


async def hangs_up(exchange: Exchange) -> None:
    """Says nothing at all."""


async def no_http(exchange: Exchange) -> None:
    await exchange.send(b"220 mail.example.com ESMTP\r\n\r\n")


async def nothing_in_it(exchange: Exchange) -> None:
    await exchange.head()


async def cut_after_a_token(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.role()
    await exchange.text("a")


async def cut_within_a_chunk(exchange: Exchange) -> None:
    await exchange.head("200 OK", "Content-Type: text/event-stream", "Transfer-Encoding: chunked")
    await exchange.send(b"ff\r\ndata: {")


async def error_in_the_stream(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.text("a")
    await exchange.event({"error": {"message": "engine died", "type": "InternalServerError"}})


async def wrong_json(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.event("{'choices': []}")


async def no_tokens(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.role()
    await exchange.usage(0)
    await exchange.event("[DONE]")


async def endless(exchange: Exchange) -> None:
    await exchange.head()
    while True:
        await exchange.text("and on ")


async def endless_line(exchange: Exchange) -> None:
    await exchange.head()
    while True:
        await exchange.send(b"x" * 65536)


async def empty_events_for_ever(exchange: Exchange) -> None:
    await exchange.head()
    while True:
        await exchange.send(b'data: {"choices": []}\n\n' * 4096)


async def refuses_and_breaks_off(exchange: Exchange) -> None:
    """As who does not want to hear a long request out."""
    await exchange.head("413 Content Too Large", "Content-Type: application/json", "Content-Length: 500")
    await exchange.send(b'{"error": {"message": "too long"}}')
    await asyncio.sleep(0.01)
    exchange.reset()


async def fields_for_ever_after_the_body(exchange: Exchange) -> None:
    await exchange.head("200 OK", "Content-Type: text/event-stream", "Transfer-Encoding: chunked")
    await exchange.send(b"0\r\n")
    for number in range(20_000):
        await exchange.send(b"X-%d: %b\r\n" % (number, b"x" * 100))
    await exchange.send(b"\r\n")


@pytest.mark.parametrize(
    ("behave", "kind", "reason"),
    [
        (too_many_requests, FailureKind.REFUSED, "429 Too Many Requests: slow down"),
        (elsewhere, FailureKind.REFUSED, "307 Temporary Redirect: redirects to http://elsewhere/"),
        (whole_html_page, FailureKind.MALFORMED, "text/html instead of a stream: <html>Please log in</html>"),
        (not_streamed, FailureKind.MALFORMED, "application/json instead of a stream"),
        (hangs_up, FailureKind.CUT, "closed the connection before it answered"),
        (no_http, FailureKind.MALFORMED, "not an HTTP answer"),
        (nothing_in_it, FailureKind.CUT, "ended after 0 tokens"),
        (cut_after_a_token, FailureKind.CUT, "ended after 1 tokens"),
        (cut_within_a_chunk, FailureKind.CUT, "the connection broke"),
        (error_in_the_stream, FailureKind.CUT, "the server broke off: engine died"),
        (wrong_json, FailureKind.MALFORMED, "JSON is malformed"),
        (no_tokens, FailureKind.EMPTY, "without a token"),
        (endless, FailureKind.MALFORMED, "still streaming after 129 events; 4 tokens were asked for"),
        (endless_line, FailureKind.MALFORMED, "one event of the stream is larger than"),
        (empty_events_for_ever, FailureKind.MALFORMED, "still streaming after 4,259,840 bytes"),
        (refuses_and_breaks_off, FailureKind.REFUSED, "413 Content Too Large: "),
        (fields_for_ever_after_the_body, FailureKind.CUT, "ended after 0 tokens"),
    ],
)
def test_whatever_a_server_does_comes_back_as_a_value(
    behave: Behaviour, kind: FailureKind, reason: str
) -> None:
    result = broken(behave)

    assert result.kind is kind, result
    assert reason in result.reason


def test_tokens_that_came_before_a_failure_are_counted() -> None:
    assert broken(cut_after_a_token).tokens_received == 1


async def never(exchange: Exchange) -> None:
    await asyncio.sleep(60)


async def stalls_after_a_token(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.text("a")
    await asyncio.sleep(60)


async def comments_for_ever(exchange: Exchange) -> None:
    await exchange.head()
    while True:
        await exchange.send(b": still here\n\n")
        await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("behave", "tokens"), [(never, 0), (stalls_after_a_token, 1), (comments_for_ever, 0)]
)
def test_a_server_that_does_not_finish_has_timed_out(behave: Behaviour, tokens: int) -> None:
    result = broken(behave, timeout_s=0.1)

    assert result.kind is FailureKind.TIMED_OUT
    assert "0.1 s" in result.reason
    assert result.tokens_received == tokens


def test_the_last_chunk_need_not_be_ended_once_the_answer_is_whole() -> None:
    async def cut_after_the_finish(exchange: Exchange) -> None:
        await exchange.head("200 OK", "Content-Type: text/event-stream", "Transfer-Encoding: chunked")
        data = b'data: {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}\n\n'
        await exchange.send(b"%x\r\n%s\r\n" % (len(data), data))

    assert isinstance(outcome(cut_after_the_finish), Answer)


def test_no_server_is_a_failure_like_any_other() -> None:
    result = asyncio.run(send("http://127.0.0.1:1"))

    assert isinstance(result, Broken)
    assert (result.kind, result.reason) == (FailureKind.UNREACHABLE, "no connection: Connection refused")


def test_a_proxy_in_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    assert isinstance(outcome(answer_well), Answer)


@pytest.mark.slow
def test_a_hundred_requests_at_once_all_get_their_connection() -> None:
    async def all_at_once(url: str) -> list[Answer | Broken]:
        async with HttpSender(url, "awkward", clock=time.monotonic, timeout_s=20) as sender:
            return await asyncio.gather(*(sender.send(ASK) for _ in range(100)))

    everyone_is_here = asyncio.Barrier(100)

    async def wait_for_all(exchange: Exchange) -> None:
        await everyone_is_here.wait()
        await answer_well(exchange)

    with awkward_server(wait_for_all) as url:
        results = asyncio.run(all_at_once(url))

    assert [type(result) for result in results] == [Answer] * 100


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("localhost:8000", "http://localhost:8000"),
        ("10.0.0.7", "http://10.0.0.7"),
        (" http://h:1/ ", "http://h:1"),
        ("http://h:1/v1", "http://h:1"),
        ("https://h/gateway/v1/", "https://h/gateway"),
        ("http://h:1/v1/chat/completions", "http://h:1"),
        ("[::1]:8000", "http://[::1]:8000"),
        ("8000", "http://localhost:8000"),
        (":8000", "http://localhost:8000"),
    ],
)
def test_an_address_may_be_given_as_people_give_it(text: str, url: str) -> None:
    assert base_url(text) == url


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ftp://h",
        "http://",
        "http://h:port",
        "http://h:99999",
        "70000",
        "http:/h:1",
        "https:h",
        "h o st",
        "http://me:pw@h",
        "http://h?x=1",
    ],
)
def test_an_address_that_is_none_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadInput) as caught:
        base_url(text)

    assert "http://HOST:PORT" in caught.value.hint


def test_the_served_models_are_named_in_the_servers_order() -> None:
    with awkward_server(answer_well, {"data": [{"id": "base"}, {"id": "adapter"}]}) as url:
        assert asyncio.run(served_models(url)) == ["base", "adapter"]


@pytest.mark.parametrize("models", [{"data": []}, {"models": ["x"]}, [], "none"])
def test_a_server_that_names_no_models_has_failed(models: object) -> None:
    with awkward_server(answer_well, models) as url, pytest.raises(TargetFailed, match="/v1/models"):
        asyncio.run(served_models(url))


def test_a_server_may_tell_its_version_and_need_not() -> None:
    with awkward_server(answer_well) as url:
        assert asyncio.run(server_version(url)) == "1.2.3"

    assert asyncio.run(server_version("http://127.0.0.1:1")) is None


def test_a_missing_server_has_failed_before_anything_is_measured() -> None:
    with pytest.raises(TargetFailed, match="Connection refused"):
        asyncio.run(served_models("http://127.0.0.1:1"))
