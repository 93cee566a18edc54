"""The engine of this package as a target: `headrace serve` in a child process.

    EmbeddedServer("smollm2", {"max_num_batched_tokens": 512})
      -> python -m headrace serve smollm2 --max-num-batched-tokens 512 --host 127.0.0.1 --port 0
      -> waits for "serving smollm2 at http://..." -> .url -> SIGTERM, then SIGKILL

Knows how to start, watch and stop that process; knows nothing of models, requests or measures.

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
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import IO, Self

from headrace.core.errors import TargetFailed
from headrace.core.ports import Overrides
from headrace.targets.flags import as_flags

_SERVING = re.compile(rb"^serving .* at (http://\S+)\s*\n", re.MULTILINE)
_LOG_TAIL_BYTES = 16_384
_LOG_TAIL_LINES = 8
_POLL_S = 0.02

# PR_SET_PDEATHSIG = 1 survives exec. A parent that died before the call is noticed by its number.
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""


class EmbeddedServer:
    """One `headrace serve` process. `with` starts it, or raises `TargetFailed`, and stops it."""

    def __init__(
        self,
        model: str,
        overrides: Overrides,
        *,
        start_bound_s: float = 120.0,
        stop_bound_s: float = 10.0,
        program: Sequence[str] = (sys.executable, "-m", "headrace"),
    ) -> None:
        self._arguments = ["serve", model, *as_flags(overrides)]
        self._program = list(program)
        self._start_bound_s = start_bound_s
        self._stop_bound_s = stop_bound_s
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self.url = ""

    @property
    def command(self) -> str:
        """What a person would type."""
        return shlex.join(["headrace", *self._arguments])

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
        command = [*self._program, *self._arguments, "--host", "127.0.0.1", "--port", "0"]
        if sys.platform == "linux":
            command = [sys.executable, "-c", _DIE_WITH_PARENT, str(os.getpid()), *command]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - `stop` closes it; it has no name to clean up
        self._process = subprocess.Popen(  # noqa: S603 - no shell; the words are the person's own
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        deadline = time.monotonic() + self._start_bound_s
        while (found := _SERVING.search(self._log_end())) is None:
            self.check_alive("before it was ready")
            if time.monotonic() > deadline:
                raise self._failed(f"did not become ready within {self._start_bound_s:.0f} s")
            time.sleep(_POLL_S)
        self.url = found[1].decode()

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
                _wait_until(lambda: _has_exited(process.pid), self._stop_bound_s)
        finally:
            _kill_group(process.pid)
            process.wait()
            self._process = None
            if self._log:
                self._log.close()
                self._log = None

    def log_tail(self) -> list[str]:
        """The last lines of what the server printed; empty once it is stopped."""
        return self._log_end().decode(errors="replace").splitlines()[-_LOG_TAIL_LINES:]

    def _log_end(self) -> bytes:
        if self._log is None:
            return b""
        # The child shares the offset of our descriptor: pread leaves it alone, so it keeps appending.
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), _LOG_TAIL_BYTES, max(0, size - _LOG_TAIL_BYTES))

    def _failed(self, what: str) -> TargetFailed:
        tail = self.log_tail()
        why = _telling_line(tail)
        shown = "".join(f"\n      {line}" for line in tail)
        return TargetFailed(
            f"the server {what}" + (f": {why}" if why else ", without a word"),
            f"run it by hand: {self.command}" + (f"\n  the end of its log:{shown}" if shown else ""),
        )


def _telling_line(lines: Sequence[str]) -> str | None:
    """The line that says why: our own message, else the last that names an error, else the last."""
    said = [line.strip() for line in lines if line.strip()]
    ours = [line.removeprefix("headrace: ") for line in said if line.startswith("headrace: ")]
    errors = [line for line in said if re.search(r"error|exception|killed|refused", line, re.IGNORECASE)]
    return next((group[-1] for group in (ours, errors, said) if group), None)


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
