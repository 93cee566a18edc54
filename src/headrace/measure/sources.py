"""What decides when requests are due: a timetable, conversations, or answers.

    Source.first() -> arrivals known from the start
    Source.ended(request_id, at) -> arrivals that this ending makes due

A source is told what ended and never asks the clock, so the same one can be played in virtual time.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from headrace.core.errors import BadInput
from headrace.core.exchange import Arrival, Ask


class Source(Protocol):
    """Hands out every request once."""

    def first(self) -> Sequence[Arrival]: ...

    def ended(self, request_id: str, at: float, /) -> Sequence[Arrival]:
        """Arrivals that were waiting for this one, with the instants at which they are due."""
        ...


class Timetable:
    """Requests that are due when they are due, and turns that wait for the answer before them."""

    def __init__(self, arrivals: Sequence[Arrival]) -> None:
        self._first = [arrival for arrival in arrivals if arrival.after is None]
        self._waiting = defaultdict[str, list[Arrival]](list)
        for arrival in arrivals:
            if arrival.after is not None:
                self._waiting[arrival.after].append(arrival)
        if self._waiting:
            self._check(arrivals)

    def first(self) -> Sequence[Arrival]:
        return self._first

    def ended(self, request_id: str, at: float, /) -> Sequence[Arrival]:
        turns = self._waiting.pop(request_id, ())
        return [replace(turn, due_at=at + turn.think_s) for turn in turns]

    def _check(self, arrivals: Sequence[Arrival]) -> None:
        """A turn that waits for nothing that is sent would never be due."""
        reached = list(self._first)
        seen = {arrival.ask.request_id for arrival in reached}
        if len(seen) < len(reached) or len({a.ask.request_id for a in arrivals}) < len(arrivals):
            raise BadInput("two requests of a timetable with conversations have the same id")
        while reached:
            for turn in self._waiting.get(reached.pop().ask.request_id, ()):
                seen.add(turn.ask.request_id)
                reached.append(turn)
        lost = [arrival for arrival in arrivals if arrival.ask.request_id not in seen]
        if lost:
            raise BadInput(f"request {lost[0].ask.request_id} waits for {lost[0].after}, which is never sent")


class Closed:
    """So many requests always in flight: each answer makes the next one due, as long as the run lasts.

    The first ones are spread over `ramp_s`: all at once they would be a burst that no later moment of
    the run sees again, and its latencies would stand in the tail of every percentile.
    """

    def __init__(self, asks: Iterator[Ask], concurrency: int, *, until_s: float, ramp_s: float = 0.0) -> None:
        if concurrency < 1:
            raise BadInput(f"{concurrency} requests at once are none; at least 1")
        self._asks = asks
        self._concurrency = concurrency
        self._until_s = until_s
        self._ramp_s = ramp_s

    def first(self) -> Sequence[Arrival]:
        gap_s = self._ramp_s / self._concurrency
        due = (place * gap_s for place in range(self._concurrency))
        return [Arrival(at, ask) for at, ask in zip(due, self._asks, strict=False)]

    def ended(self, _request_id: str, at: float, /) -> Sequence[Arrival]:
        if at >= self._until_s:
            return ()
        ask = next(self._asks, None)
        return () if ask is None else (Arrival(at, ask),)
