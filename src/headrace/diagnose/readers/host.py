"""The machine under a server that runs on this one: who takes its processors, is the server let run?

    port, its start -> find_server -> its process
    process -> look -> Look;   two looks -> between -> Evidence under `machine:`

Linux only, for /proc: elsewhere, and for a server of another machine, container or user, nothing is found and
nothing is said. Numbers are of the server's processes together: the one that listens and all below it.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.diagnose.evidence import Evidence, Reading
from headrace.diagnose.readers.text import plain

PROC = Path("/proc")
LISTENING = "0A"
SAME_START_S = 3.0
"""A process and what its own metrics say of its start differ by less: ticks, and the time to import."""
SAME_CPU_S, LEAST_CPU_S = 1.0, 5.0
"""So do the processor times, once there are enough of them to tell one process from another."""
MOST_FOR_ITS_WORK = 4
_AT_WORK = (0, 1, 2, 5, 6, 7)
"""Of a line of /proc/stat: user, nice, system, interrupts (two kinds), and what the hypervisor took."""
_STATE, _PARENT, _USER_TICKS, _SYSTEM_TICKS, _STARTED = 0, 1, 11, 12, 19
"""Of /proc/PID/stat, counted after the program's name, which may hold spaces."""
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_STOPPED = frozenset("Tt")
WHERE = "/proc"


@dataclass(frozen=True, slots=True)
class Process:
    name: str
    state: str
    parent: int
    cpu_s: float
    started_s: float
    """After the machine's boot."""


@dataclass(frozen=True, slots=True)
class Look:
    """The machine at one instant."""

    at: float
    busy_s: float
    """Processor seconds since boot, whoever used them."""
    processes: Mapping[int, Process]
    ours: frozenset[int]
    """The server's."""
    waited_s: float
    """That threads of the server were ready to run and were not let, since their beginning."""


def find_server(port: int, started_at: float, cpu_s: float = 0.0, proc: Path = PROC) -> int | None:
    """The process that listens there and began at that time, in seconds since 1970, or has just now used so
    many seconds of a processor; None where there is none.

    Either proves that it is the server and no tunnel or proxy that listens for it. A server noted its start
    by the clock of then: after a step of the clock (a virtual machine that was restored, NTP) only the
    processor time agrees.
    """
    inodes = frozenset(_listening(port, proc))
    booted_at = _booted_at(proc)
    if not inodes or booted_at is None:
        return None
    holders = {pid: process for pid, process in _processes(proc) if inodes & frozenset(_sockets(pid, proc))}
    for pid, process in holders.items():
        began = abs(booted_at + process.started_s - started_at) < SAME_START_S
        used = cpu_s >= LEAST_CPU_S and abs(process.cpu_s - cpu_s) < SAME_CPU_S
        if (began or used) and process.parent not in holders:
            return pid
    return None


def look(server: int, now: float, proc: Path = PROC) -> Look | None:
    """At `now` on any clock that goes on. None once the server is gone, or where /proc tells nothing."""
    processes, busy_s = dict(_processes(proc)), _busy_s(proc)
    if server not in processes or busy_s is None:
        return None
    ours = frozenset(pid for pid in processes if server in _line_of(pid, processes))
    return Look(now, busy_s, processes, ours, sum(_waited_s(pid, proc) for pid in ours))


def between(before: Look, after: Look, cores: int, looker: int) -> Evidence:
    """What went on from one look to the other; `looker` is the process that looks, and counts as nobody."""
    passed = after.at - before.at
    if passed <= 0:
        return Evidence()
    used = {
        pid: (process.cpu_s - (before.processes[pid].cpu_s if pid in before.processes else 0.0)) / passed
        for pid, process in after.processes.items()
    }
    ours = sum(used[pid] for pid in after.ours)
    others = (after.busy_s - before.busy_s) / passed - ours - used.get(looker, 0.0)
    values: dict[str, float | str] = {
        "machine:cores": float(cores),
        "machine:cores_of_server": max(0.0, ours),
        "machine:cores_of_others": max(0.0, others),
        "machine:threads_kept_waiting": max(0.0, after.waited_s - before.waited_s) / passed,
        "machine:busiest_other": _busiest(used, after, looker),
        "machine:stopped": _stopped(after),
    }
    return Evidence(readings={name: Reading(name, (value,), WHERE) for name, value in values.items()})


def _busiest(used: Mapping[int, float], seen: Look, looker: int) -> str:
    others = {pid: cores for pid, cores in used.items() if pid not in seen.ours and pid != looker}
    pid = max(others, key=lambda other: others[other], default=None)
    if pid is None or others[pid] < 0.05:
        return ""
    return f"{plain(seen.processes[pid].name)} (process {pid}, {others[pid]:.1f} cores)"


def _stopped(seen: Look) -> str:
    """The server's processes that have been stopped, by name."""
    return ", ".join(
        f"{plain(seen.processes[pid].name)} (process {pid})"
        for pid in sorted(seen.ours)
        if seen.processes[pid].state in _STOPPED
    )


def _line_of(pid: int, processes: Mapping[int, Process]) -> Iterator[int]:
    """Itself, its parent, and so on."""
    seen = set[int]()
    while pid in processes and pid not in seen:
        seen.add(pid)
        yield pid
        pid = processes[pid].parent


def _processes(proc: Path) -> Iterator[tuple[int, Process]]:
    for folder in proc.iterdir():
        if folder.name.isdecimal() and (line := _read(folder / "stat")):
            name, words = line.partition("(")[2].rpartition(")")[0], line.rpartition(")")[2].split()
            cpu_s = (int(words[_USER_TICKS]) + int(words[_SYSTEM_TICKS])) / _TICKS
            started_s = int(words[_STARTED]) / _TICKS
            yield int(folder.name), Process(name, words[_STATE], int(words[_PARENT]), cpu_s, started_s)


def _waited_s(pid: int, proc: Path) -> float:
    """Of all its threads: the second number of schedstat, in nanoseconds, the first being how long they ran.

    One that wakes a thousand times a second to look at a clock waits a moment each time on a busy machine,
    and delays nobody: of each thread no more counts than a few times what it had to do.
    """
    try:
        tasks = list((proc / str(pid) / "task").iterdir())
    except OSError:
        return 0.0
    told = [_read(task / "schedstat").split() for task in tasks]
    return sum(min(int(w[1]), MOST_FOR_ITS_WORK * int(w[0])) for w in told if len(w) > 1) / 1e9


def _listening(port: int, proc: Path) -> Iterator[str]:
    """Inodes of the sockets that listen at that port."""
    for table in ("net/tcp", "net/tcp6"):
        for line in _read(proc / table).splitlines()[1:]:
            words = line.split()
            if len(words) > 9 and words[3] == LISTENING and int(words[1].rpartition(":")[2], 16) == port:
                yield words[9]


def _sockets(pid: int, proc: Path) -> Iterator[str]:
    try:
        descriptors = list((proc / str(pid) / "fd").iterdir())
    except OSError:
        return  # it has ended, or is another user's
    for descriptor in descriptors:
        try:
            target = str(descriptor.readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            yield target[8:-1]


def _busy_s(proc: Path) -> float | None:
    words = _read(proc / "stat").partition("\n")[0].split()[1:]
    return sum(int(words[place]) for place in _AT_WORK) / _TICKS if len(words) > max(_AT_WORK) else None


def _booted_at(proc: Path) -> float | None:
    lines = (line.split() for line in _read(proc / "stat").splitlines())
    return next((float(words[1]) for words in lines if words and words[0] == "btime"), None)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
