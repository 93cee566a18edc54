"""One measurement of one server: workload, client and run put together. `bench` and `tune` share it."""

import asyncio
import contextlib
import platform
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace import __version__
from headrace.core.errors import BadInput
from headrace.core.exchange import Arrival
from headrace.core.measurement import Measurement
from headrace.core.ports import Overrides
from headrace.core.timeline import Failure, Timeline
from headrace.measure.run import Ending, Event, run
from headrace.net.client import DEFAULT_TIMEOUT_S, HttpSender, server_version
from headrace.workload.mixed import MixedWorkload

DRAIN_GRACE_S = 5.0
"""Every request has its own timeout; the run's is only there should one not keep it."""


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
    arrivals = workload.arrivals()
    if not arrivals:
        raise BadInput(
            f"by chance, nothing is due within {workload.duration_s:g} s: {workload.describe()}",
            "let it run longer, raise a rate, or take another seed",
        )
    stop = asyncio.Event()
    results, version = asyncio.run(_run(target, arrivals, timeout_s, on_event, stop))
    versions = {"headrace": __version__, "python": platform.python_version()}
    measurement = Measurement(
        target=target.name or target.url,
        model=target.model,
        settings=target.settings or {},
        workload=workload.describe(),
        seed=workload.seed,
        duration_s=_duration_s(results),
        results=results,
        versions=versions | ({"server": version} if version else {}),
    )
    if stop.is_set():
        raise Interrupted(measurement)
    return measurement


async def run_timetable(
    target: Target, arrivals: Sequence[Arrival], timeout_s: float = DEFAULT_TIMEOUT_S
) -> tuple[Timeline | Failure, ...]:
    """One run of any timetable, for whoever makes its own."""
    results, _ = await _run(target, arrivals, timeout_s, None, asyncio.Event())
    return results


async def _run(
    target: Target,
    arrivals: Sequence[Arrival],
    timeout_s: float,
    on_event: Callable[[Event], None] | None,
    stop: asyncio.Event,
) -> tuple[tuple[Timeline | Failure, ...], str | None]:
    version = await server_version(target.url, api_key=target.api_key)
    loop = asyncio.get_running_loop()
    clock = _stopwatch()
    # A handler of our own, because what was measured until Ctrl-C is still wanted.
    with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # only in a main thread
        loop.add_signal_handler(signal.SIGINT, stop.set)
    try:
        async with HttpSender(
            target.url, target.model, clock=clock, timeout_s=timeout_s, api_key=target.api_key
        ) as sender:
            ending = Ending(drain_s=timeout_s + DRAIN_GRACE_S, stop=stop)
            results = await run(sender, arrivals, clock=clock, on_event=on_event, ending=ending)
    finally:
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            loop.remove_signal_handler(signal.SIGINT)
    return results, version


def _stopwatch() -> Callable[[], float]:
    started_ns = time.monotonic_ns()
    return lambda: (time.monotonic_ns() - started_ns) / 1e9


def _duration_s(results: tuple[Timeline | Failure, ...]) -> float:
    """Up to the last answer, but at least for as long as requests were due: a server that dies early
    has not answered all the faster, and one that never answers has not made the run longer.
    """
    return max((r.token_at[-1] if isinstance(r, Timeline) else r.due_at for r in results), default=0.0)
