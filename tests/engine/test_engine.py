"""The engine's door, its life cycle, and the bill of every request."""

from collections import deque
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.bill import Bill, Cause
from headrace.core.errors import BadInput, NeverFits
from headrace.core.output import FirstToken, Output, TokenLogprobs
from headrace.core.plan import Plan
from headrace.core.ports import StepResult
from headrace.core.request import FinishReason, Request, SamplingParams
from headrace.core.settings import SchedulingPolicy, Settings
from headrace.engine.engine import Engine
from tests.traces import Trace, make_ending_trace

ROOMY = Settings(
    max_model_len=512, num_gpu_blocks=200, block_size=16, max_num_batched_tokens=64, max_num_seqs=8
)


def request(name: str, prompt: int, max_tokens: int = 8, arrived: int = 0, handed: int = 0) -> Request:
    tokens = tuple(1000 * (1 + sum(name.encode())) + index for index in range(prompt))
    return Request(name, tokens, SamplingParams(max_tokens=max_tokens), arrived, handed)


def step(engine: Engine, start: int, end: int) -> dict[str, Output]:
    plan = engine.plan(start)
    assert plan is not None
    outputs = engine.finish(plan, StepResult([7 if chunk.samples else None for chunk in plan.chunks]), end)
    engine.check()
    return {output.request_id: output for output in outputs}


def waited(engine: Engine) -> dict[Cause, int]:
    return {cause: ns for cause, ns in zip(Cause, engine.stats().waited_ns, strict=True) if ns}


def bill(output: Output) -> dict[Cause, int]:
    assert output.first is not None
    return {cause: ns for cause, ns in zip(Cause, output.first.bill.parts_ns, strict=True) if ns}


def run(trace: Trace) -> tuple[Engine, dict[str, FirstToken], list[str]]:
    """Play a trace on a clock that jumps unevenly; return what was billed and what ended.

    With `async_scheduling` a step is planned while the one before is in flight.
    """
    engine = Engine(trace.settings)
    billed: dict[str, FirstToken] = {}
    ended: list[str] = []
    in_flight: deque[Plan] = deque()
    now, number = 0, 0
    while number <= trace.last_step or engine.has_unfinished:
        for newcomer in trace.arrivals(number):
            engine.submit(replace(newcomer, arrived_ns=now - 3, handed_ns=now - 1), now)
        for request_id in trace.cancels(number):
            engine.cancel(request_id)
        now += 7 + number % 5
        plan = engine.plan(now)
        if plan is not None:
            in_flight.append(plan)
        if in_flight and (plan is None or len(in_flight) == trace.settings.steps_in_flight):
            oldest = in_flight.popleft()
            now += 1_000 + 37 * oldest.num_scheduled_tokens
            for output in engine.finish(oldest, StepResult(trace.answers(oldest)), now):
                if output.first:
                    assert output.request_id not in billed, "one request, one bill"
                    billed[output.request_id] = output.first
        engine.check()
        ended += [work.request.request_id for work in engine.take_ended()]
        number += 1
    return engine, billed, ended


@given(st.integers(0, 10**9))
def test_the_parts_of_every_bill_sum_to_its_ttft_exactly(seed: int) -> None:
    trace = make_ending_trace(seed)
    engine, billed, ended = run(trace)
    for first in billed.values():
        arrived_ns = first.queued_ns - 2
        assert first.bill.ttft_ns == first.first_token_ns - arrived_ns
        assert first.queued_ns <= first.scheduled_ns < first.first_token_ns
    assert sorted(ended) == sorted(planned.request.request_id for planned in trace.requests)
    assert engine.stats().free_blocks == trace.settings.usable_blocks
    assert engine.plan(10**12) is None


@given(st.integers(0, 10**9))
def test_two_runs_in_one_process_are_the_same(seed: int) -> None:
    first, again = run(make_ending_trace(seed)), run(make_ending_trace(seed))
    assert repr(first[1:]) == repr(again[1:])
    assert first[0].stats() == again[0].stats()


