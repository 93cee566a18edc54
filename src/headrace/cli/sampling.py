"""A live server's /metrics, read again and again: what `headrace doctor URL` looks at.

Sampler.window() -> Evidence of the last seconds
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlencode

from headrace.core.errors import BadInput
from headrace.diagnose.evidence import Evidence
from headrace.diagnose.readers.metrics import joined, read_page
from headrace.diagnose.readers.prometheus import POINTS, query, read_range
from headrace.net.client import base_url, server_version
from headrace.net.fetch import fetch
from headrace.net.transcript import StreamBroke

SAMPLES = 10
"""In a window: enough to tell a peak from a steady load."""
LEAST_EVERY_S = 0.5
SCRAPE_TIMEOUT_S = 10.0


@dataclass
class Sampler:
    """Pages of one server, those of the last `window_s` kept. Raises `BadInput` if the first cannot be
    had.
    """

    url: str
    window_s: float
    api_key: str | None = None
    _pages: deque[tuple[float, Evidence]] = field(default_factory=deque[tuple[float, Evidence]])
    _missed: int = 0
    _version: str = ""

    def __post_init__(self) -> None:
        self.url = base_url(self.url)

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
        try:
            body = asyncio.run(fetch(f"{self.url}/metrics", timeout_s=SCRAPE_TIMEOUT_S, api_key=self.api_key))
        except StreamBroke as error:
            if not self._pages:
                hint = "is it the address of a server with /metrics?"
                raise BadInput(f"{self.url}/metrics: {error}", hint) from error
            self._missed += 1
            return
        now = time.monotonic()
        if not self._version:
            self._version = asyncio.run(server_version(self.url, api_key=self.api_key)) or "?"
        page = read_page(body.decode("utf-8", "replace").splitlines(), f"{self.url}/metrics")
        if not page.readings:
            raise BadInput(
                f"{self.url}/metrics holds no metrics of a server we know", "vLLM, SGLang, llama.cpp or ours"
            )
        self._pages.append((now, page))
        while self._pages[-1][0] - self._pages[0][0] > self.window_s + self.every_s:
            self._pages.popleft()

    def evidence(self) -> Evidence:
        found = joined(list(self._pages))
        notes = (f"{self._missed} of the samples were not answered",) if self._missed else ()
        return found | Evidence(version="" if self._version == "?" else self._version, notes=notes)


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
