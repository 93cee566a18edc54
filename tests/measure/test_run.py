import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import BadInput
from headrace.core.exchange import Answer, Arrival, Ask, Broken
from headrace.core.timeline import Failure, FailureKind, Timeline
from headrace.measure.run import Ending, Event, run

Clock = Callable[[], float]


def clock() -> Clock:
    started = time.monotonic()
    return lambda: time.monotonic() - started


def arrivals(*due_at: float) -> tuple[Arrival, ...]:
    return tuple(Arrival(at, Ask(f"r{n}", "short", "a prompt", 1)) for n, at in enumerate(due_at))


async def raises() -> None:
    raise RuntimeError("a bug of ours")


async def cancels_itself() -> None:
    raise asyncio.CancelledError


async def hangs() -> None:
    await asyncio.Event().wait()


async def takes_no_end() -> None:
    """Goes on when it is cancelled, and answers too late."""
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.Event().wait()


class Misbehaving:
    """Does to the n-th request what the n-th deed says."""

    _GOING_WRONG: ClassVar = {
        "raises": raises,
        "cancels itself": cancels_itself,
        "hangs": hangs,
        "takes no end": takes_no_end,
    }

    def __init__(self, now: Clock, deeds: Sequence[str]) -> None:
        self._now = now
        self._deeds = dict(enumerate(deeds))

    async def send(self, ask: Ask) -> Answer | Broken:
        deed = self._deeds[int(ask.request_id[1:])]
        sent_at = self._now()
        if deed in self._GOING_WRONG:
            await self._GOING_WRONG[deed]()
        if deed == "breaks":
            return Broken(self._now(), FailureKind.CUT, "gone", 3)
        impossible = {
            "answers with nothing": (),
            "answers from the past": (sent_at - 1,),
            "answers nonsense": (float("nan"),),
        }
        return self._answer(sent_at, impossible.get(deed, (self._now(),)))

    def _answer(self, sent_at: float, token_at: tuple[float, ...]) -> Answer:
        return Answer(sent_at, token_at, "length", 2, 0, None)


KIND_OF = {
    "raises": FailureKind.CLIENT_ERROR,
    "cancels itself": FailureKind.CLIENT_ERROR,
    "hangs": FailureKind.TIMED_OUT,
    "takes no end": FailureKind.TIMED_OUT,
    "breaks": FailureKind.CUT,
    "answers with nothing": FailureKind.CLIENT_ERROR,
    "answers from the past": FailureKind.CLIENT_ERROR,
    "answers nonsense": FailureKind.CLIENT_ERROR,
    "answers": None,
}


async def run_against(deeds: Sequence[str], due_at: Sequence[float], drain_s: float = 0.02) -> tuple[
    tuple[Timeline | Failure, ...], list[Event]
]:  # fmt: skip
    now = clock()
    seen = list[Event]()
    results = await run(
        Misbehaving(now, deeds),
        arrivals(*due_at),
        clock=now,
        on_event=seen.append,
        ending=Ending(drain_s=drain_s),
    )
    return results, seen


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(sorted(KIND_OF)), st.floats(0, 0.02)), max_size=8))
def test_every_request_that_was_due_appears_once_whatever_the_sender_does(
    requests: list[tuple[str, float]],
) -> None:
    deeds, due_at = [deed for deed, _ in requests], [at for _, at in requests]

    results, seen = asyncio.run(run_against(deeds, due_at))

    in_order = sorted(range(len(requests)), key=lambda number: due_at[number])
    assert [result.request_id for result in results] == [f"r{number}" for number in in_order]
    kinds = [result.kind if isinstance(result, Failure) else None for result in results]
    assert kinds == [KIND_OF[deeds[number]] for number in in_order]
    assert [event.ask.request_id for event in seen if isinstance(event, Arrival)] == [
        result.request_id for result in results
    ]
    ended = [event for event in seen if not isinstance(event, Arrival)]
    assert sorted(ended, key=lambda e: e.request_id) == sorted(results, key=lambda e: e.request_id)


