"""Send a timetable to a server, each request when it is due, whatever became of the others.

    arrivals, Sender -> run -> (Timeline | Failure, ...)      one per request that was due, in their order

Open loop: nobody waits for anybody, so a server that stalls is asked on and shows in the numbers,
and a latency counts from when the request was due, even where we were late in sending it. Whatever
a sender does (raise, hang, answer nonsense), its request is recorded and the others go on.

The clock reads 0 at the run's start and is the one that the sender was made with.
"""

import asyncio
import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.core.errors import BadInput
from headrace.core.exchange import Answer, Arrival, Broken, Sender
from headrace.core.timeline import Failure, FailureKind, Timeline

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
    arrivals: Sequence[Arrival],
    *,
    clock: Callable[[], float],
    on_event: Callable[[Event], None] | None = None,
    ending: Ending | None = None,
) -> tuple[Timeline | Failure, ...]:
    """Every arrival in order of its due time. After a stop: those that were due until then."""
    in_order = sorted(arrivals, key=lambda arrival: arrival.due_at)
    for arrival in in_order:
        if not math.isfinite(arrival.due_at):
            raise BadInput(f"request {arrival.ask.request_id} is due at {arrival.due_at}, which never comes")
    return await _Run(sender, clock, on_event or _ignore, ending or Ending()).carry_out(in_order)


class _Run:
    def __init__(
        self, sender: Sender, clock: Callable[[], float], on_event: Callable[[Event], None], ending: Ending
    ) -> None:
        self._sender = sender
        self._clock = clock
        self._on_event = on_event
        self._drain_s = ending.drain_s
        self._stop = ending.stop or asyncio.Event()
        self._results = dict[int, Timeline | Failure]()
        self._is_over = False

    async def carry_out(self, arrivals: Sequence[Arrival]) -> tuple[Timeline | Failure, ...]:
        tasks = list[asyncio.Task[None]]()
        try:
            for number, arrival in enumerate(arrivals):
                if not await self._comes_due(arrival.due_at):
                    break
                tasks.append(asyncio.create_task(self._send(number, arrival)))
                self._on_event(arrival)
            await self._drain(tasks)
        finally:
            self._is_over = True
            await _end(tasks)
        for task in tasks:
            if task.done() and not task.cancelled():
                task.result()  # a broken `on_event` is ours, and nothing to hide
        sent = arrivals[: len(tasks)]
        for number, arrival in enumerate(sent):
            if number not in self._results:
                self._record(number, self._given_up(arrival))
        return tuple(self._results[number] for number in range(len(sent)))

    async def _comes_due(self, due_at: float) -> bool:
        """Return at `due_at`, never before; False as soon as the run is stopped."""
        while not self._stop.is_set():
            left_s = due_at - self._clock()
            if left_s <= 0:
                # Behind the timetable nothing is waited for, so the sends must be let run here.
                await asyncio.sleep(0)
                return not self._stop.is_set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._stop.wait()
        return False

    async def _send(self, number: int, arrival: Arrival) -> None:
        outcome = await self._outcome(arrival)
        # What comes only because we let go of it has come too late to count.
        self._record(number, self._given_up(arrival) if self._is_over else outcome)

    async def _outcome(self, arrival: Arrival) -> Timeline | Failure:
        try:
            return _result(arrival, await self._sender.send(arrival.ask))
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the others' run goes on
            reason = f"our own client failed: {type(error).__name__}: {error}"
            return _failure(arrival, Broken(self._clock(), FailureKind.CLIENT_ERROR, reason))

    async def _drain(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        if not tasks:
            return
        stopped = asyncio.create_task(self._stop.wait())
        answered = asyncio.ensure_future(asyncio.wait(tasks))
        both = (stopped, answered)
        try:
            await asyncio.wait(both, timeout=self._drain_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiting in both:
                waiting.cancel()

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
    )


def _failure(arrival: Arrival, broken: Broken) -> Failure:
    return Failure(
        request_id=arrival.ask.request_id,
        request_class=arrival.ask.request_class,
        prompt_tokens=arrival.ask.num_prompt_words,
        due_at=arrival.due_at,
        failed_at=broken.failed_at,
        kind=broken.kind,
        reason=broken.reason,
        tokens_received=broken.tokens_received,
    )


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    unfinished = [task for task in tasks if not task.done()]
    for task in unfinished:
        task.cancel()
    if unfinished:
        await asyncio.wait(unfinished, timeout=CANCEL_S)


def _ignore(event: Event) -> None:
    """Nobody is watching."""
