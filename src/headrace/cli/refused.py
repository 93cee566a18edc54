"""End a run that nobody answers: refused for good, or no server there, instead of sending it the rest."""

import asyncio
import re
from collections.abc import Callable

from headrace.core.timeline import Failure, FailureKind, Timeline
from headrace.measure.run import Event

ENOUGH = 10
_STATUS = re.compile(r"(\d+)")
PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Refusals that a later request may be spared."""


class GivesUp:
    """Hand `on_event` to a run; it sets `stop` and says `why`."""

    def __init__(self, stop: asyncio.Event, tell: Callable[[Event], None]) -> None:
        self._stop = stop
        self._tell = tell
        self._refused = 0
        self._is_answered = False
        self.why: str | None = None

    def on_event(self, event: Event) -> None:
        self._tell(event)
        if isinstance(event, Timeline):
            self._is_answered = True
        elif isinstance(event, Failure) and not self._is_answered:
            self._refused = self._refused + 1 if _for_good(event) else 0
            if self._refused == ENOUGH:
                self.why = f"none of the first {ENOUGH} requests was taken: {event.reason}"
                self._stop.set()


def _for_good(failure: Failure) -> bool:
    if failure.kind is FailureKind.UNREACHABLE:
        return True
    status = _STATUS.match(failure.reason)
    return failure.kind is FailureKind.REFUSED and status is not None and int(status[1]) not in PASSING
