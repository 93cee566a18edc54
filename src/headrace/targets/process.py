"""A server in a child process: started, watched, stopped, and never left behind.

    Launch(words, environment, ready, why) -> ServerProcess -> .url -> SIGTERM, then SIGKILL

Knows processes and logs; which server it is, and how its log reads, is said by the `Launch`.

No child is left behind:
  - it runs in a session of its own, so Ctrl-C reaches only us and we stop it in order, and so one
    signal to its process group reaches whatever it has started;
  - `stop` ends with SIGKILL for that whole group, whatever interrupts it. The leader is reaped only
    after that: until then its number cannot belong to anybody else;
  - should we die without a chance to stop it (SIGKILL, out of memory, a closed terminal), a watchman in
    its group does: it waits on a pipe whose other end only we hold, then sends SIGTERM to the server,
    and after the same bound SIGKILL to the whole group, whatever of it has ignored that.
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

_WATCHED = """
import os, signal, sys, time
ours, bound_s, words = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
if os.fork() == 0:
    if os.fork():
        os._exit(0)  # the server must not find a child that it never had
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.read(ours, 1)  # returns when nobody holds the other end any more
    leader, deadline = os.getsid(0), time.monotonic() + bound_s
    try:
        os.kill(leader, signal.SIGTERM)
        while time.monotonic() < deadline:
            time.sleep(0.05)
            os.kill(leader, 0)
    except ProcessLookupError:
        pass
    os.killpg(0, signal.SIGKILL)
os.wait()
os.close(ours)
os.execvp(words[0], words)
"""
"""The kernel's own signal on a parent's death reaches one process, not what that one has started, and comes
when the thread ends that started it. Numbers are safe here: while the watchman lives, nobody else can be
given the number of its session."""


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
    """Given the log's lines: the one that says why the server is not well; None where none does."""
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
        self._alive: int | None = None
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
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - `stop` closes it; it has no name to clean up
        theirs, self._alive = os.pipe()
        words = [sys.executable, "-c", _WATCHED, str(theirs), str(self._launch.stop_bound_s)]
        try:
            self._process = subprocess.Popen(  # noqa: S603 - no shell; the words are the person's own
                [*words, *self._launch.words],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                env=os.environ | self._launch.environment,
                start_new_session=True,
                pass_fds=(theirs,),
            )
        finally:
            os.close(theirs)
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
            self._let_go()
            return
        try:
            if not _has_exited(process.pid):
                process.send_signal(signal.SIGTERM)
                _wait_until(lambda: _has_exited(process.pid), self._launch.stop_bound_s)
        finally:
            _kill_group(process.pid)
            process.wait()
            self._process = None
            self._let_go()

    def _let_go(self) -> None:
        if self._alive is not None:
            os.close(self._alive)
            self._alive = None
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
        why = self._launch.why(lines) or self._in_the_end(lines)
        shown = "".join(f"\n      {line}" for line in lines[-_LOG_TAIL_LINES:])
        return TargetFailed(
            f"the server {what}: {why}",
            f"run it by hand: {self.command}" + (f"\n  the end of its log:{shown}" if shown else ""),
        )

    def _in_the_end(self, lines: Sequence[str]) -> str:
        """What can be said of a server whose log does not say why."""
        ended = None if self._process is None else _exit_of(self._process.pid)
        how = ""
        if ended is not None and ended.si_code == os.CLD_EXITED:
            how = f"exit code {ended.si_status}; "
        elif ended is not None:
            name = signal.Signals(ended.si_status).name
            how = f"killed by {name}{' (out of memory?)' if name == 'SIGKILL' else ''}; "
        last = next((line.strip() for line in reversed(lines) if line.strip()), None)
        return f"{how}its log does not say why" + (f" and ends with: {last}" if last else ", it is empty")


def _has_exited(pid: int) -> bool:
    """Whether our child has ended, leaving it as a zombie so that its number stays ours."""
    return _exit_of(pid) is not None


def _exit_of(pid: int) -> os.waitid_result | None:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)


def _wait_until(condition: Callable[[], bool], bound_s: float) -> None:
    deadline = time.monotonic() + bound_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _kill_group(pid: int) -> None:
    # Nothing may be left of it; macOS answers "not permitted" for a group of zombies.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
