"""A live server's /metrics, read again and again: what `headrace doctor URL` looks at.

Sampler.evidence() -> Evidence of the last seconds, of the server and of the machine where it is this one
"""

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from urllib.parse import urlencode, urlsplit

from headrace.core.errors import BadInput
from headrace.diagnose.evidence import Evidence, Reading
from headrace.diagnose.readers import host
from headrace.diagnose.readers.metrics import joined, read_page
from headrace.diagnose.readers.prometheus import POINTS, query, read_range
from headrace.net.client import base_url, server_version
from headrace.net.fetch import fetch
from headrace.net.transcript import StreamBroke

SAMPLES = 10
"""In a window: enough to tell a peak from a steady load."""
LEAST_EVERY_S = 0.5
SCRAPE_TIMEOUT_S = 10.0
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass
class Sampler:
    """Pages of one server, those of the last `window_s` kept. Raises `BadInput` if the first cannot be
    had, unless it is `patient`: then a server that does not answer yet is asked again.
    """

    url: str
    window_s: float
    api_key: str | None = None
    patient: bool = False
    _pages: deque[tuple[float, Evidence]] = field(default_factory=deque[tuple[float, Evidence]])
    _missed: int = 0
    _missed_at_first: int = 0
    _version: str = ""
    _silent: str = ""
    """Why the last sample was not answered; empty where it was."""
    _began_at: float | None = None
    _first_at: float | None = None
    """When it was first asked, and when it first answered."""
    _machine: "Machine | None" = None

    def __post_init__(self) -> None:
        self.url = base_url(self.url.strip().rstrip("/").removesuffix("/metrics"))

    @property
    def every_s(self) -> float:
        return max(LEAST_EVERY_S, self.window_s / SAMPLES)

    def watch(self, for_s: float, tell: Callable[[float], None]) -> None:
        """Sample for so long; `tell` is told the seconds that are left."""
        end = time.monotonic() + for_s
        self.sample()
        while (left := end - time.monotonic()) > 0:
            tell(left)
            time.sleep(min(self.every_s, left))
            self.sample()

    def sample(self) -> None:
        self._began_at = self._began_at or time.monotonic()
        try:
            body = asyncio.run(fetch(f"{self.url}/metrics", timeout_s=SCRAPE_TIMEOUT_S, api_key=self.api_key))
        except StreamBroke as error:
            self._silent = str(error)
            if not self._pages and not self.patient:
                raise BadInput(f"{self.url}/metrics: {error}", _hint(self.url, str(error))) from error
            self._missed += 1
            self._missed_at_first += self._first_at is None
            return
        now, self._silent = time.monotonic(), ""
        self._first_at = self._first_at or now
        if not self._version:
            self._version = asyncio.run(server_version(self.url, api_key=self.api_key)) or "?"
        page = read_page(body.decode("utf-8", "replace").splitlines(), f"{self.url}/metrics")
        if not page.readings:
            raise BadInput(
                f"{self.url}/metrics holds no metrics of a server we know", "vLLM, SGLang, llama.cpp or ours"
            )
        if self._pages and _started(page) != _started(self._pages[-1][1]):
            self._pages.clear()  # another server: what the one before it counted is no beginning of this one
            self._machine = None
        self._machine = self._machine or Machine.under(self.url, page)
        if self._machine is not None:
            page |= self._machine.since_last(now)
        self._pages.append((now, page))
        while self._pages[-1][0] - self._pages[0][0] > self.window_s + self.every_s:
            self._pages.popleft()

    @property
    def silent(self) -> str:
        """Why the last look was not answered; empty where it was."""
        return self._silent

    @property
    def looks(self) -> int:
        """That were answered, and are kept."""
        return len(self._pages)

    def forget(self) -> None:
        """All but the last look: between the others lies a silence."""
        while len(self._pages) > 1:
            self._pages.popleft()

    def evidence(self) -> Evidence:
        found = joined(list(self._pages)) | Evidence(readings=dict(self._silence()))
        notes = (f"{self._missed} of the samples were not answered: {self._silent}".rstrip(": "),)
        version = "" if self._version == "?" else self._version
        return found | Evidence(version=version, notes=notes if self._missed else ())

    def _silence(self) -> Iterator[tuple[str, Reading]]:
        """How long it took to answer for the first time, where that was not at once."""
        if self._began_at is not None and self._missed_at_first:
            silent_s = (self._first_at or time.monotonic()) - self._began_at
            for name, value in (("silent_s", silent_s), ("answers", float(not self._silent))):
                yield f"server:{name}", Reading(f"server:{name}", (value,), self.url)


def _hint(url: str, why: str) -> str:
    """What to try where the first look is not answered."""
    if why.startswith(("401", "403")):
        return "--api-key KEY, or HEADRACE_API_KEY; or save the page and give the file"
    if why.startswith("404"):
        return (
            "is that the server itself? A router or a proxy may keep /metrics elsewhere; a saved page will do"
        )
    if "connection broke" in why and url.startswith("http://"):
        return f"does it speak https? https://{url.removeprefix('http://')}"
    if "SSL_CERT_FILE" in why:
        return "SSL_CERT_FILE=ca.pem headrace doctor URL"
    port = urlsplit(url).port
    asked = "" if port else f"no port was given, so {443 if url.startswith('https') else 80} was asked; "
    return (
        f"{asked}is it up, and is this its port? If it does not start, its log says why: headrace doctor LOG"
    )


def _started(page: Evidence) -> float | None:
    return page.number("process_start_time_seconds")


class Machine:
    """The one that a server on the loopback shares with us."""

    def __init__(self, server: int) -> None:
        self._server = server
        self._before: host.Look | None = None

    @classmethod
    def under(cls, url: str, page: Evidence) -> "Machine | None":
        """None where the server is elsewhere, or not to be seen."""
        parts, started_at = urlsplit(url), page.number("process_start_time_seconds")
        if parts.hostname not in LOOPBACK or parts.port is None or started_at is None:
            return None
        server = host.find_server(parts.port, started_at, page.number("process_cpu_seconds_total") or 0.0)
        return None if server is None else cls(server)

    def since_last(self, now: float) -> Evidence:
        before, self._before = self._before, host.look(self._server, now)
        if before is None or self._before is None:
            return Evidence()
        return host.between(before, self._before, _cores(), os.getpid())


def _cores() -> int:
    """That we may use, and so may the server where nobody said otherwise."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def from_prometheus(url: str, since_s: float, api_key: str | None = None) -> Evidence:
    """The last `since_s` seconds as a Prometheus server has them. Raises `BadInput`."""
    now = time.time()
    asked = {
        "query": query(),
        "start": f"{now - since_s:.3f}",
        "end": f"{now:.3f}",
        "step": f"{max(1.0, since_s / POINTS):.3f}",
    }
    address = f"{base_url(url)}/api/v1/query_range"
    try:
        body = asyncio.run(fetch(f"{address}?{urlencode(asked)}", timeout_s=60.0, api_key=api_key))
    except StreamBroke as error:
        raise BadInput(f"{address}: {error}", "is a Prometheus server running there?") from error
    return read_range(body, base_url(url))
