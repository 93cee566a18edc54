"""What the system says of a child before the child could."""

import os
import signal
import subprocess
import sys
from collections.abc import Generator

import pytest

from headrace.net.process_state import why_it_does_not_run
from tests.net.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")


@pytest.fixture
def child() -> Generator[subprocess.Popen[bytes], None, None]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def test_a_child_that_runs_is_well_and_one_that_is_stopped_is_not(child: subprocess.Popen[bytes]) -> None:
    assert why_it_does_not_run(child.pid) is None
    child.send_signal(signal.SIGSTOP)
    wait_until(lambda: why_it_does_not_run(child.pid) == "is stopped by a signal", "it is stopped")
    child.send_signal(signal.SIGCONT)
    wait_until(lambda: why_it_does_not_run(child.pid) is None, "it goes on")


def test_a_child_that_was_killed_has_died_from_that_moment_on(child: subprocess.Popen[bytes]) -> None:
    child.send_signal(signal.SIGSTOP)
    wait_until(lambda: why_it_does_not_run(child.pid) is not None, "it is stopped")
    child.kill()
    assert why_it_does_not_run(child.pid) in {"was killed", "has ended"}
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert why_it_does_not_run(child.pid) == "has ended"
    child.wait()
    assert why_it_does_not_run(child.pid) == "has ended", "nobody has that number any more"
