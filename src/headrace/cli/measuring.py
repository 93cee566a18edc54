"""One measurement of one server: load, client and run put together. `bench` and `tune` share it."""

import asyncio
import contextlib
import platform
import signal
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from dataclasses import dataclass, field, replace

from headrace import __version__
from headrace.core.errors import BadInput
from headrace.core.exchange import Arrival, Ask
from headrace.core.measurement import ClientLoad, Load, Measurement, ServerMetrics
from headrace.core.ports import Overrides
from headrace.core.timeline import Failure, Timeline
from headrace.measure.client_load import few_pauses, watched
from headrace.measure.run import Ending, Event, run
from headrace.measure.server_metrics import Scraper
from headrace.measure.sources import Source, Timetable
from headrace.net.client import DEFAULT_TIMEOUT_S, HttpSender, base_url, server_version
from headrace.net.exchange import KEPT_S
from headrace.net.fetch import fetch
from headrace.net.transcript import StreamBroke
from headrace.workload.mixed import MixedWorkload

DRAIN_GRACE_S = 5.0
"""Every request has its own timeout; the run's is only there should one not keep it."""
SCRAPE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Target:
    """A running server."""

    url: str
    model: str
    name: str = ""
    """What the record calls it, such as the command that started it; its address if empty."""
    settings: Overrides | None = None
    """The settings under test, as far as known."""
    api_key: str | None = None
    kept_s: float = KEPT_S
    """How long a connection may have been idle to be used again; 0 opens one for each request."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A load that is ready to be sent, as often as one likes."""

    source: Callable[[], Source]
    describe: str
    seed: int
    load: Load
    warm_up_s: float = 0.0
    alone: tuple[Ask, ...] = ()
    """Sent one after the other before the run."""
    requests: int | None = None
    """How many there will be; None where answers decide."""
    duration_s: float = 0.0
    """In which requests are due."""
    shared_share: float = 0.0
    """Of the prompt tokens, what a cache that forgets nothing would find."""
    classes: frozenset[str] = frozenset()
    """Of its requests."""


@dataclass(frozen=True, slots=True)
class Watching:
    """What else happens during a run."""

    timeout_s: float = DEFAULT_TIMEOUT_S
    on_event: Callable[[Event], None] | None = None
    scrapes: bool = False
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    on_start: Callable[[], None] | None = None
    """Called when the run's clock starts, after the requests alone."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a measurement. `measurement` holds what was due until then."""

    def __init__(self, measurement: Measurement) -> None:
        super().__init__()
        self.measurement = measurement


def measure(
    target: Target,
    workload: MixedWorkload,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    on_event: Callable[[Event], None] | None = None,
) -> Measurement:
    """Send `workload` to `target` and wait for the answers. Raises `Interrupted` on Ctrl-C."""
    return measure_planned(target, planned(workload), Watching(timeout_s, on_event))


def planned(workload: MixedWorkload) -> Planned:
    arrivals = timetable_of(workload)
    return Planned(
        lambda: Timetable(arrivals),
        workload.describe(),
        workload.seed,
        Load.POISSON,
        requests=len(arrivals),
        duration_s=workload.duration_s,
    )


def timetable_of(workload: MixedWorkload) -> tuple[Arrival, ...]:
    """Raises `BadInput` for one without a request."""
    arrivals = workload.arrivals()
    if not arrivals:
        raise BadInput(
            f"by chance, nothing is due within {workload.duration_s:g} s: {workload.describe()}",
            "let it run longer, raise a rate, or take another seed",
        )
    return arrivals


def measure_planned(target: Target, load: Planned, watching: Watching) -> Measurement:
    """Raises `Interrupted` on Ctrl-C."""
    interrupted = asyncio.Event()
    seen = asyncio.run(_run(target, load, watching, interrupted))
    versions = {"headrace": __version__, "python": platform.python_version()}
    measurement = Measurement(
        target=target.name or target.url,
        model=target.model,
        settings=target.settings or {},
        workload=load.describe,
        seed=load.seed,
        duration_s=_duration_s(seen.results),
        results=seen.results,
        versions=versions | ({"server": seen.version} if seen.version else {}),
        load=load.load,
        warm_up_s=load.warm_up_s,
        client=seen.client,
        alone=seen.alone,
        server=seen.server,
        shared_share=load.shared_share,
    )
    if interrupted.is_set():
        raise Interrupted(measurement)
    return measurement