def test_a_lone_request_pays_for_the_front_end_and_its_own_prefill() -> None:
    engine = Engine(ROOMY)
    engine.submit(request("a", 100, arrived=0, handed=5), 10)
    assert step(engine, 10, 110) == {}
    output = step(engine, 112, 200)["a"]
    assert bill(output) == {Cause.FRONT_END: 5, Cause.STEP_IN_FLIGHT: 5, Cause.OWN_PREFILL: 190}


def test_who_comes_during_a_step_waits_for_it_and_shares_the_next() -> None:
    engine = Engine(ROOMY)
    engine.submit(request("a", 32), 0)
    plan = engine.plan(0)
    assert plan is not None
    engine.finish(plan, StepResult([7]), 100)
    engine.submit(request("b", 31, arrived=40, handed=40), 100)
    output = step(engine, 100, 132)["b"]  # 32 tokens: one of `a`, 31 of `b`
    assert bill(output) == {Cause.STEP_IN_FLIGHT: 60, Cause.OWN_PREFILL: 31, Cause.SHARED_STEPS: 1}


def test_behind_a_long_prompt_the_wait_is_for_tokens() -> None:
    engine = Engine(ROOMY)
    engine.submit(request("long", 128), 0)
    engine.submit(request("short", 10), 0)
    step(engine, 0, 100)
    step(engine, 100, 200)
    output = step(engine, 200, 300)["short"]  # eleven tokens: one of `long`, ten of `short`
    assert bill(output) == {Cause.TOKENS: 200, Cause.OWN_PREFILL: 90, Cause.SHARED_STEPS: 10}


def test_behind_full_slots_the_wait_is_for_slots() -> None:
    engine = Engine(replace(ROOMY, max_num_seqs=1))
    engine.submit(request("a", 10, max_tokens=2), 0)
    engine.submit(request("b", 10), 0)
    step(engine, 0, 100)
    step(engine, 100, 200)
    output = step(engine, 200, 300)["b"]
    assert bill(output) == {Cause.SLOTS: 200, Cause.OWN_PREFILL: 100}


def test_behind_a_full_pool_the_wait_is_for_kv() -> None:
    engine = Engine(replace(ROOMY, num_gpu_blocks=5))
    engine.submit(request("a", 48, max_tokens=2), 0)
    engine.submit(request("b", 40, max_tokens=2), 0)
    step(engine, 0, 100)
    step(engine, 100, 200)
    output = step(engine, 200, 300)["b"]
    assert bill(output) == {Cause.KV: 200, Cause.OWN_PREFILL: 100}


def test_held_down_by_the_threshold_the_others_share_is_charged_to_the_cap() -> None:
    engine = Engine(replace(ROOMY, long_prefill_token_threshold=16))
    engine.submit(request("a", 16), 0)
    engine.submit(request("long", 32), 0)
    step(engine, 0, 100)  # 16 and 16
    output = step(engine, 100, 117)["long"]  # one token of `a`, the last 16 of `long`
    assert bill(output) == {Cause.OWN_PREFILL: 66, Cause.LONG_PREFILL_CAP: 50, Cause.SHARED_STEPS: 1}


def test_what_a_preemption_threw_away_is_charged_as_recompute() -> None:
    tight = replace(ROOMY, num_gpu_blocks=5, enable_prefix_caching=False, scheduler_reserve_full_isl=False)
    engine = Engine(replace(tight, max_num_batched_tokens=33))
    engine.submit(request("old", 31, max_tokens=3), 0)
    engine.submit(request("long", 60, max_tokens=1), 0)
    step(engine, 0, 100)  # old 31 in two blocks, long 2 in one
    step(engine, 100, 200)  # old 1, long 32 wants a third block: the pool of four is full, it gives way
    billed = None
    for start in range(200, 2_000, 100):
        if (outputs := step(engine, start, start + 100)) and "long" in outputs:
            billed = bill(outputs["long"])
            break
    assert billed is not None
    assert billed[Cause.RECOMPUTE] > 0
    assert billed[Cause.KV] > 0


