"""A stream holds a bounded number of outputs, however slowly its listener reads."""

import asyncio

import pytest

from headrace.core.errors import EngineDied
from headrace.core.output import Output, TokenLogprobs
from headrace.core.request import FinishReason, Request, SamplingParams
from headrace.net.engine_client import MOST_HELD_OUTPUTS, Stream
from tests.net.http import connected, post, posted, read_answer
from tests.net.serving import RunningServer

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
            received = b""
            while not received.endswith(b"}}}"):
                received += connection.recv(4096)
            assert received.startswith(b"HTTP/1.1 200")
