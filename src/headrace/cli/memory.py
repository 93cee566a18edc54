"""How much memory is there to give: the machine's, or less where a container has a limit."""

import os
from pathlib import Path

from headrace.executor.models import ModelFiles

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def available_bytes() -> int:
    """What could be taken now without pushing anybody out, as far as the system says."""
    return min(limit for limit in (_machine_bytes(), _container_bytes()) if limit is not None)


def total_bytes() -> int:
    """All that there is, in use or not."""
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        container = None if limit == "max" else int(limit)
    except (OSError, ValueError):
        container = None
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return machine if container is None else min(machine, container)


def affords_expanded(files: ModelFiles) -> bool:
    """Whether the faster forms of the weights take at most an eighth of all memory, free or not."""
    return files.expanded_bytes * 8 <= total_bytes()


def _machine_bytes() -> int:
    try:
        lines = _MEMINFO.read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _container_bytes() -> int | None:
    try:
        limit, used = ((_CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        return None if limit == "max" else max(0, int(limit) - int(used))
    except (OSError, ValueError):
        return None
