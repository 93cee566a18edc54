"""How a server and its engine end: in order, at once, by accident."""

import asyncio
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from headrace.core.errors import BadInput, EngineDied, ModelUnusable
from headrace.net.listening import bind
from headrace.net.server import Server
from tests.net.http import Answer, get, post, posted
from tests.net.scripted import ScriptedRecipe, crashing_recipe, endless_recipe, unusable_recipe
from tests.net.serving import RunningServer, running, service
from tests.net.waiting import read_past_first_event, wait_until

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]
LONG = {"messages": HELLO, "stream": True, "ignore_eos": True, "max_tokens": 200}
SLOW = ScriptedRecipe(step_s=0.01)


def pid_is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def engine_pid(server: RunningServer) -> int:
    assert server.serving is not None
    assert server.serving.engine_pid is not None
    return server.serving.engine_pid


@pytest.mark.slow
def test_draining_lets_answers_end_and_refuses_new_ones() -> None:
    with running(service(SLOW, shutdown_timeout_s=10)) as server:
        with posted(server.port, CHAT, {**LONG, "max_tokens": 60}) as connection:
            read_past_first_event(connection)
            server.stop()
            wait_until(lambda: get(server.port, "/health").status == 503, "it says that it is leaving")
            refused = post(server.port, CHAT, {"messages": HELLO})
            assert refused.status == 503
            assert "retry-after" in refused.headers
            rest = read_rest(connection)
        assert b'"finish_reason":"length"' in rest
        assert b"[DONE]" in rest
        server.join()
        assert pid_is_gone(engine_pid(server))


@pytest.mark.slow
def test_draining_ends_what_does_not_end_in_time_with_an_error() -> None:
    with running(service(SLOW, shutdown_timeout_s=0.1)) as server:
        with posted(server.port, CHAT, LONG) as connection:
            read_past_first_event(connection)
            server.stop()
            rest = read_rest(connection)
        assert b'"error":{"message":"the server stopped' in rest
        server.join()


@pytest.mark.slow
def test_a_second_signal_ends_at_once() -> None:
    with running(service(SLOW, shutdown_timeout_s=60)) as server:
        with posted(server.port, CHAT, LONG) as connection:
            read_past_first_event(connection)
            server.stop()
            server.stop()
            server.join(5)
        assert pid_is_gone(engine_pid(server))


@pytest.mark.slow
def test_a_killed_engine_gives_running_requests_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers: list[Answer] = []
    with running(service(SLOW)) as server:
        whole = threading.Thread(
            target=lambda: answers.append(post(server.port, CHAT, {**LONG, "stream": False}))
        )
        whole.start()
        with posted(server.port, CHAT, LONG) as connection:
            read_past_first_event(connection)
            os.kill(engine_pid(server), signal.SIGKILL)
            rest = read_rest(connection)
        whole.join(10)
        assert b'"error":{"message":"the engine\'s process has ended (killed by SIGKILL)' in rest
        assert b"[DONE]" not in rest, "half an answer must not look whole"
        assert answers[0].status == 503
    assert "2 requests are lost" in caplog.text


@pytest.mark.slow
def test_a_server_can_be_stopped_while_it_loads() -> None:
    others = set(multiprocessing.active_children())
    server = RunningServer(service(endless_recipe))
    server.begin()
    wait_until(lambda: bool(set(multiprocessing.active_children()) - others), "the engine's process starts")
    server.stop()
    server.join(10)
    assert server.serving is None
    assert server.error is None
    assert set(multiprocessing.active_children()) <= others


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "error", "words"),
    [(unusable_recipe, ModelUnusable, "cut off"), (crashing_recipe, EngineDied, "out of luck")],
)
def test_an_engine_that_cannot_start_says_why(recipe: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words), running(service(recipe)):  # pyright: ignore[reportArgumentType] - of a union
        pass