async def run_timetable(
    target: Target, arrivals: Sequence[Arrival], timeout_s: float = DEFAULT_TIMEOUT_S
) -> tuple[Timeline | Failure, ...]:
    """One run of any timetable, for whoever makes its own."""
    load = Planned(lambda: Timetable(arrivals), "", 0, Load.OPEN)
    return (await _run(target, load, Watching(timeout_s), asyncio.Event())).results


@dataclass(frozen=True, slots=True)
class _Seen:
    results: tuple[Timeline | Failure, ...]
    version: str | None
    client: ClientLoad
    alone: tuple[Timeline, ...]
    server: ServerMetrics | None


async def _run(target: Target, load: Planned, watching: Watching, interrupted: asyncio.Event) -> _Seen:
    version = await server_version(target.url, api_key=target.api_key)
    alone = await _alone(target, load.alone, watching.timeout_s)
    clock = _Stopwatch()
    ending = Ending(drain_s=watching.timeout_s + DRAIN_GRACE_S, stop=watching.stop)
    scraper = Scraper(lambda: _metrics(target), clock)
    with few_pauses(), _interruptible(watching.stop, interrupted):
        async with (
            HttpSender(
                target.url,
                target.model,
                clock=clock,
                timeout_s=watching.timeout_s,
                api_key=target.api_key,
                kept_s=target.kept_s,
            ) as sender,
            watched(clock) as watch,
            _scraping(scraper, watching),
        ):
            source = load.source()
            clock.start()  # looking up a name and the like took time, and is nobody's lag
            if watching.on_start is not None:
                watching.on_start()
            results = await run(sender, source, clock=clock, on_event=watching.on_event, ending=ending)
            client = replace(watch.load(), connections=sender.connections, sent_again=sender.sent_again)
    return _Seen(results, version, client, alone, scraper.read())


async def _alone(target: Target, asks: Sequence[Ask], timeout_s: float) -> tuple[Timeline, ...]:
    """One after the other. Who fails says nothing here; the run will show why."""
    seen: list[Timeline] = []
    clock = _Stopwatch()
    async with HttpSender(
        target.url,
        target.model,
        clock=clock,
        timeout_s=timeout_s,
        api_key=target.api_key,
        kept_s=target.kept_s,
    ) as sender:
        for ask in asks:
            results = await run(sender, [Arrival(clock(), ask)], clock=clock)
            seen += [result for result in results if isinstance(result, Timeline)]
            if len(results) > len(seen):
                break
    return tuple(seen)


async def _metrics(target: Target) -> bytes | None:
    address = f"{base_url(target.url)}/metrics"
    try:
        return await fetch(address, timeout_s=SCRAPE_TIMEOUT_S, api_key=target.api_key)
    except StreamBroke:
        return None


@contextlib.asynccontextmanager
async def _scraping(scraper: Scraper, watched_run: Watching) -> AsyncGenerator[None]:
    """Looks every second, and once more at the end: counters lag. Who stops a run waits for nothing more."""
    if not watched_run.scrapes:
        yield
        return
    watching = asyncio.create_task(scraper.watch())
    try:
        yield
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
        if not watched_run.stop.is_set():
            await scraper.look()


@contextlib.contextmanager
def _interruptible(stop: asyncio.Event, interrupted: asyncio.Event) -> Generator[None]:
    """A handler of our own, because what was measured until Ctrl-C is still wanted."""

    def interrupt() -> None:
        interrupted.set()
        stop.set()

    loop = asyncio.get_running_loop()
    absent = (NotImplementedError, RuntimeError, ValueError)  # only in a main thread
    with contextlib.suppress(*absent):
        loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        with contextlib.suppress(*absent):
            loop.remove_signal_handler(signal.SIGINT)


class _Stopwatch:
    """Seconds since it was started."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        self._started_ns = time.monotonic_ns()

    def __call__(self) -> float:
        return (time.monotonic_ns() - self._started_ns) / 1e9


def _duration_s(results: tuple[Timeline | Failure, ...]) -> float:
    """Up to the last answer, but at least for as long as requests were due: a server that dies early
    has not answered all the faster, and one that never answers has not made the run longer.
    """
    return max((r.token_at[-1] if isinstance(r, Timeline) else r.due_at for r in results), default=0.0)
