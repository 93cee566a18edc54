"""One run on the real server: started under the settings, warmed up, measured, looked at, and told.

    ServerJudge(target, traffic) -- Wanted --> Judged(measurement | why there is none, what was noticed)

A server is kept while the settings stay the same and stopped when they change or the judge is closed. A
server that would not start, or left, is a result with its cause. A run that our own side has spoiled is
made once more, and if it is spoiled again it counts, and is marked as invalid.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console

from headrace.cli.measuring import Target, Watching, measure_planned
from headrace.cli.refused import GivesUp
from headrace.cli.tuning_targets import Served, Startable
from headrace.cli.tuning_workload import Traffic
from headrace.core.errors import TargetFailed
from headrace.core.exchange import Answer, Ask, Broken
from headrace.core.measurement import Measurement
from headrace.core.ports import Overrides
from headrace.core.trial import Wanted
from headrace.measure.neighbours import Neighbours, machine_cpu_s
from headrace.measure.run import Event
from headrace.measure.server_metrics import Quantity, growth
from headrace.measure.steady import steadiness
from headrace.measure.validity import check
from headrace.net.client import HttpSender, served_models
from headrace.report.progress import Progress
from headrace.tune.grade import Seen

TIMEOUT_S = 120.0
"""Of one request: longer than any answer takes below the knee, short enough not to eat the budget."""
SEED_STEP = 10_007
"""Between the seeds of runs, so that a prompt is never known to a prefix cache."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What came of one run."""

    command: str
    measurement: Measurement | None = None
    failed: str | None = None
    """Why there is no measurement."""
    seen: Seen = field(default_factory=Seen)
    invalid: str | None = None
    """How our own side has spoiled it, twice."""
    busy_cores: float | None = None
    others_cores: float | None = None


class Judge(Protocol):
    """Makes runs. `number` is which one, from 1; another number has other words in its prompts."""

    def __call__(self, wanted: Wanted, number: int) -> Judged: ...


@dataclass(slots=True)
class ServerJudge:
    """`with` closes the server that is still there at the end."""

    target: Startable
    console: Console
    seed: int
    api_key: str | None = None
    traffic: Traffic | None = None
    """Set before the first run; a server may be looked at before."""
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _served: Served | None = None
    _settings: Overrides | None = None
    _model: str = ""
    _measured: int = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the server, if there is one. Safe to repeat."""
        self._served = self._settings = None
        self._stack.close()

    def serve(self, overrides: Overrides) -> Served:
        """The server under these settings. Raises `TargetFailed`."""
        if self._served is not None and self._settings == overrides:
            self._served.check_alive()
            return self._served
        self.close()
        served = self._stack.enter_context(self.target.serve(overrides))
        self._model = asyncio.run(served_models(served.url, api_key=self.api_key))[0]
        self._served, self._settings = served, dict(overrides)
        return served

    @property
    def model(self) -> str:
        """What the running server calls it."""
        return self._model

    def __call__(self, wanted: Wanted, number: int) -> Judged:
        command = self.target.command(wanted.overrides)
        try:
            is_new = self._settings != wanted.overrides
            served = self.serve(wanted.overrides)
            if is_new:
                self.warm_up(served, number)
            first = self._measure(served, wanted, number)
            reasons = check(first.measurement).reasons if first.measurement else ()
            if not reasons:
                return first
            self.console.print(f"  invalid, once more: {reasons[0]}", highlight=False, soft_wrap=True)
            return _trusted(self._measure(served, wanted, number))
        except TargetFailed as error:
            self.close()
            return Judged(command, failed=str(error))

    def warm_up(self, served: Served, number: int) -> None:
        """Raises `TargetFailed` where it does not answer while nothing else is sent."""
        assert self.traffic is not None, "set before the first run"
        asks = self.traffic.warm_up(self.seed - SEED_STEP * number - 1)
        for answer in asyncio.run(self._ask_together(served, asks)):
            if not isinstance(answer, Answer):
                served.check_alive()
                raise TargetFailed(f"the server does not answer while nothing else is sent: {answer.reason}")

    async def _ask_together(self, served: Served, asks: Sequence[Ask]) -> list[Answer | Broken]:
        sender = HttpSender(
            served.url, self._model, clock=time.monotonic, timeout_s=TIMEOUT_S, api_key=self.api_key
        )
        async with sender:
            return list(await asyncio.gather(*(sender.send(ask) for ask in asks)))

    def _measure(self, served: Served, wanted: Wanted, number: int) -> Judged:
        assert self.traffic is not None, "set before the first run"
        self._measured += 1  # the same run again, too, has other words: this server knows the first ones
        load = self.traffic.at(wanted.load, self.seed + SEED_STEP * number + self._measured)
        target = Target(served.url, self._model, served.command, wanted.overrides, self.api_key)
        neighbours = Neighbours([] if served.session is None else [served.session])
        began_at, cpu_s = time.monotonic(), machine_cpu_s()
        with Progress(self.console, load.requests, load.duration_s) as progress:
            stop = asyncio.Event()
            gives_up = GivesUp(stop, _while_alive(served, progress.on_event))
            watching = Watching(
                TIMEOUT_S, gives_up.on_event, scrapes=True, stop=stop, on_start=progress.on_start
            )
            measurement = measure_planned(target, load, watching)
        served.check_alive()
        if gives_up.why:
            raise TargetFailed(gives_up.why)
        others = neighbours.cores() if served.session is not None else None
        return Judged(
            command=self.target.command(wanted.overrides),
            measurement=measurement,
            seen=Seen(steadiness(measurement).is_steady, _preemptions(measurement)),
            busy_cores=_busy_cores(cpu_s, time.monotonic() - began_at),
            others_cores=others,
        )


def _trusted(judged: Judged) -> Judged:
    """The second run, marked where our own side has spoiled it, too: its noise is then part of the spread."""
    reasons = check(judged.measurement).reasons if judged.measurement else ()
    return replace(judged, invalid=next(iter(reasons), None))


def _while_alive(served: Served, tell: Callable[[Event], None]) -> Callable[[Event], None]:
    """Ends a run whose server is gone, instead of sending it the rest of the timetable."""

    def on_event(event: Event) -> None:
        served.check_alive()
        tell(event)

    return on_event


def _preemptions(measurement: Measurement) -> int | None:
    if measurement.server is None:
        return None
    grown = growth(measurement.server, Quantity.PREEMPTIONS)
    return None if grown is None else round(grown)


def _busy_cores(before_s: float | None, passed_s: float) -> float | None:
    now_s = machine_cpu_s()
    return None if now_s is None or before_s is None else (now_s - before_s) / max(passed_s, 1e-9)