def test_a_port_in_use_is_refused_by_number() -> None:
    with bind("127.0.0.1", 0) as first:
        first.listen()
        port = first.getsockname()[1]
        with pytest.raises(BadInput, match=f"port {port} on 127.0.0.1 is in use"):
            bind("127.0.0.1", port)


def test_a_port_that_another_server_has_taken_is_refused_though_it_still_loads() -> None:
    """Both took it, and the second said so when it had loaded its model."""
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(BadInput, match=f"port {port} on 127.0.0.1 is in use"):
            bind("127.0.0.1", port)
        first.open()
        with socket.create_connection(("127.0.0.1", port)), first.accept()[0]:
            pass  # closed here first, which is what keeps a port
    bind("127.0.0.1", port).close()


@pytest.mark.parametrize(
    ("host", "port"), [("256.1.1.1", 0), ("no.such.host.invalid", 0), ("127.0.0.1", 99999)]
)
def test_an_address_that_is_none_is_refused(host: str, port: int) -> None:
    with pytest.raises(BadInput, match="cannot listen"):
        bind(host, port)


SERVER_PROGRAM = """
from headrace.net.listening import bind
from headrace.net.server import Server, serve
from tests.net.scripted import ScriptedRecipe
from tests.net.serving import service

if __name__ == "__main__":
    with bind("127.0.0.1", 0) as listener:
        serve(
            service(ScriptedRecipe(step_s=0.01), shutdown_timeout_s=20),
            listener,
            lambda serving: print(serving.url, serving.engine_pid, flush=True),
        )
"""


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    path = tmp_path / "server.py"
    path.write_text(SERVER_PROGRAM)
    return [sys.executable, str(path)]


def started(program: list[str]) -> tuple[subprocess.Popen[str], int, int]:
    """The process, its port and its engine's pid. In a session of its own, as under a terminal."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(
        program,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environment,
    )
    assert process.stdout is not None
    url, pid = process.stdout.readline().split()
    return process, int(url.rpartition(":")[2]), int(pid)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_whole_group_drains_and_exits_with_0(
    program: list[str], number: signal.Signals
) -> None:
    """As Ctrl-C on a terminal and a service manager send it: to the engine too."""
    process, port, pid = started(program)
    with process, posted(port, CHAT, {**LONG, "max_tokens": 50}) as connection:
        read_past_first_event(connection)
        os.killpg(process.pid, number)
        rest = read_rest(connection)
        assert process.wait(15) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert b'"finish_reason":"length"' in rest
    assert pid_is_gone(pid)


@pytest.mark.slow
def test_an_engine_does_not_outlive_a_killed_server(program: list[str]) -> None:
    process, port, pid = started(program)
    with process, posted(port, CHAT, LONG) as connection:
        read_past_first_event(connection)
        process.kill()
        process.wait(5)
    wait_until(lambda: pid_is_gone(pid), "the engine's process ends")


@pytest.mark.slow
def test_an_idle_server_uses_no_cpu(program: list[str]) -> None:
    process, port, pid = started(program)
    with process:
        assert post(port, CHAT, {"messages": HELLO, "max_tokens": 3}).status == 200
        time.sleep(0.7)  # past the recount of the blocks
        before = cpu_s(pid)
        time.sleep(0.5)
        assert cpu_s(pid) - before <= 0.02, "two ticks of the clock"
        process.terminate()


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def read_rest(connection: socket.socket) -> bytes:
    rest = b""
    while data := connection.recv(1 << 16):
        rest += data
    return rest


def test_a_server_that_is_stopped_while_it_loads_says_that_it_never_served() -> None:
    """Its command ended with 0, as if it had."""

    async def stopped() -> bool:
        with bind("127.0.0.1", 0) as listener:
            server = Server(service(), listener)
            running = asyncio.create_task(server.run(lambda _: None))
            await asyncio.sleep(0)
            server.stop()
            return await running

    assert not asyncio.run(stopped())
