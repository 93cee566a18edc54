"""What the system says of a process, before the process could say so itself.

The memory of a process that was killed is taken apart before its sockets close: a tenth of a second for
600 MB. Until then everything that listens to it believes that it lives.
"""

import signal
import sys
from pathlib import Path

# Fields of Linux' /proc/PID/stat after the name, which may hold anything (proc_pid_stat(5)).
_STATE, _FLAGS, _PENDING = 0, 6, 28
_EXITING = 0x4  # PF_EXITING of the kernel's sched.h
_KILLED = 1 << (signal.SIGKILL - 1)


def why_it_does_not_run(pid: int) -> str | None:
    """For people: what became of our child process. None: it runs, or the system does not tell (macOS)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "has ended" if sys.platform == "linux" else None
    except OSError:
        return None
    if fields[_STATE] in "ZX":
        return "has ended"
    if int(fields[_FLAGS]) & _EXITING or int(fields[_PENDING]) & _KILLED:
        return "was killed"
    return "is stopped by a signal" if fields[_STATE] == "T" else None
