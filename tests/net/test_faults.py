"""What goes wrong in a server's life, and that nothing hangs, leaks or lies because of it."""

import dataclasses
import json
import logging
import re
import socket
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.core.errors import EngineDied
from headrace.core.settings import Settings
from headrace.net import listening, restarts
from headrace.net.admission import Bounds
from headrace.net.connection import Patient
from headrace.net.door import Door
from tests.net.http import Answer, connected, get, post, posted, read_answer
from tests.net.scripted import SETTINGS, OnceRecipe, ScriptedRecipe, dying_recipe
from tests.net.serving import RunningServer, running, service
from tests.net.test_endings import read_rest
from tests.net.test_leaving import assert_nothing_is_left, gauge
from tests.net.test_metrics import parse
from tests.net.waiting import read_past_first_event, wait_until

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]
LONG = {"messages": HELLO, "stream": True, "ignore_eos": True, "max_tokens": 400}
SHORT = {"messages": HELLO, "max_tokens": 3}
SLOW = ScriptedRecipe(step_s=0.01)


def settings_with(**changes: int) -> Settings:
    return dataclasses.replace(SETTINGS, **changes)


def counters(server: RunningServer) -> dict[object, float]:
    """All but the CPU time of the engine's process, which begins anew with the process."""
    series = parse(get(server.port, "/metrics").body.decode())
    counts = re.compile(r"(?!headrace:engine_process_).*(_total|_count|_sum|_bucket)$")
    return {key: value for key, value in series.items() if counts.match(key[0])}


# --- the engine dies -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_engine_that_is_killed_comes_back_whole_and_metrics_go_on() -> None:
    with running(service(SLOW)) as server:
        assert post(server.port, CHAT, SHORT).status == 200
        before = counters(server)
        with posted(server.port, CHAT, LONG) as stream, posted(server.port, CHAT, SHORT | LONG) as other:
            read_past_first_event(stream)
            read_past_first_event(other)
            killed = server.kill_engine()
            for rest in (read_rest(stream), read_rest(other)):
                assert b'"error":{"message":"the engine\'s process has ended (killed by SIGKILL)' in rest
                assert b"[DONE]" not in rest
        away = get(server.port, "/health")
        if away.status != 200:  # it may be back already
            assert away.status == 503
            assert int(away.headers["retry-after"]) >= 1
            assert "being started again" in away.error
        wait_until(lambda: get(server.port, "/health").status == 200, "the engine is back")
        assert server.engine_pid not in {killed, None}
        assert post(server.port, CHAT, SHORT).status == 200
        assert_nothing_is_left(server)
        after = counters(server)
        assert [key for key in before if after[key] < before[key]] == []
        assert gauge(server, "headrace:engine_restarts_total") == 1
        assert gauge(server, "vllm:request_success_total", 'finished_reason="error"') == 2
        assert gauge(server, "vllm:prompt_tokens_total") == 4 * len("user: Hello\nassistant: ")


@pytest.mark.slow
def test_a_request_that_was_running_when_the_engine_died_is_told_when_to_come_back() -> None:
    """It got a 503 without a Retry-After; only those who came later were told."""
    with running(service(SLOW)) as server, posted(server.port, CHAT, {**LONG, "stream": False}) as waiting:
        wait_until(lambda: gauge(server, "vllm:num_requests_running") == 1, "it runs")
        server.kill_engine()
        answer = read_answer(waiting)
    assert answer.status == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert "killed by SIGKILL); it is being started again; come back in" in answer.error


@pytest.mark.slow
def test_an_engine_killed_while_idle_is_back_before_anybody_asks() -> None:
    with running(service()) as server:
        killed = server.kill_engine()
        wait_until(lambda: server.engine_pid not in {killed, None}, "a new engine")
        wait_until(lambda: get(server.port, "/health").status == 200, "it is ready")
        assert post(server.port, CHAT, SHORT).status == 200


@pytest.mark.slow
def test_an_engine_that_cannot_start_again_ends_the_server_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restarts, "FIRST_WAIT_S", 0.01)
    server = RunningServer(service(OnceRecipe(tmp_path / "started")))
    server.start()
    server.kill_engine()
    server.join(60)
    assert isinstance(server.error, EngineDied)
    assert "5 times in a row" in str(server.error)
    assert "somebody has taken the file away" in str(server.error)


