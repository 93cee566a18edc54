"""A client that leaves gives its blocks back; nothing is left of anybody."""

import re
import threading
import time
from collections.abc import Generator
from typing import Any, Protocol

import pytest

from tests.net.http import get, post, posted
from tests.net.scripted import SETTINGS, ScriptedRecipe
from tests.net.serving import RunningServer, running, service
from tests.net.waiting import read_past_first_event, wait_until

CHAT = "/v1/chat/completions"
STEP_S = 0.005


@pytest.fixture(scope="module")
def slow_server() -> Generator[RunningServer, None, None]:
    """Its answers take long enough to be left."""
    with running(service(ScriptedRecipe(step_s=STEP_S))) as started:
        yield started


class HasPort(Protocol):
    @property
    def port(self) -> int: ...


def gauge(server: HasPort, name: str, labels: str = "") -> float:
    text = get(server.port, "/metrics").body.decode()
    found = re.search(rf"^{name}{{[^}}]*{labels}[^}}]*}} (\S+)$", text, re.MULTILINE)
    assert found, f"no {name} in the metrics"
    return float(found[1])


def assert_nothing_is_left(server: RunningServer) -> None:
    wait_until(
        lambda: gauge(server, "headrace:free_blocks") == SETTINGS.usable_blocks, "all blocks are free again"
    )
    assert gauge(server, "vllm:num_requests_running") == 0
    assert gauge(server, "vllm:num_requests_waiting") == 0


def aborted(server: RunningServer) -> float:
    return gauge(server, "vllm:request_success_total", 'finished_reason="abort"')


def body(place: int, *, stream: bool, tokens: int = 400) -> dict[str, Any]:
    text = f"client {place} " + "x" * (place % 7 * 10)
    return {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": stream,
    }


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_before_its_first_token_gives_its_blocks_back(
    slow_server: RunningServer, stream: bool
) -> None:
    before = aborted(slow_server)
    with posted(slow_server.port, CHAT, body(0, stream=stream)):
        wait_until(lambda: gauge(slow_server, "headrace:free_blocks") < SETTINGS.usable_blocks, "it runs")
    assert_nothing_is_left(slow_server)
    assert aborted(slow_server) == before + 1


def test_a_client_that_leaves_in_the_middle_of_a_stream_gives_its_blocks_back(
    slow_server: RunningServer,
) -> None:
    before = aborted(slow_server)
    with posted(slow_server.port, CHAT, body(0, stream=True)) as connection:
        read_past_first_event(connection)
    assert_nothing_is_left(slow_server)
    assert aborted(slow_server) == before + 1


def test_a_client_that_leaves_while_its_body_is_read_was_never_there(slow_server: RunningServer) -> None:
    with posted(slow_server.port, CHAT, b"{", Content_Length="100"):
        pass
    assert_nothing_is_left(slow_server)


def test_blocks_are_back_while_others_keep_the_engine_busy(slow_server: RunningServer) -> None:
    """That it is the very next step is shown in test_engine_loop; here the whole way is real."""
    with posted(slow_server.port, CHAT, body(1, stream=True)) as stays:
        read_past_first_event(stays)
        with posted(slow_server.port, CHAT, body(2, stream=True)) as leaves:
            read_past_first_event(leaves)
        left_at = gauge(slow_server, "headrace:step_tokens_count")
        wait_until(lambda: gauge(slow_server, "vllm:num_requests_running") == 1, "only one runs")
        assert gauge(slow_server, "headrace:step_tokens_count") - left_at < 100
    assert_nothing_is_left(slow_server)


@pytest.mark.slow
def test_a_crowd_that_leaves_whenever_it_likes_leaves_nothing_behind(slow_server: RunningServer) -> None:
    stayed: list[int] = []

    def visit(place: int) -> None:
        stream = place % 2 == 0
        with posted(slow_server.port, CHAT, body(place, stream=stream, tokens=30)) as connection:
            if place % 4 == 0:
                read_past_first_event(connection)
            elif place % 4 == 1:
                time.sleep(place % 13 * STEP_S)
            elif place % 4 == 2:
                return
            else:
                connection.recv(1 << 16)
                stayed.append(place)

    threads = [threading.Thread(target=visit, args=(place,)) for place in range(200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert_nothing_is_left(slow_server)
    assert len(stayed) == 50
    assert post(slow_server.port, CHAT, body(1, stream=False, tokens=3)).status == 200


@pytest.mark.slow
def test_a_thousand_requests_leave_nothing_behind(server: RunningServer) -> None:
    statuses: list[int] = []

    def visit(places: range) -> None:
        for place in places:
            answer = post(server.port, CHAT, body(place, stream=place % 3 == 0, tokens=1 + place % 9))
            statuses.append(answer.status)

    threads = [threading.Thread(target=visit, args=(range(first, 1000, 16),)) for first in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert statuses == [200] * 1000
    assert_nothing_is_left(server)
