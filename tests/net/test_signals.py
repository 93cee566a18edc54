"""A server in its own process that is killed, stopped and told to go, while it works."""

import os
import signal
import socket
import time
from pathlib import Path

import pytest

from tests.net.hostile import GOOD, asked, sent
from tests.net.http import connected, get, post, posted, read_answer
from tests.net.processes import INTERRUPTED, ServerProcess, Start, is_alive, serving
from tests.net.test_endings import read_rest
from tests.net.test_leaving import CHAT, gauge
from tests.net.waiting import read_past_first_event, wait_until

pytestmark = pytest.mark.slow

SLOW = Start(step_s=0.01)
LONG = {
    "messages": [{"role": "user", "content": "Hello"}],
    "stream": True,
    "ignore_eos": True,
    "max_tokens": 400,
}
SHORT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}


def engine_of(process: ServerProcess) -> int:
    pid = process.engine_pid
    assert pid is not None, "it has an engine"
    return pid


def test_when_the_server_is_killed_its_engine_goes_and_the_port_is_free_at_once() -> None:
    with serving(SLOW) as process:
        port, engine = process.port, engine_of(process)
        with posted(port, CHAT, LONG) as stream:
            read_past_first_event(stream)
            process.signal(signal.SIGKILL)
            process.wait()
            with serving(Start(port=port)) as second:
                assert second.port == port
                assert post(port, CHAT, SHORT).status == 200
            wait_until(lambda: not is_alive(engine), "the engine has gone", 2.0)


def test_a_port_in_use_is_said_at_once_and_its_owner_serves_on() -> None:
    with serving(Start()) as process, serving(Start(port=process.port), awaited=False) as second:
        assert second.wait() == 1
        assert f"port {process.port} on 127.0.0.1 is in use" in second.log
        assert post(process.port, CHAT, SHORT).status == 200


def test_sigterm_under_load_lets_all_answers_end_and_nobody_in() -> None:
    with serving(Start(step_s=0.01, shutdown_timeout_s=20.0)) as process:
        port = process.port
        with connected(port) as early, posted(port, CHAT, LONG) as one, posted(port, CHAT, LONG) as two:
            read_past_first_event(one)
            read_past_first_event(two)
            process.signal(signal.SIGTERM)
            wait_until(lambda: get(port, "/health").status == 503, "it says that it is going")
            late = post(port, CHAT, SHORT)
            assert (late.status, late.error) == (503, "the server is shutting down; ask another server")
            assert int(late.headers["retry-after"]) >= 1
            early.sendall(sent(GOOD))
            assert read_answer(early).status == 503, "nor one who had connected before"
            assert b"[DONE]" in read_rest(one)
            assert b"[DONE]" in read_rest(two)
        assert process.wait() == 0
        assert "Traceback" not in process.log


def test_an_answer_that_needs_longer_than_the_stop_may_take_ends_with_an_error() -> None:
    with serving(Start(step_s=0.05, shutdown_timeout_s=0.2)) as process:
        with posted(process.port, CHAT, LONG) as stream:
            read_past_first_event(stream)
            process.signal(signal.SIGTERM)
            rest = read_rest(stream)
        assert b"needed more than 0.2 s" in rest
        assert b"[DONE]" not in rest
        assert process.wait() == 0


def test_a_second_sigterm_ends_what_is_under_way_at_once() -> None:
    with serving(Start(step_s=0.05, shutdown_timeout_s=600.0)) as process:
        engine = engine_of(process)
        with posted(process.port, CHAT, LONG) as stream:
            read_past_first_event(stream)
            process.signal(signal.SIGTERM)
            wait_until(lambda: get(process.port, "/health").status == 503, "it is going")
            process.signal(signal.SIGTERM)
            rest = read_rest(stream)
        assert b"[DONE]" not in rest
        assert process.wait(10) == 0
        assert not is_alive(engine)
        assert "Traceback" not in process.log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_while_the_model_loads_leaves_nothing(number: signal.Signals) -> None:
    with serving(Start(load_s=60.0), awaited=False) as process:
        wait_until(lambda: process.engine_pid is not None, "it loads")
        engine = engine_of(process)
        process.signal(number)
        assert process.wait(10) == INTERRUPTED
        assert not is_alive(engine)
        assert "Traceback" not in process.log


def test_while_the_engine_stands_still_time_outs_hold_and_then_all_goes_on() -> None:
    with serving(Start(step_s=0.01, request_timeout_s=1.0)) as process:
        engine = engine_of(process)
        with posted(process.port, CHAT, LONG | {"max_tokens": 40}) as before:
            read_past_first_event(before)
            os.kill(engine, signal.SIGSTOP)
            try:
                began_at = time.monotonic()
                assert post(process.port, CHAT, SHORT).status == 504
                assert time.monotonic() - began_at < 10, "it waited for the engine"
                assert b"--request-timeout" in read_rest(before)
                assert get(process.port, "/v1/models").status == 200
                with posted(process.port, CHAT, SHORT) as during:
                    wait_until(lambda: gauge_of_load(process) >= 1, "it waits")
                    os.kill(engine, signal.SIGCONT)
                    assert read_answer(during).status == 200
            finally:
                os.kill(engine, signal.SIGCONT)
        assert process.engine_pid == engine, "nobody has started another one"
        wait_until(lambda: gauge(process, "headrace:free_blocks") == 64, "all blocks are free again")


def gauge_of_load(process: ServerProcess) -> int:
    return get(process.port, "/load").json["server_load"]


def test_an_engine_that_dies_with_a_thousand_clients_connected_comes_back() -> None:
    """Its new socket had a number beyond 1023, which select() does not take: five deaths, and the end."""
    with serving(Start()) as process:
        engine = engine_of(process)
        crowd = [socket.create_connection(("127.0.0.1", process.port), 20) for _ in range(1100)]
        for connection in crowd:
            connection.sendall(asked("GET", "/health").replace(b"Connection: close\r\n", b""))
        for connection in crowd:
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        os.kill(engine, signal.SIGKILL)
        wait_until(lambda: process.engine_pid not in {None, engine}, "another engine")
        wait_until(lambda: get(process.port, "/health").status == 200, "it is ready")
        assert post(process.port, CHAT, SHORT).status == 200
        for connection in crowd:
            connection.close()
        assert process.log.count("runs again") == 1


def test_an_engine_that_was_leaves_no_descriptor_behind() -> None:
    """Two stayed open for each that had died."""
    with serving(Start()) as process:
        before = descriptors(process.pid)
        for _ in range(2):
            engine = engine_of(process)
            os.kill(engine, signal.SIGKILL)
            wait_until(lambda gone=engine: process.engine_pid not in {None, gone}, "another engine")
            wait_until(lambda: get(process.port, "/health").status == 200, "it is ready")
        wait_until(lambda: descriptors(process.pid) == before, "as many descriptors as before")


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
