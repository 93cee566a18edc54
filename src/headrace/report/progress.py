"""A run while it is going on: one line that moves on a terminal, a line now and then elsewhere.

    Arrival | Timeline | Failure -> Progress.on_event -> stderr

Takes its times from the events, so it needs no clock, and drawing it does not wait for anybody.
"""

from collections import deque
from statistics import median
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from headrace.core.exchange import Arrival
from headrace.core.timeline import Failure, Timeline
from headrace.report.units import seconds

LINE_EVERY_S = 10.0
RECENT = 20


class Progress:
    """Hand `on_event` to the run, inside `with`."""

    def __init__(self, console: Console, num_requests: int) -> None:
        self._console = console
        self._num_requests = num_requests
        self._sent = self._answered = self._failed = 0
        self._recent_ttft_s = deque[float](maxlen=RECENT)
        self._next_line_at = LINE_EVERY_S
        # Drawn twice a second: each drawing takes milliseconds from the loop that times tokens.
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            refresh_per_second=2,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("sending", total=num_requests)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def on_event(self, event: Arrival | Timeline | Failure) -> None:
        match event:
            case Arrival(due_at=at):
                self._sent += 1
            case Failure(failed_at=at):
                self._failed += 1
            case Timeline():
                at = event.token_at[-1]
                self._answered += 1
                self._recent_ttft_s.append(event.ttft_s)
        ended = self._answered + self._failed
        self._bar.update(self._task, completed=ended, description=self._state())
        if not self._console.is_terminal and at >= self._next_line_at:
            self._next_line_at = (at // LINE_EVERY_S + 1) * LINE_EVERY_S
            self._console.print(f"{at:.0f} s: {ended} of {self._num_requests} done, {self._state()}")

    def _state(self) -> str:
        waiting = self._sent - self._answered - self._failed
        state = f"{waiting} in flight"
        if self._failed:
            state += f", {self._failed} failed"
        if self._recent_ttft_s:
            state += f", recent TTFT {seconds(median(self._recent_ttft_s))}"
        return state