def test_what_can_never_fit_is_refused_at_the_door_with_the_numbers() -> None:
    engine = Engine(replace(ROOMY, num_gpu_blocks=5))
    with pytest.raises(NeverFits, match="prompt has 512 tokens, and max_model_len is 512"):
        engine.submit(request("a", 512), 0)
    with pytest.raises(NeverFits, match=r"up to 5 KV blocks \(65 tokens\), and the engine has 4"):
        engine.submit(request("a", 60, max_tokens=6), 0)
    with pytest.raises(BadInput, match="empty"):
        engine.submit(request("a", 0), 0)
    assert not engine.has_unfinished
    engine.submit(request("a", 60, max_tokens=5), 0)  # the last token needs no room: 64 fit
    while engine.has_unfinished:
        step(engine, 0, 0)


def test_an_id_is_taken_while_its_request_runs_and_free_after() -> None:
    engine = Engine(ROOMY)
    engine.submit(request("a", 5), 0)
    with pytest.raises(BadInput, match="id a is running"):
        engine.submit(request("a", 5), 0)
    assert engine.cancel("a")
    assert not engine.cancel("a")
    engine.submit(request("a", 5), 0)


def test_a_bill_has_all_parts_and_none_is_negative() -> None:
    with pytest.raises(ValueError, match="none negative"):
        Bill((-1,) + (0,) * 9)
    with pytest.raises(ValueError, match="10 parts"):
        Bill((1, 2))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"max_num_batched_tokens": 4}, r"max_num_batched_tokens \(4\) must be at least max_num_seqs \(8\)"),
        ({"num_gpu_blocks": 1}, "at least 2 are needed"),
        ({"enable_chunked_prefill": False}, "smaller than max_model_len"),
        ({"long_prefill_token_threshold": 513}, "must lie between 0"),
        ({"long_prefill_token_threshold": -1}, "must lie between 0"),
        ({"watermark": 1.0}, "share of the pool"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0"),
        ({"vllm_version": "0.99"}, "vllm_version is '0.99', whose rules are not known here"),
        ({"vllm_version": "0.23", "watermark": 0.1}, r"watermark is 0.1; vLLM 0.23 has no such setting"),
    ],
)
def test_settings_that_vllm_would_refuse_are_refused(
    change: dict[str, int | float | str], complaint: str
) -> None:
    with pytest.raises(BadInput, match=complaint):
        replace(ROOMY, **change)


def test_a_request_that_failed_in_a_step_ends_alone_and_gives_its_blocks_back() -> None:
    engine = Engine(ROOMY)
    for name in "ab":
        engine.submit(request(name, 20), 0)
    plan = engine.plan(0)
    assert plan is not None
    outputs = engine.finish(plan, StepResult([None, 7], failed={0: "its grammar is at an end"}), 100)
    assert {output.request_id: (output.token_ids, output.finish_reason) for output in outputs} == {
        "b": ([7], None),
        "a": ([], FinishReason.ERROR),
    }
    assert [work.request.request_id for work in engine.take_ended()] == ["a"]
    assert engine.stats().running == 1
    engine.check()


def test_log_probabilities_go_to_the_requests_that_asked() -> None:
    engine = Engine(ROOMY)
    for name in "abc":
        engine.submit(request(name, 20), 0)
    plan = engine.plan(0)
    assert plan is not None
    engine.cancel("b")
    likely = {place: TokenLogprobs(7, -0.1 * place, 1, ()) for place in (1, 2)}
    of_prompt = [TokenLogprobs(1, -3.0, 4, ())] * 19
    outputs = engine.finish(plan, StepResult([7, 7, 7], likely, {0: of_prompt}), 100)
    assert [(each.request_id, each.logprobs, each.prompt_logprobs) for each in outputs] == [
        ("a", None, of_prompt),
        ("c", [likely[2]], None),
    ]


