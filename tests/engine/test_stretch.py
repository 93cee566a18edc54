"""Skipping quiet steps must leave exactly what taking them leaves."""

from collections import deque
from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from headrace.core.output import FirstToken
from headrace.core.plan import Plan
from headrace.core.ports import StepResult
from headrace.core.settings import SchedulingPolicy
from headrace.engine.engine import Engine
from headrace.scheduler.scheduler import UNDRAWN_TOKEN, Scheduler
from tests.traces import Trace, make_ending_trace


class Run:
    """Plays a trace; with `skips` as a simulation does: quiet steps at once, and no outputs."""

    def __init__(self, trace: Trace, *, skips: bool) -> None:
        self.trace, self.skips = trace, skips
        self.engine = Engine(trace.settings)
        self.in_flight: deque[Plan] = deque()
        self.firsts: list[tuple[str, FirstToken]] = []
        self.ended: list[tuple[int, str]] = []  # after which step
        self.now = self.number = self.skipped = 0

    @property
    def scheduler(self) -> Scheduler:
        return self.engine._scheduler

    def play(self) -> None:
        while self.number <= self.trace.last_step or self.engine.has_unfinished:
            for newcomer in self.trace.arrivals(self.number):
                self.engine.submit(replace(newcomer, arrived_ns=self.now, handed_ns=self.now), self.now)
            for request_id in self.trace.cancels(self.number):
                self.engine.cancel(request_id)
            self.engine.take_ended()
            steps = min(self.engine.quiet_steps(), self._until_news()) if self.skips else 0
            if steps > 0:
                self.number += steps
                self.now += 10 * steps
                self.skipped += steps
                self.engine.skip(steps, self.now)
                self.engine.check()
            else:
                self.step()
            self.ended += [(self.number, work.request.request_id) for work in self.engine.take_ended()]

    def step(self) -> None:
        plan = self.engine.plan(self.now)
        if plan is not None:
            self.in_flight.append(plan)
        self.now += 10
        self.number += 1
        if self.in_flight and (plan is None or len(self.in_flight) == self.trace.settings.steps_in_flight):
            oldest = self.in_flight.popleft()
            if self.skips:
                _, firsts = self.engine.finish_undrawn(oldest, self.now)
                self.firsts += [(work.request.request_id, first) for work, first in firsts]
                return
            # Every token the same, as in a simulation none is drawn: their blocks must hash alike.
            tokens = [UNDRAWN_TOKEN if chunk.samples else None for chunk in oldest.chunks]
            outputs = self.engine.finish(oldest, StepResult(tokens), self.now)
            self.firsts += [(output.request_id, output.first) for output in outputs if output.first]

    def _until_news(self) -> int:
        events = [p.at_step for p in self.trace.requests]
        events += [p.cancel_at_step for p in self.trace.requests if p.cancel_at_step is not None]
        return min((event for event in events if event > self.number), default=10**9) - self.number

    def state(self) -> str:
        scheduler, pool = self.scheduler, self.scheduler.ledger.pool
        # Of twins it matters who comes first; among prefixes there is no order.
        holders = sorted(
            (repr(prefix), [held] if isinstance(held, int) else list(held))
            for prefix, held in pool._holders.items()
        )
        return repr(
            (
                self.engine.stats(),
                pool.free_order(),
                (pool._references, pool._hash_of, holders),
                [
                    [getattr(work, name) for name in work.__slots__ if name != "request"]
                    for work in scheduler.running
                ],
                (self.firsts, self.ended),
            )
        )


# Here one who runs has had no block for ten steps when the holder of the last one ends; the quiet steps that
# follow were once all charged as its waiting, because the plan before them still stood in the accounts.
@example(3000, SchedulingPolicy.SHORTEST)
@given(st.integers(0, 10**9), st.sampled_from([None, SchedulingPolicy.SHORTEST, SchedulingPolicy.SLO]))
def test_skipping_quiet_steps_leaves_what_taking_them_leaves(
    seed: int, policy: SchedulingPolicy | None
) -> None:
    trace = make_ending_trace(seed)
    if (
        policy is not None
    ):  # else one of vLLM's; a step takes 10 ns, so that goals are missed within the trace
        slo = "ttft 1us, itl 1us" if policy is SchedulingPolicy.SLO else ""
        trace = replace(trace, settings=replace(trace.settings, scheduling_policy=policy, slo=slo))
    calm = [
        replace(
            p,
            request=replace(
                p.request, sampling=replace(p.request.sampling, eos_token_id=None, stop_token_ids=frozenset())
            ),
        )
        for p in trace.requests
    ]
    trace = replace(trace, requests=tuple(calm))
    stepping, skipping = Run(trace, skips=False), Run(trace, skips=True)
    stepping.play()
    skipping.play()
    assert skipping.number == stepping.number
    assert skipping.state() == stepping.state()


def test_most_of_a_calm_trace_is_skipped() -> None:
    runs = [Run(make_ending_trace(seed), skips=True) for seed in range(30)]
    for run in runs:
        run.play()
    assert sum(run.skipped for run in runs) > 0.2 * sum(run.number for run in runs)
