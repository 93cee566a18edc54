"""What a server's /metrics says while it is measured, on the clock of the run.

    fetch, every second -> Scraper -> ServerMetrics(at, series)   series by name and labels, None where absent
    ServerMetrics --told--> a quantity over time, whatever this server and version call it

While the run goes on a page is only thinned and packed: reading it takes milliseconds, in which no token
would be timed. Absent is not zero: a series that a page lacks is None in that place. Counters lag in vLLM
(preemptions are counted when the victim next produces a token, and lost if it never does), so growth is
told from the first page to the last, one of which is taken after the last answer.
"""

import asyncio
import itertools
import math
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum

from prometheus_client.parser import text_string_to_metric_families

from headrace.core.measurement import ServerMetrics

EVERY_S = 1.0
KEPT = (b"vllm:", b"headrace:", b"llamacpp:", b"sglang:", b"process_cpu_seconds", b"process_resident_memory")
LEFT_OUT = (b"_bucket{", b"_created{", b"_config_info{", b"_created ")
MOST_SERIES = 2_000
MOST_PAGES = 20_000

Page = tuple[float, bytes]


@dataclass(frozen=True, slots=True)
class Name:
    """A series under one of its names, and how those of several engines make one number."""

    name: str
    of_engines: Callable[[list[float]], float] = sum


class Quantity(Enum):
    """What a reader asks for, newest name first: facts of vLLM since V0, of llama.cpp and our own."""

    RUNNING = (Name("vllm:num_requests_running"), Name("llamacpp:requests_processing"))
    WAITING = (Name("vllm:num_requests_waiting"), Name("llamacpp:requests_deferred"))
    KV_USED = (
        Name("vllm:kv_cache_usage_perc", max),
        Name("vllm:gpu_cache_usage_perc", max),
        Name("llamacpp:kv_cache_usage_ratio", max),
    )
    PREEMPTIONS = (Name("vllm:num_preemptions_total"), Name("vllm:num_preemptions"))
    OUTPUT_TOKENS = (Name("vllm:generation_tokens_total"), Name("llamacpp:tokens_predicted_total"))
    PROMPT_TOKENS = (Name("vllm:prompt_tokens_total"), Name("llamacpp:prompt_tokens_total"))
    PREFIX_HITS = (Name("vllm:prefix_cache_hits_total"), Name("vllm:gpu_prefix_cache_hits_total"))


@dataclass(slots=True)
class Scraper:
    """`fetch` gives a page or None; one that fails again and again is left alone."""

    fetch: Callable[[], Awaitable[bytes | None]]
    clock: Callable[[], float]
    pages: list[Page] = field(default_factory=list[Page])

    async def watch(self) -> None:
        """Until cancelled, or until the server has shown that it has no metrics."""
        missed = 0
        while missed < 3 and len(self.pages) < MOST_PAGES:
            began = self.clock()
            missed = 0 if await self.look() else missed + 1
            await asyncio.sleep(max(0.0, EVERY_S - (self.clock() - began)))

    async def look(self) -> bool:
        page = await self.fetch()
        if page is None:
            return False
        # When it was asked for is as wrong as when it came; the middle is least so.
        self.pages.append((self.clock(), zlib.compress(thinned(page), 1)))
        return True

    def read(self) -> ServerMetrics | None:
        """After the run. None without a page that could be read."""
        return columns([(at, zlib.decompress(page)) for at, page in self.pages])


def thinned(page: bytes) -> bytes:
    """The lines of plain series: comments, buckets and what is not of the engine make most of a page."""
    kept = (line for line in page.split(b"\n") if line.startswith(KEPT))
    return b"\n".join(line for line in kept if not any(each in line for each in LEFT_OUT))


def columns(pages: list[Page]) -> ServerMetrics | None:
    read = [(at, values) for at, page in pages if (values := _values(page)) is not None]
    if not any(values for _, values in read):
        return None
    names = list(dict.fromkeys(name for _, values in read for name in values))[:MOST_SERIES]
    return ServerMetrics(
        at=tuple(at for at, _ in read),
        series={name: tuple(values.get(name) for _, values in read) for name in names},
    )


def told(metrics: ServerMetrics, quantity: Quantity) -> tuple[float | None, ...] | None:
    """Over time, all engines together; None where the server knows no such thing."""
    for name in quantity.value:
        rows = [values for series, values in metrics.series.items() if series.partition("{")[0] == name.name]
        if rows:
            return tuple(_together(name, place) for place in zip(*rows, strict=True))
    return None


def growth(metrics: ServerMetrics, quantity: Quantity) -> float | None:
    """Of a counter from the first page to the last; a restart of the server makes it unknown."""
    values = [value for value in told(metrics, quantity) or () if value is not None]
    falls = any(after < before for before, after in itertools.pairwise(values))
    return values[-1] - values[0] if len(values) > 1 and not falls else None


def _together(name: Name, values: tuple[float | None, ...]) -> float | None:
    known = [value for value in values if value is not None]
    return name.of_engines(known) if known else None


def _values(page: bytes) -> dict[str, float] | None:
    """None of a page that is no exposition."""
    try:
        return {
            _series(sample.name, sample.labels): float(sample.value)
            for family in text_string_to_metric_families(page.decode(errors="replace"))
            for sample in family.samples
            if math.isfinite(sample.value)
        }
    except (ValueError, KeyError, IndexError):
        return None


def _series(name: str, labels: dict[str, str]) -> str:
    inside = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
    return f"{name}{{{inside}}}" if inside else name
