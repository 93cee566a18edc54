"""A run while it is going on: a live view on a terminal, a line now and then elsewhere.

    Arrival | Timeline | Failure -> Progress.on_event -> counts        a thread, twice a second -> stderr

What it shows it draws from counts, in a thread of its own, so a server that stalls is seen to stall. Each
drawing takes a millisecond or two from the loop that times tokens, hence few of them and small ones.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.text import Text

from headrace.core.exchange import Arrival
from headrace.core.timeline import Failure, Timeline
from headrace.report.sparkline import sparkline
from headrace.report.units import roughly, seconds

FIRST_LINE_AFTER_S, LINE_EVERY_S = 2.0, 10.0
DRAWN_EVERY_S = 0.5
RECENT = 100
HISTORY = 40
"""Columns of what is shown over time, one for every other drawing."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A run that is one of several."""

    name: str
    after_s: float
    """How long those after it take, about."""
    is_least: bool = False
    """Where it is not known how many there will be: at least so long."""

    def left(self, of_this_s: float) -> str:
        left_s = max(0.0, of_this_s) + self.after_s
        return f"{'at least' if self.is_least else 'about'} {roughly(left_s)} left"


class Progress:
    """Hand `on_start` and `on_event` to the run, inside `with`."""

    def __init__(
        self,
        console: Console,
        num_requests: int | None,
        duration_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        stage: Stage | None = None,
    ) -> None:
        self._stage = stage
        self._console = console
        self._num_requests = num_requests
        self._duration_s = duration_s
        self._clock = clock
        self._began_at = clock()
        self._has_started = False
        self._sent = self._answered = self._failed = self._tokens = 0
        self._recent_ttft_s = deque[float](maxlen=RECENT)
        self._history = deque[tuple[float, int]](maxlen=HISTORY)
        self._last_failure = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._draw, name="progress", daemon=True)

    def __enter__(self) -> Self:
        self._began_at = self._clock()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(5)

    def on_start(self) -> None:
        """The run itself begins: what was sent alone before is not part of its time."""
        self._began_at = self._clock()
        self._has_started = True

    def on_event(self, event: Arrival | Timeline | Failure) -> None:
        match event:
            case Arrival():
                self._sent += 1
            case Failure():
                self._failed += 1
                self._last_failure = event.reason
            case Timeline():
                self._answered += 1
                self._tokens += len(event.token_at)
                self._recent_ttft_s.append(event.ttft_s)

    @property
    def is_drawing(self) -> bool:
        return self._thread.is_alive()

    def line(self) -> str:
        """All of it in one line."""
        if not self._has_started:
            return self._before_the_run()
        ended = self._answered + self._failed
        of = f" of {self._num_requests}" if self._num_requests is not None else ""
        passed_s = self._passed_s()
        state = f"{self._named()}{self._time(passed_s)}: {ended}{of} done, {self._sent - ended} in flight"
        if self._failed:
            state += f", {self._failed} failed"
        if recent := list(self._recent_ttft_s):
            state += f", recent TTFT {seconds(float(np.median(recent)))}"
        if self._stage is not None:
            state += f"; {self._stage.left(self._duration_s - passed_s)}"
        return state

    def view(self) -> Text:
        """A few lines of 80 columns."""
        if not self._has_started:
            return Text(self._before_the_run())
        recent = list(self._recent_ttft_s)
        in_flight = self._sent - self._answered - self._failed
        self._history.append((float(np.median(recent)) if recent else 0.0, in_flight))
        passed_s = self._passed_s()
        lines = [self._bar(passed_s)]
        if self._stage is not None:
            lines.insert(0, f"{self._stage.name}; {self._stage.left(self._duration_s - passed_s)}")
        if recent:
            p50, p95 = np.percentile(recent, (50, 95)).tolist()
            rate = self._tokens / passed_s if passed_s > 0 else 0.0
            latest = f"TTFT P50 {seconds(p50)}, P95 {seconds(p95)}"
            lines.append(f"  last {len(recent)}: {latest}; {rate:.0f} tokens/s so far")
        ttft_s = [each for each, _ in self._history]
        counts = [float(count) for _, count in self._history]
        lines.append(f"  TTFT      {sparkline(ttft_s, max(ttft_s))}")
        lines.append(f"  in flight {sparkline(counts, max(counts))}  {in_flight}")
        if self._failed:
            lines.append(f"  {self._failed} failed, the last: {self._last_failure}"[:79])
        return Text("\n".join(lines), no_wrap=True, overflow="ellipsis")

    def _before_the_run(self) -> str:
        return f"{self._named()}{self._passed_s():.0f} s: the run has not begun"

    def _named(self) -> str:
        return f"{self._stage.name}, " if self._stage is not None else ""

    def _time(self, passed_s: float) -> str:
        """Of how long, while requests are due; the last answers take as long as they take."""
        of = f" of {self._duration_s:.0f}" if passed_s < self._duration_s else ""
        return f"{passed_s:.0f}{of} s"

    def _bar(self, passed_s: float) -> str:
        ended = self._answered + self._failed
        if self._num_requests is not None:
            share, count = ended / max(1, self._num_requests), f"{ended} of {self._num_requests}"
        else:
            share, count = passed_s / max(1e-9, self._duration_s), f"{ended} done"
        filled = round(20 * min(1.0, share))
        return f"{'━' * filled}{'─' * (20 - filled)} {count}, {self._time(passed_s)}, {self._sent} sent"

    def _passed_s(self) -> float:
        return self._clock() - self._began_at

    def _draw(self) -> None:
        if not self._console.is_terminal:
            wait_s = FIRST_LINE_AFTER_S
            while not self._ended.wait(wait_s):
                self._console.print(self.line(), highlight=False, soft_wrap=True)
                wait_s = LINE_EVERY_S
            return
        with Live(console=self._console, auto_refresh=False, transient=True) as live:
            while not self._ended.wait(DRAWN_EVERY_S):
                live.update(self.view(), refresh=True)