@pytest.mark.slow
def test_a_request_that_kills_every_engine_ends_the_server_after_five(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """And what the prompts said is in no log."""
    monkeypatch.setattr(restarts, "FIRST_WAIT_S", 0.01)
    caplog.set_level(logging.DEBUG)
    server = RunningServer(service(dying_recipe))
    server.start()
    poison = {"messages": [{"role": "user", "content": "tell nobody: xyzzy"}]}
    statuses: set[int] = set()
    while server.alive:
        try:
            statuses.add(post(server.port, CHAT, poison).status)
        except (OSError, IndexError):  # it has closed its port, or the connection on its way out
            server.join(30)
    assert statuses == {503}
    assert isinstance(server.error, EngineDied)
    assert "MemoryError: no room for 1 chunks" in str(server.error)
    said = capfd.readouterr()
    assert "MemoryError" in said.err
    assert "xyzzy" not in said.err + said.out + caplog.text


@pytest.mark.slow
def test_a_server_can_be_stopped_while_its_engine_is_away(tmp_path: Path) -> None:
    server = RunningServer(service(OnceRecipe(tmp_path / "started")))
    server.start()
    server.kill_engine()
    wait_until(lambda: server.engine_pid is None, "it is noticed")
    server.stop()
    server.join(10)
    assert server.error is None


# --- too many requests ---------------------------------------------------------------------------------


def at_once(server: RunningServer, body: object, times: int) -> list[Answer]:
    with ThreadPoolExecutor(times) as pool:
        waiting = [pool.submit(post, server.port, CHAT, body) for _ in range(times)]
        return [each.result() for each in waiting]


@pytest.mark.slow
def test_beyond_the_limit_requests_are_refused_with_a_time_to_come_back() -> None:
    with running(service(SLOW, bounds=Bounds(max_num_queued_reqs=4))) as server:
        answers = at_once(server, {**LONG, "stream": False, "max_tokens": 100}, times=40)
        served = [answer for answer in answers if answer.status == 200]
        refused = [answer for answer in answers if answer.status == 503]
        assert len(served) + len(refused) == 40
        assert len(served) >= 4
        assert refused
        assert all(1 <= int(answer.headers["retry-after"]) <= 60 for answer in refused)
        assert all("--max-num-queued-reqs is 4" in answer.error for answer in refused)
        assert gauge(server, "vllm:admission_rejections_total", 'reason="max_num_queued_reqs"') == len(
            refused
        )
        assert_nothing_is_left(server)
        assert post(server.port, CHAT, SHORT).status == 200


@pytest.mark.slow
def test_what_no_retry_could_mend_is_refused_as_such_though_there_is_no_room() -> None:
    """In a full house a field that this server never takes was answered 503: come again later."""
    with running(service(bounds=Bounds(max_num_queued_reqs=0))) as server:
        assert post(server.port, CHAT, SHORT).status == 503
        assert post(server.port, CHAT, {**SHORT, "priority": 5}).status == 400
        assert post(server.port, CHAT, {**SHORT, "stop_token_ids": [10**6]}).status == 400


@pytest.mark.slow
def test_prompt_tokens_beyond_the_limit_are_refused_until_they_are_computed() -> None:
    settings_with_slow_prefill = ScriptedRecipe(step_s=0.2)
    with running(service(settings_with_slow_prefill, bounds=Bounds(max_num_queued_tokens=100))) as server:
        long_prompt = {"messages": [{"role": "user", "content": "x" * 300}], "max_tokens": 2}
        with posted(server.port, CHAT, long_prompt) as first:
            wait_until(lambda: post(server.port, CHAT, SHORT).status == 503, "the prompt counts")
            assert read_answer(first).status == 200
        assert post(server.port, CHAT, SHORT).status == 200


@pytest.mark.slow
def test_a_tenfold_overload_never_puts_more_before_the_engine_than_there_are_places() -> None:
    """So those admitted share their steps with as few as ever, and wait no longer."""
    places, clients, answers = 4, 40, 24
    before_the_engine = {"vllm:num_requests_running", "vllm:num_requests_waiting"}
    statuses: list[int] = []
    inside: list[float] = []

    def keep_asking() -> None:
        while statuses.count(200) < answers:
            status = post(server.port, CHAT, SHORT | {"max_tokens": 20}).status
            statuses.append(status)
            if status != 200:
                time.sleep(0.05)  # as an impatient client would

    with running(service(SLOW, bounds=Bounds(max_num_queued_reqs=places))) as server:
        with ThreadPoolExecutor(clients) as crowd:
            asking = [crowd.submit(keep_asking) for _ in range(clients)]
            while not all(each.done() for each in asking):
                series = parse(get(server.port, "/metrics").body.decode())
                inside.append(sum(amount for key, amount in series.items() if key[0] in before_the_engine))
        for each in asking:
            each.result()
    assert 0 < max(inside) <= places
    assert set(statuses) == {200, 503}


# --- requests that take too long -----------------------------------------------------------------------


@pytest.mark.slow
def test_a_request_that_no_step_takes_in_is_given_back_with_a_reason() -> None:
    one_seat = ScriptedRecipe(settings_with(max_num_seqs=1), step_s=0.01)
    with running(service(one_seat, bounds=Bounds(queue_timeout_s=0.2))) as server:
        with posted(server.port, CHAT, LONG) as sitting:
            read_past_first_event(sitting)
            waited_in_vain = post(server.port, CHAT, {**SHORT, "stream": True})
            assert waited_in_vain.status == 503
            assert "--queue-timeout" in waited_in_vain.error
            assert int(waited_in_vain.headers["retry-after"]) >= 1
            assert b"[DONE]" in read_rest(sitting), "one that has begun is not bound by it"
        assert gauge(server, "headrace:request_timeouts_total", 'phase="queue"') == 1
        assert_nothing_is_left(server)


@pytest.mark.slow
def test_an_answer_that_takes_too_long_ends_with_an_error_and_its_blocks_come_back() -> None:
    with running(service(SLOW, bounds=Bounds(request_timeout_s=0.3))) as server:
        whole = post(server.port, CHAT, {**LONG, "stream": False})
        assert whole.status == 504
        assert "--request-timeout" in whole.error
        with posted(server.port, CHAT, LONG) as connection:
            streamed = read_rest(connection)
        assert b"not done within 0.3 s (--request-timeout), after " in streamed
        assert b"[DONE]" not in streamed
        assert post(server.port, CHAT, SHORT).status == 200
        assert gauge(server, "headrace:request_timeouts_total", 'phase="request"') == 2
        assert_nothing_is_left(server)


# --- clients that do not do their part -----------------------------------------------------------------


@pytest.fixture
def impatient_server(monkeypatch: pytest.MonkeyPatch) -> Generator[RunningServer, None, None]:
    monkeypatch.setattr(Door, "body_within_s", 0.2)
    monkeypatch.setattr(Patient, "head_within_s", 0.2)
    with running(service()) as started:
        yield started


@pytest.mark.slow
@pytest.mark.parametrize("sent", [b"", b'{"messages": [', b"x" * 70_000])
def test_a_body_that_stops_halfway_is_answered_408(impatient_server: RunningServer, sent: bytes) -> None:
    with connected(impatient_server.port) as connection:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(sent) + 10}\r\n\r\n"
        connection.sendall(head.encode() + sent)
        answer = read_answer(connection)
    assert answer.status == 408
    assert "within 0.2 s" in answer.error
    assert post(impatient_server.port, CHAT, SHORT).status == 200


