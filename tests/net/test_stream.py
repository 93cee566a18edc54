"""A stream holds a bounded number of outputs, however slowly its listener reads."""

import asyncio
import http.client
import json

import pytest

from headrace.core.bill import CAUSES, Bill
from headrace.core.errors import EngineDied
from headrace.core.output import FirstToken, Output, TokenLogprobs
from headrace.core.request import FinishReason, Request, SamplingParams
from headrace.net.engine_client import MOST_HELD_OUTPUTS, Stream
from tests.net.http import connected, post, posted, read_answer
from tests.net.serving import RunningServer

FIRST = FirstToken(Bill((0,) * len(CAUSES)), 0, 0, 0, 2, 0)
REQUEST = Request("r", (1, 2), SamplingParams(max_tokens=5), 0, 0)


async def take(stream: Stream) -> list[Output]:
    outputs = [await stream.get()]
    while outputs[-1].finish_reason is None:
        outputs.append(await stream.get())
    return outputs


def test_a_listener_that_keeps_up_gets_every_output_by_itself() -> None:
    stream = Stream(REQUEST)
    for token in range(MOST_HELD_OUTPUTS - 1):
        stream.put(Output("r", [token]))
    stream.put(Output("r", [7], FinishReason.STOP))
    outputs = asyncio.run(take(stream))
    assert [output.token_ids for output in outputs] == [[token] for token in range(255)] + [[7]]


def test_tokens_of_a_listener_that_does_not_are_joined_and_none_is_lost() -> None:
    stream = Stream(REQUEST)
    for token in range(1000):
        stream.put(Output("r", [token]))
    stream.put(Output("r", [7], FinishReason.STOP, stop_token_id=7))
    outputs = asyncio.run(take(stream))
    assert len(outputs) == MOST_HELD_OUTPUTS
    assert [token for output in outputs for token in output.token_ids] == [*range(1000), 7]
    assert (outputs[-1].finish_reason, outputs[-1].stop_token_id) == (FinishReason.STOP, 7)


async def sizes_as_they_come(stream: Stream, tokens: int) -> list[int]:
    """Tokens of each output, taken as soon as it can be."""
    listening = asyncio.create_task(take(stream))
    for token in range(tokens):
        first = FIRST if token == 0 else None
        stream.put(Output("r", [token], FinishReason.LENGTH if token == tokens - 1 else None, first=first))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    return [len(output.token_ids) for output in await listening]


@pytest.mark.parametrize(
    ("tokens_at_once", "sizes"),
    [(1, [1] * 12), (4, [1, 4, 4, 3]), (11, [1, 11]), (100, [1, 11]), (None, [12])],
)
def test_a_listener_is_woken_for_as_many_tokens_as_it_asks_for(
    tokens_at_once: int | None, sizes: list[int]
) -> None:
    stream = Stream(REQUEST, tokens_at_once=tokens_at_once)
    assert asyncio.run(sizes_as_they_come(stream, 12)) == sizes


def test_a_listener_that_comes_late_finds_what_is_due_and_waits_for_the_rest() -> None:
    async def come_late() -> list[list[int]]:
        stream = Stream(REQUEST, tokens_at_once=2)
        for token in range(6):
            stream.put(Output("r", [token], first=FIRST if token == 0 else None))
        found = [(await stream.get()).token_ids for _ in range(3)]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stream.get(), 0.01)
        stream.put(Output("r", [6]))
        return [*found, (await stream.get()).token_ids]

    assert asyncio.run(asyncio.wait_for(come_late(), 10)) == [[0], [1, 2], [3, 4], [5, 6]]


def test_an_error_wakes_whoever_waits_for_more_tokens() -> None:
    async def wait() -> None:
        stream = Stream(REQUEST, tokens_at_once=None)
        listening = asyncio.create_task(stream.get())
        stream.put(Output("r", [1], first=FIRST))
        await asyncio.sleep(0)
        stream.fail(EngineDied("gone"))
        await listening

    with pytest.raises(EngineDied, match="gone"):
        asyncio.run(wait())


def test_log_probabilities_are_joined_with_their_tokens() -> None:
    stream = Stream(REQUEST)
    for token in range(1000):
        stream.put(Output("r", [token], logprobs=[TokenLogprobs(token, -0.5, 1, ((token, -0.5),))]))
    stream.put(Output("r", [7], FinishReason.STOP, logprobs=[TokenLogprobs(7, -1.0, 2, ())]))
    for output in asyncio.run(take(stream)):
        assert output.logprobs is not None
        assert [each.token_id for each in output.logprobs] == output.token_ids


def test_an_error_goes_before_what_is_still_held() -> None:
    stream = Stream(REQUEST)
    stream.put(Output("r", [1]))
    stream.fail(EngineDied("gone"))
    with pytest.raises(EngineDied, match="gone"):
        asyncio.run(stream.get())


def test_a_client_that_does_not_read_holds_up_nobody(server: RunningServer) -> None:
    body = {"prompt": "Hello", "stream": True, "max_tokens": 500, "ignore_eos": True}
    with posted(server.port, "/v1/completions", body) as lazy:
        for _ in range(3):
            assert post(server.port, "/v1/completions", {**body, "max_tokens": 20}).status == 200
        assert read_answer(lazy).body.endswith(b"data: [DONE]\n\n")


def test_a_connection_can_carry_one_request_after_another(server: RunningServer) -> None:
    raw = b'{"prompt": "Hello", "max_tokens": 2}'
    request = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(raw), raw)
    with connected(server.port) as connection:
        for _ in range(3):
            connection.sendall(request)
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            assert answer.status == 200
            assert json.loads(answer.read())["usage"]["completion_tokens"] == 2