def test_nobody_waits_for_anybody() -> None:
    results, _ = asyncio.run(run_against(["hangs", "answers", "hangs", "answers"], [0, 0.01, 0.02, 0.03]))

    assert [type(result) for result in results] == [Failure, Timeline, Failure, Timeline]


def test_no_request_leaves_before_it_is_due() -> None:
    results, _ = asyncio.run(run_against(["answers"] * 50, [n / 1000 for n in range(50)], drain_s=1))

    assert all(isinstance(r, Timeline) and r.dispatch_lag_s >= 0 for r in results)


def test_lateness_of_ours_is_in_the_latency_and_on_record() -> None:
    """A sender that blocks the loop is the client's fault; the timetable does not move for it."""

    class Blocking:
        async def send(self, ask: Ask) -> Answer:
            sent_at = now()
            time.sleep(0.03)  # noqa: ASYNC251 - the fault under test
            return Answer(sent_at, (now(),), "length", 2, 0, None)

    now = clock()
    _, second = asyncio.run(run(Blocking(), arrivals(0.0, 0.005), clock=now))

    assert isinstance(second, Timeline)
    assert second.due_at == 0.005
    assert second.dispatch_lag_s >= 0.02
    assert second.ttft_s >= 0.05


def test_a_server_that_stalls_shows_in_full_in_the_percentiles() -> None:
    """Closed-loop testers leave out what would have been sent meanwhile: coordinated omission."""
    due_at = [n / 300 for n in range(50)]
    stall = (0.03, 0.15)

    class Stalling:
        async def send(self, ask: Ask) -> Answer:
            sent_at = now()
            if stall[0] <= sent_at < stall[1]:
                await asyncio.sleep(stall[1] - sent_at)
            return Answer(sent_at, (now(),), "length", 2, 0, None)

    now = clock()
    results = asyncio.run(run(Stalling(), arrivals(*due_at), clock=now))

    for result in results:
        assert isinstance(result, Timeline)
        if stall[0] <= result.due_at < stall[1]:
            assert result.ttft_s >= stall[1] - result.due_at
    assert sum(isinstance(r, Timeline) and r.ttft_s > 0.03 for r in results) >= 20


def test_a_stop_ends_the_run_at_once_with_what_was_due_until_then() -> None:
    async def stopped_early() -> tuple[Timeline | Failure, ...]:
        now, stop = clock(), asyncio.Event()

        def stop_at_second(event: Event) -> None:
            if isinstance(event, Arrival) and event.ask.request_id == "r1":
                stop.set()

        return await run(
            Misbehaving(now, ["answers", "hangs", "answers"]),
            arrivals(0.0, 0.01, 3600.0),
            clock=now,
            on_event=stop_at_second,
            ending=Ending(stop=stop),
        )

    answered, interrupted = asyncio.run(stopped_early())

    assert isinstance(answered, Timeline)
    assert isinstance(interrupted, Failure)
    assert interrupted.kind is FailureKind.INTERRUPTED


def test_a_run_without_arrivals_is_over_at_once() -> None:
    assert asyncio.run(run_against([], [])) == ((), [])


@pytest.mark.parametrize("due_at", [float("nan"), float("inf")])
def test_a_request_that_never_comes_due_is_refused(due_at: float) -> None:
    with pytest.raises(BadInput, match="never comes"):
        asyncio.run(run_against(["answers"], [due_at]))


def test_a_display_that_breaks_is_not_hidden() -> None:
    def broken_display(event: Event) -> None:
        if isinstance(event, Timeline):
            raise ZeroDivisionError

    now = clock()
    with pytest.raises(ZeroDivisionError):
        asyncio.run(run(Misbehaving(now, ["answers"]), arrivals(0.0), clock=now, on_event=broken_display))
