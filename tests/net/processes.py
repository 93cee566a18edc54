"""A scripted server in a process of its own, as `headrace serve` would run it: it can be sent signals.

    python -m tests.net.processes '{"step_s": 0.01, ...}'      see `Start`

`with serving(Start(...)) as process` starts one, keeps its log, and ends it, engine included.
"""

import json
import logging
import os
import re
import resource
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from headrace.core.errors import HeadraceError
from headrace.executor.scripted import ScriptedTokenizer
from headrace.net.admission import Bounds
from headrace.net.engine_process import Built
from headrace.net.listening import Tls, bind, bind_uds
from headrace.net.server import Service, Serving, serve
from tests.net.scripted import SETTINGS, ScriptedRecipe
from tests.net.waiting import wait_until

ROOT = Path(__file__).parents[2]
MODEL = "scripted"
INTERRUPTED = 130
"""As `headrace` exits where what was asked for never was."""


@dataclass(frozen=True)
class Start:
    """What a test wants of its server."""

    step_s: float = 0.0
    load_s: float = 0.0
    max_num_seqs: int = 32
    port: int = 0
    uds: str | None = None
    api_keys: tuple[str, ...] = ()
    shutdown_timeout_s: float = 2.0
    max_num_queued_reqs: int | None = None
    queue_timeout_s: float | None = None
    request_timeout_s: float | None = None
    certfile: str | None = None
    ca_certs: str | None = None
    cert_reqs: int = ssl.CERT_NONE
    debug: bool = False
    """Everything that anybody logs, asyncio's own debugging included."""
    most_descriptors: int | None = None


@dataclass(frozen=True)
class SlowToLoad:
    recipe: ScriptedRecipe
    load_s: float

    def __call__(self) -> Built:
        time.sleep(self.load_s)
        return self.recipe()


class ServerProcess:
    """Looked at from outside: its log, its children in /proc."""

    def __init__(self, popen: subprocess.Popen[bytes], log: Path) -> None:
        self.popen = popen
        self._log = log

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def port(self) -> int:
        found = re.search(r"^serving \S+ at https?://\S+:(\d+)$", self.log, re.MULTILINE)
        assert found, self.log
        return int(found[1])

    @property
    def engine_pid(self) -> int | None:
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return next((int(child) for child in children if "spawn_main" in command_of(int(child))), None)

    def wait_until_it_serves(self, within_s: float = 30.0) -> None:
        def it_serves() -> bool:
            assert self.popen.poll() is None, self.log
            return "\nserving " in "\n" + self.log

        wait_until(it_serves, "it serves", within_s)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self, within_s: float = 20.0) -> int:
        """The exit code."""
        return self.popen.wait(within_s)


def command_of(pid: int) -> str:
    """Empty once it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def is_alive(pid: int) -> bool:
    """A process that nobody has waited for yet is dead too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@contextmanager
def serving(start: Start, *, awaited: bool = True) -> Generator[ServerProcess, None, None]:
    """With `awaited`, once it takes requests."""
    command = (sys.executable, "-m", "tests.net.processes", json.dumps(asdict(start)))
    with started(command) as process:
        if awaited:
            process.wait_until_it_serves()
        yield process


@contextmanager
def started(command: tuple[str, ...]) -> Generator[ServerProcess, None, None]:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as out:
            popen = subprocess.Popen(command, stdout=out, stderr=out, cwd=ROOT, start_new_session=True)
        process = ServerProcess(popen, log)
        try:
            yield process
        finally:
            if popen.poll() is None:
                os.killpg(popen.pid, signal.SIGCONT)
                os.killpg(popen.pid, signal.SIGKILL)
                popen.wait()


def main(start: Start) -> None:
    logging.basicConfig(level=logging.DEBUG if start.debug else logging.WARNING)
    if start.debug:
        os.environ["PYTHONASYNCIODEBUG"] = "1"
    if start.most_descriptors is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (start.most_descriptors // 2, start.most_descriptors))
    recipe = ScriptedRecipe(replace(SETTINGS, max_num_seqs=start.max_num_seqs), step_s=start.step_s)
    service = Service(
        (MODEL,),
        SlowToLoad(recipe, start.load_s) if start.load_s else recipe,
        ScriptedTokenizer,
        start.shutdown_timeout_s,
        Bounds(
            max_num_queued_reqs=start.max_num_queued_reqs,
            queue_timeout_s=start.queue_timeout_s,
            request_timeout_s=start.request_timeout_s,
        ),
        Tls(start.certfile, None, start.ca_certs, start.cert_reqs) if start.certfile else None,
        tuple(start.api_keys),
    )
    with bind_uds(start.uds) if start.uds else bind("127.0.0.1", start.port) as listener:
        serve(service, listener, _announce)


def _announce(serving: Serving) -> None:
    print(f"serving {MODEL} at {serving.url}", flush=True)


if __name__ == "__main__":
    try:
        main(Start(**json.loads(sys.argv[1])))
    except HeadraceError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
