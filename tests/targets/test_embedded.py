"""A server under measure starts, says why when it does not, and never outlives us."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.core.errors import TargetFailed
from headrace.core.ports import Overrides
from headrace.targets.embedded import EmbeddedServer

pytestmark = pytest.mark.slow  # every test starts a process

PRETEND = (sys.executable, str(Path(__file__).with_name("pretend_server.py")))


def pretend(how: str, overrides: Overrides | None = None, **bounds: float) -> EmbeddedServer:
    return EmbeddedServer(how, overrides or {}, program=PRETEND, **bounds)


def eventually(condition: Callable[[], bool], bound_s: float = 10.0) -> bool:
    deadline = time.monotonic() + bound_s
    while not (held := condition()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return held


def is_gone(pid: int) -> bool:
    """No such process, or only a zombie that its (foreign) parent has yet to reap."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


def pid_of(server: EmbeddedServer) -> int:
    assert server._process is not None
    return server._process.pid


def test_a_started_server_says_where_it_is_and_is_gone_afterwards() -> None:
    with pretend("well", {"max_num_batched_tokens": 256}) as server:
        pid = pid_of(server)
        assert server.url == "http://127.0.0.1:4711"
        assert not server.ended
        server.check_alive()
        assert server.log_tail()[0] == (
            "arguments: serve well --max-num-batched-tokens 256 --host 127.0.0.1 --port 0"
        )
    assert is_gone(pid)
    server.stop()  # once more does no harm


def test_the_command_is_what_a_person_would_type() -> None:
    server = EmbeddedServer("my model.gguf", {"max_num_seqs": 32, "enable_prefix_caching": False})
    assert server.command == "headrace serve 'my model.gguf' --max-num-seqs 32 --no-enable-prefix-caching"


def test_a_server_that_falls_gives_its_own_message_as_the_reason() -> None:
    with pytest.raises(TargetFailed, match="ended before it was ready: needs 12500 KV blocks") as caught:
        pretend("falls").__enter__()
    assert "headrace serve falls" in caught.value.hint
    assert "try: shorten the prompt" in caught.value.hint


def test_a_server_that_crashes_gives_the_last_line_that_names_an_error() -> None:
    with pytest.raises(TargetFailed, match="MemoryError: no room for the model"):
        pretend("crashes").__enter__()


def test_a_server_that_stalls_is_given_up_after_the_bound_and_ended() -> None:
    server = pretend("stalls", start_bound_s=0.5)
    with pytest.raises(TargetFailed, match="did not become ready within"), server:
        pytest.fail("it must not be entered")
    assert server.ended


def test_a_server_that_ignores_sigterm_is_killed_after_the_bound() -> None:
    with pretend("stubborn", stop_bound_s=0.3) as server:
        pid = pid_of(server)
    assert is_gone(pid)


def test_what_the_server_has_started_goes_with_it() -> None:
    with pretend("parent") as server:
        child = int(next(line for line in server.log_tail() if line.startswith("child:")).split()[1])
        assert not is_gone(child)
    assert eventually(lambda: is_gone(child))


def test_a_server_killed_under_measure_is_noticed_and_its_children_end() -> None:
    with pretend("parent") as server:
        child = int(next(line for line in server.log_tail() if line.startswith("child:")).split()[1])
        os.kill(pid_of(server), signal.SIGKILL)
        assert eventually(lambda: server.ended)
        with pytest.raises(TargetFailed, match="ended while it was measured"):
            server.check_alive()
    assert eventually(lambda: is_gone(child))


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_no_exception_leaves_a_child_behind(error: type[BaseException]) -> None:
    pids: list[int] = []

    def be_interrupted() -> None:
        with pretend("well") as server:
            pids.append(pid_of(server))
            raise error

    with pytest.raises(error):
        be_interrupted()
    assert is_gone(pids[0])


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's help is Linux's")
def test_a_parent_that_is_killed_takes_its_server_with_it() -> None:
    code = (
        "import sys, time; from headrace.targets.embedded import EmbeddedServer\n"
        f"server = EmbeddedServer('well', {{}}, program={PRETEND!r}).__enter__()\n"
        "print(server._process.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not is_gone(pid)
        parent.kill()
        parent.wait()
    assert eventually(lambda: is_gone(pid))
