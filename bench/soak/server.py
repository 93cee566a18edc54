"""The server under soak: `headrace serve` in a child process, looked at from outside.

Its engine is found among its children, its memory in /proc, its blocks in `/metrics`: what an
operator could see too. Linux only, for /proc.
"""

import json
import os
import re
import signal
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from bench.soak.requests import CHAT, QUESTIONS, Facts, known_body
from headrace.core.ports import Overrides
from headrace.targets.embedded import EmbeddedServer

HEADRACE = (sys.executable, "-m", "headrace")
SCRIPTED = (sys.executable, "-m", "bench.soak.scripted")
API_KEY = "soak"
PLACES = 24
REQUEST_TIMEOUT_S = 40
SETTINGS: Overrides = {
    "max_model_len": 2048,
    "num_gpu_blocks_override": 161,  # fewer than 24 requests need at once: some are preempted
    "max_num_seqs": 16,
    "max_num_queued_reqs": PLACES,
    "max_num_queued_tokens": 8192,
    "queue_timeout": 20,
    "request_timeout": REQUEST_TIMEOUT_S,
    "api_key": API_KEY,
}
BACK_WITHIN_S = 60.0
IDLE_WITHIN_S = 20.0
POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Footprint:
    """What the server takes from the machine while nobody is there."""

    server_mib: float
    engine_mib: float
    descriptors: int


class SoakedServer:
    """`with` starts it and stops it."""

    def __init__(self, model: str, program: tuple[str, ...]) -> None:
        self._process = EmbeddedServer(model, SETTINGS, program=program)

    def __enter__(self) -> Self:
        self._process.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._process.stop()

    @property
    def host(self) -> str:
        return "127.0.0.1"

    @property
    def port(self) -> int:
        return int(self._process.url.rpartition(":")[2])

    @property
    def has_ended(self) -> bool:
        return self._process.ended

    def log_tail(self) -> list[str]:
        return self._process.log_tail()

    def facts(self) -> Facts:
        """Asks the questions whose answers are compared later, one at a time."""
        card = json.loads(self._get("/v1/models"))["data"][0]
        answers = {question: self._answer(question) for question in QUESTIONS}
        return Facts(card["id"], card["max_model_len"], API_KEY, answers)

    def kill_engine(self) -> float | None:
        """Seconds until there is another one that takes requests; None: not within the bound."""
        killed = self.engine_pid()
        if killed is None:
            return None
        os.kill(killed, signal.SIGKILL)
        began_at = time.monotonic()
        while time.monotonic() - began_at < BACK_WITHIN_S and not self.has_ended:
            if self.engine_pid() not in {None, killed} and self._is_healthy():
                return time.monotonic() - began_at
            time.sleep(POLL_S)
        return None

    def engine_pid(self) -> int | None:
        """The child that multiprocessing has spawned for the engine; it has a tracker beside it."""
        leader = self._process.session
        for child in Path(f"/proc/{leader}/task/{leader}/children").read_text().split():
            try:
                command = Path(f"/proc/{child}/cmdline").read_bytes()
            except OSError:
                continue  # it has just ended
            if b"spawn_main" in command:
                return int(child)
        return None

    def leaked_blocks(self) -> int:
        """Once nobody is there: blocks that somebody still holds, after a bounded wait for the last to go."""
        deadline = time.monotonic() + IDLE_WITHIN_S
        while (held := self._held()) != (0, 0) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        blocks, requests = held
        return max(blocks, requests)  # a request that is never forgotten is a leak too

    def footprint(self) -> Footprint:
        leader, engine = self._process.session, self.engine_pid()
        descriptors = len(list(Path(f"/proc/{leader}/fd").iterdir()))
        return Footprint(_rss_mib(leader), _rss_mib(engine) if engine else 0.0, descriptors)

    def restarts(self) -> int:
        return int(_metric(self._get("/metrics"), "headrace:engine_restarts_total"))

    def preemptions(self) -> int:
        return int(_metric(self._get("/metrics"), "vllm:num_preemptions_total"))

    def _held(self) -> tuple[int, int]:
        """Blocks that are not free, and requests that are not over."""
        said = self._get("/metrics")
        blocks = _metric(said, "headrace:total_blocks") - _metric(said, "headrace:free_blocks")
        used = _metric(said, "vllm:kv_cache_usage_perc") * _metric(said, "headrace:total_blocks")
        requests = _metric(said, "vllm:num_requests_running") + _metric(said, "vllm:num_requests_waiting")
        inside = json.loads(self._get("/load"))["server_load"]
        return round(max(blocks, used)), round(max(requests, inside))

    def _is_healthy(self) -> bool:
        try:
            self._get("/health")
        except urllib.error.HTTPError:
            return False
        return True

    def _answer(self, question: str) -> str:
        body = json.loads(self._get(CHAT, known_body(question)))
        return body["choices"][0]["message"]["content"]

    def _get(self, path: str, body: object = None) -> str:
        request = urllib.request.Request(
            self._process.url + path,
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"Bearer {API_KEY}"},
        )
        with urllib.request.urlopen(request, timeout=BACK_WITHIN_S) as answer:
            return answer.read().decode()


def _metric(said: str, name: str) -> float:
    found = re.search(rf"^{name}(?:{{.*}})? (\S+)$", said, re.MULTILINE)
    assert found is not None, f"/metrics has {name}"
    return float(found[1])


def _rss_mib(pid: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0
