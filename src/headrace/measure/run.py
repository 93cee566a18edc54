"""Send requests to a server, each when it is due, whatever became of the others.

    Source, Sender -> run -> (Timeline | Failure, ...)      one per request that was due, in that order

A latency counts from when its request was due, even where we were late in sending it. In an open loop
nobody waits for anybody, so a server that stalls is asked on and shows in the numbers. Whatever a
sender does (raise, hang, answer nonsense), its request is recorded and the others go on.

The clock reads 0 at the run's start and is the one that the sender was made with.
"""

import asyncio
import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.core.errors import BadInput
from headrace.core.exchange import Answer, Arrival, Broken, Sender
from headrace.core.timeline import Failure, FailureKind, Timeline
from headrace.measure.sources import Source, Timetable

Event = Arrival | Timeline | Failure
"""An `Arrival` when its request leaves, what became of it when that is known."""

DRAIN_S = 300.0
CANCEL_S = 2.0
"""What a sender gets to take its cancellation; one that ignores it is left behind."""


@dataclass(frozen=True, slots=True)
class Ending:
    """When a run ends although answers are missing."""

    drain_s: float = DRAIN_S
    """How long after the last due time answers are waited for."""
    stop: asyncio.Event | None = None
    """Set it, and nothing more is sent and nothing more waited for."""


async def run(
    sender: Sender,
    arrivals: Sequence[Arrival] | Source,
    *,
    clock: Callable[[], float],
    on_event: Callable[[Event], None] | None = None,
    ending: Ending | None = None,
) -> tuple[Timeline | Failure, ...]:
    """Everything that was due, in the order of due times. After a stop: what was due until then."""
    source = Timetable(arrivals) if isinstance(arrivals, Sequence) else arrivals
    return await _Run(sender, clock, on_event or _ignore, ending or Ending()).carry_out(source)


