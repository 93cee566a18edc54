"""What every scheduling policy promises: one set of properties, run on all of them."""

from collections import deque
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.core.output import FirstToken
from headrace.core.plan import Plan
from headrace.core.ports import StepResult
from headrace.core.settings import SchedulingPolicy
from headrace.engine.engine import Engine
from tests.traces import Trace, make_ending_trace

EVERY_POLICY = pytest.mark.parametrize("policy", list(SchedulingPolicy), ids=str)
SEEDS = st.integers(0, 10**9)


@dataclass
class Played:
    """What became of a trace on a clock that jumps unevenly."""

    engine: Engine
    billed: dict[str, FirstToken] = field(default_factory=dict[str, FirstToken])
    ended: list[str] = field(default_factory=list[str])
    decisions: list[object] = field(default_factory=list[object])


def trace_for(policy: SchedulingPolicy, seed: int) -> Trace:
    """With goals that some miss: a step takes a microsecond and more."""
    trace = make_ending_trace(seed)
    slo = "ttft 20us, itl 3us" if policy is SchedulingPolicy.SLO else ""
    return replace(trace, settings=replace(trace.settings, scheduling_policy=policy, slo=slo))


def play(trace: Trace) -> Played:
    """With a recount after every step. With `async_scheduling` a step is planned while one is in flight."""
    played = Played(Engine(trace.settings))
    engine, in_flight = played.engine, deque[Plan]()
    now, number = 0, 0
    while number <= trace.last_step or engine.has_unfinished:
        for newcomer in trace.arrivals(number):
            engine.submit(replace(newcomer, arrived_ns=now - 3, handed_ns=now - 1), now)
        for request_id in trace.cancels(number):
            engine.cancel(request_id)
        now += 7 + number % 5
        plan = engine.plan(now)
        engine.check()
        if plan is not None:
            assert_within_budgets(plan, engine)
            played.decisions.append([(c.work.arrival, c.start, c.tokens) for c in plan.chunks])
            in_flight.append(plan)
        if in_flight and (plan is None or len(in_flight) == trace.settings.steps_in_flight):
            oldest = in_flight.popleft()
            now += 1_000 + 37 * oldest.num_scheduled_tokens
            for output in engine.finish(oldest, StepResult(trace.answers(oldest)), now):
                if output.first:
                    assert output.request_id not in played.billed, "one request, one bill"
                    played.billed[output.request_id] = output.first
        engine.check()
        played.ended += [work.request.request_id for work in engine.take_ended()]
        number += 1
        assert number < 60_000, "it does not end"
    return played


def assert_within_budgets(plan: Plan, engine: Engine) -> None:
    limits, scheduler = engine.settings, engine._scheduler
    assert plan.num_scheduled_tokens == sum(chunk.tokens for chunk in plan.chunks)
    assert plan.num_scheduled_tokens <= limits.max_num_batched_tokens
    assert len(scheduler.running) <= limits.max_num_seqs
    assert not (plan.preempted and plan.admitted), "nobody is admitted in a step that preempts"
    assert (plan.queue_stopped_by is None) == (len(scheduler.waiting) == 0), "every wait has a name"
    assert (plan.starved_by is None) == (not plan.starved)
    served = {chunk.work.arrival for chunk in plan.chunks}
    assert len(served) == len(plan.chunks), "one chunk each"
    assert served.isdisjoint(work.arrival for work in plan.starved)
    waits_for_its_last_token = {
        w.arrival for w in scheduler.running if w.num_computed_tokens + 1 >= w.token_limit
    }
    running = {work.arrival for work in scheduler.running}
    assert running - waits_for_its_last_token <= served | {work.arrival for work in plan.starved}
    assert served <= running


@EVERY_POLICY
@given(SEEDS)
@example(506995)  # priority: a request that gave way last left the tokens of earlier victims counted
@example(67)  # slo: who had been admitted gave way to an overdue prompt in the same step
def test_every_request_ends_within_the_budgets_and_gives_its_blocks_back(
    policy: SchedulingPolicy, seed: int
) -> None:
    trace = trace_for(policy, seed)
    played = play(trace)
    assert sorted(played.ended) == sorted(planned.request.request_id for planned in trace.requests)
    assert played.engine.stats().free_blocks == trace.settings.usable_blocks
    assert played.engine.plan(10**12) is None


@EVERY_POLICY
@given(SEEDS)
def test_the_parts_of_every_bill_sum_to_its_ttft_exactly(policy: SchedulingPolicy, seed: int) -> None:
    for first in play(trace_for(policy, seed)).billed.values():
        assert first.bill.ttft_ns == first.first_token_ns - (first.queued_ns - 2)
        assert first.queued_ns <= first.scheduled_ns < first.first_token_ns


@EVERY_POLICY
@given(SEEDS)
def test_two_runs_in_one_process_decide_the_same(policy: SchedulingPolicy, seed: int) -> None:
    first, again = play(trace_for(policy, seed)), play(trace_for(policy, seed))
    assert first.decisions == again.decisions
    assert repr(first.billed) == repr(again.billed)