@pytest.mark.slow
@pytest.mark.parametrize("sent", [b"", b"GET /hea", b"POST / HTTP/1.1\r\nHost: x\r\n"])
def test_a_connection_without_a_whole_head_is_closed(impatient_server: RunningServer, sent: bytes) -> None:
    with connected(impatient_server.port) as connection:
        connection.sendall(sent)
        assert closed(connection)


@pytest.mark.slow
def test_drops_of_a_head_do_not_buy_time(impatient_server: RunningServer) -> None:
    """A head that came byte by byte held its connection for ever."""
    with connected(impatient_server.port) as connection:
        wait_until(lambda: not can_send(connection), "it is cut off")


def can_send(connection: socket.socket) -> bool:
    try:
        connection.sendall(b"G")
    except OSError:
        return False
    return True


def test_a_request_that_takes_longer_than_a_head_may_is_not_cut(impatient_server: RunningServer) -> None:
    with connected(impatient_server.port) as connection:
        for _ in range(2):  # on one connection, one after the other
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")


def closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


NEVER_READ = ScriptedRecipe(settings_with(max_model_len=8_000, num_gpu_blocks=502))
EXPENSIVE = {**LONG, "max_tokens": 7_900}


@contextmanager
def who_does_not_read(server: RunningServer) -> Generator[socket.socket, None, None]:
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(20)
        connection.connect(("127.0.0.1", server.port))
        send_post(connection, EXPENSIVE)
        yield connection


@pytest.mark.slow
def test_a_client_that_does_not_read_yet_holds_no_blocks_once_its_answer_is_computed() -> None:
    with running(service(NEVER_READ)) as server, who_does_not_read(server) as connection:
        wait_until(lambda: gauge(server, "vllm:generation_tokens_total") == 7_900, "it is computed", 60)
        wait_until(lambda: gauge(server, "headrace:free_blocks") == 501, "the blocks are free")
        assert post(server.port, CHAT, SHORT).status == 200
        received = b""
        while b"[DONE]" not in received[-100:]:
            received += connection.recv(1 << 16)
        assert received.count(b"The na") == 0, "tokens that nobody took were joined"


@pytest.mark.slow
def test_a_client_that_never_reads_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "NOT_READ_FOR_MS", 100)
    recipe = dataclasses.replace(NEVER_READ, step_s=0.0005)
    with running(service(recipe)) as server, who_does_not_read(server):
        aborted = 'finished_reason="abort"'
        wait_until(lambda: gauge(server, "vllm:request_success_total", aborted) == 1, "it is cut off", 60)
        wait_until(lambda: gauge(server, "headrace:free_blocks") == 501, "the blocks are free")


def send_post(connection: socket.socket, body: object) -> None:
    raw = json.dumps(body).encode()
    connection.sendall(
        f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n\r\n".encode() + raw
    )
