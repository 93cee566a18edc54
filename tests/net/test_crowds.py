"""A thousand connections at once: idle, half a head, streaming; and more than there are descriptors for."""

import json
import os
import signal
import socket
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.net.hostile import GOOD, asked, body, sent
from tests.net.http import get, post, read_answer
from tests.net.processes import ServerProcess, Start, serving
from tests.net.test_leaving import CHAT, gauge
from tests.net.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.alone]

CROWD = 1000
SHORT = json.loads(GOOD)


@contextmanager
def crowd(port: int, size: int = CROWD) -> Generator[list[socket.socket], None, None]:
    with ExitStack() as stack:
        yield [stack.enter_context(socket.create_connection(("127.0.0.1", port), 60)) for _ in range(size)]


def cpu_s(pid: int) -> float:
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(ticks[11]) + int(ticks[12])) / 100


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@pytest.fixture(scope="module")
def server() -> Generator[ServerProcess, None, None]:
    with serving(Start(step_s=0.001)) as process:
        yield process


@pytest.mark.parametrize("sent_so_far", [b"", b"GET /hea", sent(GOOD)[:-5]], ids=["idle", "head", "body"])
def test_a_thousand_who_do_not_ask_hold_up_nobody(server: ServerProcess, sent_so_far: bytes) -> None:
    before = descriptors(server.pid)
    with crowd(server.port) as connections:
        for connection in connections:
            connection.sendall(sent_so_far)
        wait_until(lambda: descriptors(server.pid) >= before + CROWD, "all are connected")
        spent_s = cpu_s(server.pid)
        for _ in range(20):
            assert post(server.port, CHAT, SHORT).status == 200
        assert cpu_s(server.pid) - spent_s < 2.0, "who waits costs nothing"
    wait_until(lambda: descriptors(server.pid) == before, "all descriptors are back")
    assert gauge(server, "headrace:free_blocks") == 64


def test_a_thousand_streams_at_once_all_come_to_their_end(server: ServerProcess) -> None:
    """Each in its turn: the engine has seats for 32."""
    raw = sent(body(stream=True, max_tokens=8, ignore_eos=True))
    before = descriptors(server.pid)
    with crowd(server.port) as connections:
        for connection in connections:
            connection.sendall(raw)
        answers = [read_answer(connection) for connection in connections]
    assert {answer.status for answer in answers} == {200}
    assert {answer.events[-1] for answer in answers} == {"[DONE]"}
    assert len({answer.text for answer in answers}) == 1
    wait_until(lambda: descriptors(server.pid) == before, "all descriptors are back")
    wait_until(lambda: gauge(server, "headrace:free_blocks") == 64, "all blocks are back")


def test_a_thousand_who_leave_at_once_leave_nothing(server: ServerProcess) -> None:
    raw = sent(body(stream=True, max_tokens=400, ignore_eos=True))
    with crowd(server.port) as connections:
        for connection in connections:
            connection.sendall(raw)
        wait_until(lambda: get(server.port, "/load").json["server_load"] == CROWD, "all are inside", 60)
    wait_until(lambda: get(server.port, "/load").json["server_load"] == 0, "all are gone", 60)
    wait_until(lambda: gauge(server, "headrace:free_blocks") == 64, "all blocks are back")
    assert gauge(server, "vllm:num_requests_waiting") == 0
    assert post(server.port, CHAT, SHORT).status == 200


def test_beyond_the_descriptors_clients_are_turned_away_and_the_others_served() -> None:
    """asyncio tried again 2,048 times a second: two megabytes of tracebacks, and nobody was served."""
    with serving(Start(most_descriptors=256, step_s=0.001)) as process:
        port = process.port
        with crowd(port, 150) as served, crowd(port, 350) as others:
            for connection in served:
                connection.sendall(sent(GOOD)[:-5])
            statuses = [turned_away(connection) for connection in others]
            assert statuses.count(503) > 250
            for connection in served:
                connection.sendall(sent(GOOD)[-5:])
                assert read_answer(connection).status == 200
        wait_until(lambda: post(port, CHAT, SHORT).status == 200, "there is room again")
        assert process.log.count("\n") <= 3, "a line, not one for each"
        assert "connections turned away with 503" in process.log


def test_an_engine_comes_back_while_clients_have_all_descriptors_they_may_have() -> None:
    with serving(Start(most_descriptors=256)) as process:
        engine = process.engine_pid
        with crowd(process.port, 400):
            wait_until(lambda: "turned away" in process.log, "it is full")
            assert engine is not None
            os.kill(engine, signal.SIGKILL)
            wait_until(lambda: "runs again" in process.log, "the engine is back", 30)
        wait_until(lambda: post(process.port, CHAT, SHORT).status == 200, "it serves")


def turned_away(connection: socket.socket) -> int | None:
    """The status that came unasked for; None: it is waited for a question."""
    connection.settimeout(0.05)
    try:
        answer = read_answer(connection)
    except TimeoutError:
        return None
    except ConnectionResetError:
        return 503
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.json["error"]["code"] == answer.status
    return answer.status


def test_a_full_house_says_so_to_those_who_have_asked_already() -> None:
    with (
        serving(Start(most_descriptors=256)) as process,
        crowd(process.port, 250),
        crowd(process.port, 1) as (late,),
    ):
        late.sendall(asked("GET", "/health"))
        assert late.recv(4096).startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
