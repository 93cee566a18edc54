"""What every server under measure promises: it starts, says why when it does not, and never outlives us."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.core.errors import TargetFailed
from headrace.targets.process import ServerProcess
from tests.targets.pretending import Pretend, embedded, vllm_in

pytestmark = pytest.mark.slow  # every test starts a process


@pytest.fixture(params=["embedded", "vllm"])
def pretend(request: pytest.FixtureRequest, tmp_path: Path) -> Pretend:
    return embedded if request.param == "embedded" else vllm_in(tmp_path)


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


def pid_of(server: ServerProcess) -> int:
    assert server._process is not None
    return server._process.pid


def child_of(server: ServerProcess) -> int:
    return int(next(line for line in server.log_tail() if line.startswith("child:")).split()[1])


def test_a_started_server_says_where_it_is_and_is_gone_afterwards(pretend: Pretend) -> None:
    with pretend("well", {"max_num_batched_tokens": 256}) as server:
        pid = pid_of(server)
        assert server.url == "http://127.0.0.1:4711"
        assert not server.ended
        server.check_alive()
        assert " --max-num-batched-tokens 256 --host 127.0.0.1 --port " in server.log_tail()[0]
    assert is_gone(pid)
    server.stop()  # once more does no harm


def test_a_server_that_falls_gives_its_own_message_as_the_reason(pretend: Pretend) -> None:
    said = "ended before it was ready: needs 12500 KV blocks; this engine has 4096$"
    with pytest.raises(TargetFailed, match=said) as caught:
        pretend("falls").__enter__()
    assert "run it by hand: " in caught.value.hint
    assert " serve " in caught.value.hint
    assert "the end of its log:" in caught.value.hint


def test_a_server_that_crashes_gives_the_last_line_that_names_an_error(pretend: Pretend) -> None:
    with pytest.raises(TargetFailed, match="MemoryError: no room for the model"):
        pretend("crashes").__enter__()


@pytest.mark.parametrize(
    ("how", "said"), [("struck", r"killed by SIGKILL \(out of memory\?\)"), ("leaves", "exit code 3")]
)
def test_a_server_that_ends_without_a_word_why_is_not_put_words_into_its_mouth(
    pretend: Pretend, how: str, said: str
) -> None:
    end = "its log does not say why and ends with: loading the model"
    with pytest.raises(TargetFailed, match=f"ended before it was ready: {said}; {end}"):
        pretend(how).__enter__()


def test_a_server_that_stalls_is_given_up_after_the_bound_and_ended(pretend: Pretend) -> None:
    server = pretend("stalls", start_bound_s=0.5)
    with pytest.raises(TargetFailed, match="did not become ready within"), server:
        pytest.fail("it must not be entered")
    assert server.ended


def test_a_server_that_ignores_sigterm_is_killed_after_the_bound(pretend: Pretend) -> None:
    with pretend("stubborn", stop_bound_s=0.3) as server:
        pid = pid_of(server)
    assert is_gone(pid)


def test_what_the_server_has_started_goes_with_it(pretend: Pretend) -> None:
    with pretend("parent") as server:
        child = child_of(server)
        assert not is_gone(child)
    assert eventually(lambda: is_gone(child))


def test_a_server_killed_under_measure_is_noticed_and_its_children_end(pretend: Pretend) -> None:
    with pretend("parent") as server:
        child = child_of(server)
        os.kill(pid_of(server), signal.SIGKILL)
        assert eventually(lambda: server.ended)
        with pytest.raises(TargetFailed, match="ended while it was measured"):
            server.check_alive()
    assert eventually(lambda: is_gone(child))


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_no_exception_leaves_a_child_behind(pretend: Pretend, error: type[BaseException]) -> None:
    pids: list[int] = []

    def be_interrupted() -> None:
        with pretend("well") as server:
            pids.append(pid_of(server))
            raise error

    with pytest.raises(error):
        be_interrupted()
    assert is_gone(pids[0])


@pytest.mark.parametrize(
    "how", ["embedded({how!r}, stop_bound_s=0.5)", "vllm_in(folder)({how!r}, stop_bound_s=0.5)"]
)
@pytest.mark.parametrize("manners", ["parent", "stubborn-parent"])
def test_a_parent_that_is_killed_takes_its_server_and_all_that_it_started_with_it(
    how: str, manners: str, tmp_path: Path
) -> None:
    code = (
        "import sys, time; from pathlib import Path; from tests.targets.pretending import *\n"
        f"folder = Path({str(tmp_path)!r}); server = {how.format(how=manners)}.__enter__()\n"
        "child = [line for line in server.log_tail() if line.startswith('child:')][0].split()[1]\n"
        "print(server._process.pid, child, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert not any(is_gone(pid) for pid in pids)
        parent.kill()
        parent.wait()
    assert eventually(lambda: all(is_gone(pid) for pid in pids))


def test_a_server_may_be_started_by_a_thread_that_ends_before_it(pretend: Pretend) -> None:
    servers: list[ServerProcess] = []
    thread = threading.Thread(target=lambda: servers.append(pretend("well").__enter__()))
    thread.start()
    thread.join()
    try:
        time.sleep(0.2)  # a signal for the thread's death would have come by now
        assert not servers[0].ended
    finally:
        servers[0].stop()
