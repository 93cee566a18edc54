"""A server in a child process: started, watched, stopped, and never left behind.

    Launch(words, environment, ready, why) -> ServerProcess -> .url -> SIGTERM, then SIGKILL

Knows processes and logs; which server it is, and how its log reads, is said by the `Launch`.

No child is left behind:
  - it runs in a session of its own, so Ctrl-C reaches only us and we stop it in order, and so one
    signal to its process group reaches whatever it has started;
  - `stop` ends with SIGKILL for that whole group, whatever interrupts it. The leader is reaped only
    after that: until then its number cannot belong to anybody else;
  - on Linux the kernel sends it SIGTERM when the thread that started it dies without a chance to
    stop it (SIGKILL, out of memory). So start it from a thread that lives as long as it should.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import IO, Self

from headrace.core.errors import TargetFailed

_LOG_TAIL_BYTES = 16_384
_LOG_TAIL_LINES = 8
_MOST_LOG_BYTES = 1 << 20
_POLL_S = 0.02

# PR_SET_PDEATHSIG = 1 survives exec. A parent that died before the call is noticed by its number.
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True, slots=True)
class Launch:
    """What is started, and how to read what it prints."""

    words: Sequence[str]
    """The command."""
    shown: str
    """The same as a person would type it."""
    ready: Callable[[bytes], str | None]
    """Given the end of the log: the server's address once it serves."""
    why: Callable[[Sequence[str]], str | None]
    """Given the log's lines: the one that says why the server is not well."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """On top of our own."""
    start_bound_s: float = 120.0
    stop_bound_s: float = 10.0


class ServerProcess:
    """`with` starts it, or raises `TargetFailed`, and stops it."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self.url = ""

    @property
    def command(self) -> str:
        """What a person would type."""
        return self._launch.shown

    @property
    def session(self) -> int:
        """Number of the session that all its processes are in. Only while it runs."""
        assert self._process is not None, "a server that runs"
        return self._process.pid

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start(self) -> None:
        command = list(self._launch.words)
        if sys.platform == "linux":
            command = [sys.executable, "-c", _DIE_WITH_PARENT, str(os.getpid()), *command]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - `stop` closes it; it has no name to clean up
        self._process = subprocess.Popen(  # noqa: S603 - no shell; the words are the person's own
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=os.environ | self._launch.environment,
            start_new_session=True,
        )
        bound_s = self._launch.start_bound_s
        deadline = time.monotonic() + bound_s
        while (url := self._launch.ready(self._log_end(_LOG_TAIL_BYTES))) is None:
            self.check_alive("before it was ready")
            if time.monotonic() > deadline:
                raise self._failed(f"did not become ready within {bound_s:.0f} s")
            time.sleep(_POLL_S)
        self.url = url

    @property
    def ended(self) -> bool:
        """Whether the process is gone, for whatever reason. Does not reap it."""
        return self._process is None or _has_exited(self._process.pid)

    def check_alive(self, when: str = "while it was measured") -> None:
        """Raise `TargetFailed` if the server has left, with the line of its log that says why."""
        if self.ended:
            raise self._failed(f"ended {when}")

    def stop(self) -> None:
        """SIGTERM, a bounded wait, then SIGKILL for all that is left of its group. Safe to repeat."""
        process = self._process
        if process is None:
            return
        try:
            if not _has_exited(process.pid):
                process.send_signal(signal.SIGTERM)
                _wait_until(lambda: _has_exited(process.pid), self._launch.stop_bound_s)
        finally:
            _kill_group(process.pid)
            process.wait()
            self._process = None
            if self._log:
                self._log.close()
                self._log = None

    def log_tail(self) -> list[str]:
        """The last lines of what the server printed; empty once it is stopped."""
        return self._log_lines(_LOG_TAIL_BYTES)[-_LOG_TAIL_LINES:]

    def _log_lines(self, most_bytes: int) -> list[str]:
        return self._log_end(most_bytes).decode(errors="replace").splitlines()

    def _log_end(self, most_bytes: int) -> bytes:
        if self._log is None:
            return b""
        # The child shares the offset of our descriptor: pread leaves it alone, so it keeps appending.
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), most_bytes, max(0, size - most_bytes))

    def _failed(self, what: str) -> TargetFailed:
        lines = self._log_lines(_MOST_LOG_BYTES)
        why = self._launch.why(lines)
        shown = "".join(f"\n      {line}" for line in lines[-_LOG_TAIL_LINES:])
        return TargetFailed(
            f"the server {what}" + (f": {why}" if why else ", without a word"),
            f"run it by hand: {self.command}" + (f"\n  the end of its log:{shown}" if shown else ""),
        )


def _has_exited(pid: int) -> bool:
    """Whether our child has ended, leaving it as a zombie so that its number stays ours."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _wait_until(condition: Callable[[], bool], bound_s: float) -> None:
    deadline = time.monotonic() + bound_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _kill_group(pid: int) -> None:
    # Nothing may be left of it; macOS answers "not permitted" for a group of zombies.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