class _Run:
    def __init__(
        self, sender: Sender, clock: Callable[[], float], on_event: Callable[[Event], None], ending: Ending
    ) -> None:
        self._sender = sender
        self._clock = clock
        self._on_event = on_event
        self._drain_s = ending.drain_s
        self._stop = ending.stop or asyncio.Event()
        self._due: list[tuple[float, int, Arrival]] = []
        self._known = 0  # arrivals so far; where two are due at once, who was known first goes first
        self._sent: list[Arrival] = []
        self._results = dict[int, Timeline | Failure]()
        self._tasks = set[asyncio.Task[None]]()
        self._woken = asyncio.Event()
        self._is_over = False
        self._fault: BaseException | None = None

    async def carry_out(self, source: Source) -> tuple[Timeline | Failure, ...]:
        self._expect(source.first())
        stopped = asyncio.create_task(self._wake_at_stop())
        try:
            while not self._stop.is_set() and await self._wait_for_next():
                self._send_next(source)
                # Behind the timetable nothing is waited for, so the sends must be let run here.
                await asyncio.sleep(0)
        finally:
            self._is_over = True
            stopped.cancel()
            await _end(self._tasks)
        if self._fault is not None:
            raise self._fault  # a broken `on_event` is ours, and nothing to hide
        for number, arrival in enumerate(self._sent):
            if number not in self._results:
                self._record(number, self._given_up(arrival))
        return tuple(self._results[number] for number in range(len(self._sent)))

    def _expect(self, arrivals: Sequence[Arrival]) -> None:
        for arrival in arrivals:
            if not math.isfinite(arrival.due_at):
                raise BadInput(
                    f"request {arrival.ask.request_id} is due at {arrival.due_at}, which never comes"
                )
            heapq.heappush(self._due, (arrival.due_at, self._known, arrival))
            self._known += 1

    async def _wait_for_next(self) -> bool:
        """Return when something is due, never before; False when the run is over."""
        while self._fault is None:
            if self._due:
                until = self._due[0][0]
            elif self._tasks:
                until = max((arrival.due_at for arrival in self._sent[-1:]), default=0.0) + self._drain_s
            else:
                return False
            left_s = until - self._clock()
            if left_s <= 0:
                return bool(self._due)
            await self._sleep(left_s)
            if self._stop.is_set():
                return False
        return False

    async def _sleep(self, left_s: float) -> None:
        """Until it has passed, or something has ended, or the run is stopped."""
        self._woken.clear()
        alarm = asyncio.get_running_loop().call_later(left_s, self._woken.set)
        await self._woken.wait()
        alarm.cancel()

    async def _wake_at_stop(self) -> None:
        await self._stop.wait()
        self._woken.set()

    def _send_next(self, source: Source) -> None:
        _, _, arrival = heapq.heappop(self._due)
        task = asyncio.create_task(self._send(len(self._sent), arrival, source))
        self._sent.append(arrival)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        self._on_event(arrival)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and self._fault is None:
            self._fault = task.exception()
        if not self._tasks or not self._due or self._fault is not None:
            self._woken.set()

    async def _send(self, number: int, arrival: Arrival, source: Source) -> None:
        outcome = await self._outcome(arrival)
        # What comes only because we let go of it has come too late to count.
        self._record(number, self._given_up(arrival) if self._is_over else outcome)
        if not self._is_over and (following := source.ended(arrival.ask.request_id, self._clock())):
            self._expect(following)
            self._woken.set()

    async def _outcome(self, arrival: Arrival) -> Timeline | Failure:
        try:
            return _result(arrival, await self._sender.send(arrival.ask))
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the others' run goes on
            reason = f"our own client failed: {type(error).__name__}: {error}"
            return _failure(arrival, Broken(self._clock(), FailureKind.CLIENT_ERROR, reason))

    def _record(self, number: int, result: Timeline | Failure) -> None:
        if number not in self._results:  # a sender left behind may still come with something
            self._results[number] = result
            self._on_event(result)

    def _given_up(self, arrival: Arrival) -> Failure:
        now = self._clock()
        if self._stop.is_set():
            return _failure(arrival, Broken(now, FailureKind.INTERRUPTED, "the run was stopped"))
        reason = f"no whole answer {self._drain_s:g} s after the last request was due"
        return _failure(arrival, Broken(now, FailureKind.TIMED_OUT, reason))


def _result(arrival: Arrival, outcome: Answer | Broken) -> Timeline | Failure:
    """Raises ValueError when an answer cannot be, as with instants that run backwards."""
    if isinstance(outcome, Broken):
        return _failure(arrival, outcome)
    return Timeline(
        request_id=arrival.ask.request_id,
        request_class=arrival.ask.request_class,
        prompt_tokens=outcome.prompt_tokens,
        due_at=arrival.due_at,
        sent_at=outcome.sent_at,
        token_at=outcome.token_at,
        finish_reason=outcome.finish_reason,
        cached_tokens=outcome.cached_tokens,
        bill_s=outcome.bill_s,
        asked_tokens=arrival.ask.max_tokens if arrival.ask.ignore_eos else 0,
        usage_tokens=outcome.usage_tokens,
        token_events=outcome.token_events,
        asked_prompt_tokens=arrival.ask.prompt_tokens,
    )


def _failure(arrival: Arrival, broken: Broken) -> Failure:
    return Failure(
        request_id=arrival.ask.request_id,
        request_class=arrival.ask.request_class,
        prompt_tokens=arrival.ask.expected_prompt_tokens,
        due_at=arrival.due_at,
        failed_at=broken.failed_at,
        kind=broken.kind,
        reason=broken.reason,
        tokens_received=broken.tokens_received,
        sent_at=broken.sent_at,
    )


async def _end(tasks: set[asyncio.Task[None]]) -> None:
    unfinished = [task for task in tasks if not task.done()]
    for task in unfinished:
        task.cancel()
    if unfinished:
        await asyncio.wait(unfinished, timeout=CANCEL_S)


def _ignore(event: Event) -> None:
    """Nobody is watching."""
