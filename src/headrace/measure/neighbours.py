"""How much of the machine others took while something was measured.

    Neighbours(ours) ... .cores() -> 0.6: since then, others used that much of a processor on average

Linux counts the time of all processors and of each process; the difference is the others'. Where it is
not told, nothing is known and nothing is thrown away. Judging by this instead of by how long a
measurement took leaves out what was disturbed without choosing among results.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path

DISTURBED_CORES = 0.1
"""From here on a measurement counts as disturbed."""
_PROC = Path("/proc")
_AT_WORK = (0, 1, 2, 5, 6, 7)
"""Of a line of /proc/stat: user, nice, system, interrupts (two kinds), and what the hypervisor took."""
_SESSION, _USER_TICKS, _SYSTEM_TICKS = 3, 11, 12
"""Of /proc/PID/stat, counted after the program's name, which may hold spaces."""


class Neighbours:
    """Watches from its making on. Ours are this process and the named sessions, each a server's."""

    def __init__(self, sessions: Sequence[int] = ()) -> None:
        self._sessions = frozenset(sessions)
        self._began_at = time.monotonic()
        self._others_s = self._others()

    def cores(self) -> float | None:
        """Processors that others kept busy, on average; None where the system does not tell."""
        others_s = self._others()
        if others_s is None or self._others_s is None:
            return None
        return (others_s - self._others_s) / max(time.monotonic() - self._began_at, 1e-9)

    def disturb(self) -> bool:
        """Whether what was measured since then should not count."""
        return (self.cores() or 0.0) > DISTURBED_CORES

    def _others(self) -> float | None:
        machine_s = machine_cpu_s()
        if machine_s is None:
            return None
        return machine_s - time.process_time() - (_of_sessions_s(self._sessions) if self._sessions else 0.0)


def machine_cpu_s() -> float | None:
    """Seconds that the processors have worked, together."""
    try:
        words = (_PROC / "stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
    except OSError:
        return None
    return sum(int(words[place]) for place in _AT_WORK) / os.sysconf("SC_CLK_TCK")


def undisturbed(marks: Sequence[tuple[float, float]], over_s: float = 0.3) -> list[bool]:
    """Which of the spans between neighbouring `marks` (instant, CPU seconds of others until then) were quiet.

    Processor time is counted in ticks, so each span is judged together with those around it.
    """
    quiet: list[bool] = []
    for place in range(len(marks) - 1):
        low, high = place, place + 1
        while marks[high][0] - marks[low][0] < over_s and (low > 0 or high < len(marks) - 1):
            low, high = max(0, low - 1), min(len(marks) - 1, high + 1)
        (began_at, before_s), (ended_at, after_s) = marks[low], marks[high]
        quiet.append(after_s - before_s <= DISTURBED_CORES * (ended_at - began_at))
    return quiet


def _of_sessions_s(sessions: frozenset[int]) -> float:
    ticks = 0
    for folder in _PROC.iterdir():
        if folder.name.isdecimal():
            try:
                after_name = (
                    (folder / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2]
                )
            except OSError:
                continue  # it has ended
            words = after_name.split()
            if int(words[_SESSION]) in sessions:
                ticks += int(words[_USER_TICKS]) + int(words[_SYSTEM_TICKS])
    return ticks / os.sysconf("SC_CLK_TCK")
