"""The servers that faults are made on: how each is started, where its log is, which process its engine is.

Linux only, for /proc.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace.core.ports import Overrides
from headrace.executor.cache import cache_folder
from headrace.targets.embedded import EmbeddedServer
from headrace.targets.process import ServerProcess
from headrace.targets.vllm import SERVED_NAME, VllmInstallation, VllmServer

INSTALLATION = VllmInstallation(Path(".vllm"))
MODEL = "smollm2"
_ENGINES = (b"spawn_main", b"EngineCore")
"""In the command of an engine's process: multiprocessing's, and the name that vLLM gives it."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One of the two servers."""

    model: str
    make: Callable[[Overrides, int], ServerProcess]
    """With those settings at that port."""


def _embedded(settings: Overrides, port: int) -> ServerProcess:
    return EmbeddedServer(MODEL, settings, port=port)


def _vllm(settings: Overrides, port: int) -> ServerProcess:
    return VllmServer(INSTALLATION, settings, port=port)


KINDS = {"embedded": Kind(MODEL, _embedded), "vllm": Kind(SERVED_NAME, _vllm)}


@contextmanager
def fresh_cache() -> Generator[None]:
    """Our servers find the model's file in it and nothing made of it, as on a machine's first start."""
    before = os.environ.get("HEADRACE_CACHE")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "models").mkdir()
        for file in (cache_folder() / "models").iterdir():
            shutil.copy(file, Path(folder) / "models")
        os.environ["HEADRACE_CACHE"] = folder
        try:
            yield
        finally:
            os.environ.pop("HEADRACE_CACHE")
            if before is not None:
                os.environ["HEADRACE_CACHE"] = before


def log_of(server: ServerProcess) -> Path:
    """What the server prints, as a file that can be read at any time while it runs."""
    return Path(f"/proc/{server.session}/fd/1")


def engine_of(server: ServerProcess) -> int:
    """The process that computes."""
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and process.name != str(server.session):
            try:
                command = (process / "cmdline").read_bytes()
                session = int((process / "stat").read_bytes().rpartition(b")")[2].split()[3])
            except OSError:
                continue  # it has ended
            if session == server.session and any(name in command for name in _ENGINES):
                return int(process.name)
    raise LookupError("the server has no process of an engine")