def test_a_request_for_the_probabilities_of_its_prompt_reads_no_prefix() -> None:
    engine = Engine(ROOMY)
    starts: dict[str, int] = {}
    for name, num_prompt_logprobs in (("first", None), ("asks", 0), ("last", None)):
        asked = replace(request("same", 40), request_id=name)
        sampling = replace(asked.sampling, num_prompt_logprobs=num_prompt_logprobs)
        engine.submit(replace(asked, sampling=sampling), 0)
        plan = engine.plan(0)
        assert plan is not None
        starts |= {
            chunk.work.request.request_id: chunk.start for chunk in plan.chunks if chunk.work in plan.admitted
        }
        engine.finish(plan, StepResult([7] * len(plan.chunks)), 0)
    assert starts == {"first": 0, "asks": 0, "last": 32}
    assert engine.stats().prefix_cache_queries == 80, "who does not look is not counted, as in vLLM"


# --- what all requests wait for, while they wait --------------------------------------------------------


def test_a_wait_shows_while_it_lasts_for_everybody_in_the_queue() -> None:
    """A bill comes with the first token: of those who have not got that far it says nothing."""
    engine = Engine(replace(ROOMY, max_num_seqs=1))
    for name in "abc":
        engine.submit(request(name, 10), 0)
    step(engine, 0, 100)
    assert waited(engine) == {Cause.SLOTS: 200}
    engine.cancel("c")
    step(engine, 100, 200)
    assert waited(engine) == {Cause.SLOTS: 300}


def test_who_runs_and_gets_no_token_waits_too() -> None:
    engine = Engine(replace(ROOMY, max_num_batched_tokens=16, long_prefill_token_threshold=15))
    for name in ("first", "second", "third"):
        engine.submit(request(name, 40), 0)
    step(engine, 0, 100)  # 15 tokens of the first and one of the second; the third is in the queue
    assert waited(engine) == {Cause.TOKENS: 100}
    step(engine, 100, 200)
    step(engine, 200, 300)
    step(engine, 300, 400)  # the first decodes, the second has the rest of the step
    assert waited(engine) == {Cause.TOKENS: 400}


def test_nobody_has_waited_for_what_an_idle_engine_did_last() -> None:
    engine = Engine(replace(ROOMY, max_num_seqs=1))
    engine.submit(request("a", 10), 0)
    engine.submit(request("b", 10), 0)
    step(engine, 0, 100)
    engine.cancel("a")
    engine.cancel("b")
    engine.submit(request("c", 10, arrived=10**9, handed=10**9), 10**9)
    step(engine, 10**9, 10**9 + 100)
    assert waited(engine) == {Cause.SLOTS: 100}


def test_where_a_policy_keeps_tokens_for_decodes_the_wait_is_for_their_pace() -> None:
    policy = SchedulingPolicy.SLO
    engine = Engine(replace(ROOMY, scheduling_policy=policy, slo="ttft 1s, itl 1us"))
    engine.submit(request("decodes", 10, max_tokens=100), 0)
    step(engine, 0, 1_000)
    engine.submit(request("late", 60, arrived=1_000, handed=1_000), 1_000)
    engine.submit(request("later", 60, arrived=1_000, handed=1_000), 1_000)
    now = 1_000
    while "later" not in step(engine, now, now + 1_000):
        now += 1_000
    assert waited(engine).keys() == {Cause.DECODE_PACE}


@given(st.integers(0, 10**9))
def test_what_all_have_waited_covers_every_bill(seed: int) -> None:
    trace = make_ending_trace(seed)
    engine, billed, _ = run(trace)
    by_cause = dict(zip(Cause, engine.stats().waited_ns, strict=True))
    for cause in (Cause.SLOTS, Cause.TOKENS, Cause.KV):
        billed_ns = sum(
            dict(zip(Cause, first.bill.parts_ns, strict=True))[cause] for first in billed.values()
        )
        assert by_cause[cause] >= billed_ns
