"""`--uds`: who may have the file, and that it goes when its server goes."""

import asyncio
import os
import signal
import socket
import stat
from collections.abc import Generator
from pathlib import Path

import pytest
import uvicorn
import uvicorn.server
from starlette.types import Receive, Scope, Send

from headrace.core.errors import BadInput
from headrace.net.connection import Patient
from headrace.net.listening import bind_uds
from tests.net.hostile import GOOD, asked, body, sent
from tests.net.processes import ServerProcess, Start, serving
from tests.net.waiting import wait_until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "headrace.sock"


@pytest.fixture
def server(path: Path) -> Generator[ServerProcess, None, None]:
    with serving(Start(uds=str(path))) as process:
        yield process


def talk(path: Path, raw: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20)
        connection.connect(str(path))
        connection.sendall(raw)
        received = b""
        while data := connection.recv(1 << 16):
            received += data
        return received


@pytest.mark.slow
def test_it_answers_and_takes_its_file_away(server: ServerProcess, path: Path) -> None:
    assert f"serving scripted at unix:{path}\n" in server.log
    assert talk(path, sent(GOOD)).startswith(b"HTTP/1.1 200")
    assert b"data: [DONE]" in talk(path, sent(body(stream=True)))
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    assert not path.exists()


@pytest.mark.slow
def test_what_a_killed_server_leaves_is_taken_over(server: ServerProcess, path: Path) -> None:
    server.signal(signal.SIGKILL)
    server.wait()
    assert path.is_socket()
    with serving(Start(uds=str(path))):
        assert talk(path, sent(GOOD)).startswith(b"HTTP/1.1 200")


@pytest.mark.slow
def test_what_somebody_serves_is_left_alone(server: ServerProcess, path: Path) -> None:
    with serving(Start(uds=str(path)), awaited=False) as second:
        assert second.wait() == 1
        assert "somebody serves there" in second.log
    assert talk(path, asked("GET", "/health")).startswith(b"HTTP/1.1 200")


@pytest.mark.slow
def test_a_server_that_is_loading_its_model_keeps_its_socket(path: Path) -> None:
    """A second one took the file for a dead server's; the first then served where nobody could reach it."""
    with serving(Start(uds=str(path), load_s=0.5), awaited=False) as first:
        wait_until(path.is_socket, "the first has its socket")
        with serving(Start(uds=str(path)), awaited=False) as second:
            assert second.wait() == 1
        first.wait_until_it_serves()
        assert talk(path, sent(GOOD)).startswith(b"HTTP/1.1 200")


@pytest.mark.slow
def test_a_stop_while_it_loads_takes_the_file_away(path: Path) -> None:
    with serving(Start(uds=str(path), load_s=30.0), awaited=False) as process:
        wait_until(lambda: process.engine_pid is not None, "it loads")
        process.signal(signal.SIGTERM)
        process.wait()
        assert not path.exists()


def test_only_its_owner_may_write_to_it(path: Path) -> None:
    before = os.umask(0o022)
    try:
        with bind_uds(str(path)):
            assert not stat.S_IMODE(path.stat().st_mode) & 0o022, "to connect is to write"
    finally:
        os.umask(before)


def test_a_file_that_is_no_socket_is_neither_taken_nor_removed(path: Path) -> None:
    """It said that somebody serves there."""
    path.write_text("dear diary")
    with pytest.raises(BadInput, match="there is a file of that name"):
        bind_uds(str(path))
    assert path.read_text() == "dear diary"


def test_a_socket_that_somebody_else_has_put_there_is_not_taken_away(path: Path) -> None:
    with bind_uds(str(path)):
        path.unlink()
        with bind_uds(str(path)) as second:
            second.detach()
            inode = path.stat().st_ino
    assert path.stat().st_ino == inode


def test_one_whose_queue_is_full_counts_as_alive(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(str(path))
        busy.listen(0)
        with socket.socket(socket.AF_UNIX) as waiting:
            waiting.connect(str(path))
            with pytest.raises(BadInput, match="somebody serves there"):
                bind_uds(str(path))
    assert path.is_socket()


@pytest.mark.parametrize(("name", "complaint"), [("x" * 200, "too long"), ("no/such/folder", "No such file")])
def test_a_path_that_cannot_be_is_refused_with_the_reason(tmp_path: Path, name: str, complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        bind_uds(str(tmp_path / name))


class Deaf(asyncio.Transport):
    """A transport whose peer reads `steps`, and then no more."""

    def __init__(self, *held_bytes: int) -> None:
        super().__init__()
        self._held_bytes = list(held_bytes)
        self.aborted = False

    def get_write_buffer_size(self) -> int:
        return self._held_bytes.pop(0)

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        assert self.aborted


async def nobody(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError("nobody asks")


def test_a_client_that_stops_reading_is_cut_off_there_too() -> None:
    """The system sees to it for TCP only; on a Unix socket such an answer was kept for ever."""

    async def reads_twice_and_stops() -> int:
        connection = Patient(uvicorn.Config(nobody), uvicorn.server.ServerState(), {})
        connection.read_within_s = 0.0
        transport = Deaf(9000, 8000, 8000, 7000, 7000, 7000)
        connection.connection_made(transport)
        connection.pause_writing()
        turns = 0
        while not transport.aborted:
            await asyncio.sleep(0)
            turns += 1
        connection.connection_lost(None)
        return turns

    assert asyncio.run(reads_twice_and_stops()) < 100
