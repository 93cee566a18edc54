"""vLLM's rules, each as a sentence, and what must hold after every step of any trace."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.bill import Cause
from headrace.core.plan import Plan, Status
from headrace.core.request import FinishReason, Request, SamplingParams
from headrace.core.settings import SchedulingPolicy, Settings
from headrace.scheduler.scheduler import Scheduler
from tests.traces import make_ending_trace

ROOMY = Settings(
    max_model_len=512, num_gpu_blocks=200, block_size=16, max_num_batched_tokens=64, max_num_seqs=8
)


def request(
    name: str, prompt: int | list[int], max_tokens: int = 8, priority: int = 0, at: int = 0
) -> Request:
    """A prompt of `prompt` tokens that nobody else has, or of the tokens given."""
    tokens = prompt if isinstance(prompt, list) else [hash_free(name, i) for i in range(prompt)]
    return Request(name, tuple(tokens), SamplingParams(max_tokens=max_tokens), at, at, priority)


def hash_free(name: str, index: int) -> int:
    return 1000 * (1 + sum(name.encode())) + index


def shares(plan: Plan) -> list[tuple[str, int]]:
    return [(chunk.work.request.request_id, chunk.tokens) for chunk in plan.chunks]


def step(scheduler: Scheduler, token: int = 7) -> list[tuple[str, int]]:
    plan = scheduler.schedule()
    scheduler.update(plan, [token if chunk.samples else None for chunk in plan.chunks])
    scheduler.check()
    return shares(plan)


@given(st.integers(0, 10**9))
def test_after_every_step_of_any_trace_the_books_are_right(seed: int) -> None:
    trace = make_ending_trace(seed)
    limits, scheduler = trace.settings, Scheduler(trace.settings)
    finished: set[str] = set()
    number = 0
    while number <= trace.last_step or scheduler.works:
        for newcomer in trace.arrivals(number):
            scheduler.add(newcomer)
        for request_id in trace.cancels(number):
            finished.add(request_id) if scheduler.abort(request_id) else None
        plan = scheduler.schedule()
        scheduler.check()
        assert plan.num_scheduled_tokens == sum(tokens for _, tokens in shares(plan))
        assert plan.num_scheduled_tokens <= limits.max_num_batched_tokens
        assert len(scheduler.running) <= limits.max_num_seqs
        assert not (plan.preempted and plan.admitted), "nobody is admitted in a step that preempts"
        assert (plan.queue_stopped_by is None) == (len(scheduler.waiting) == 0), "every wait has a name"
        assert (plan.starved_by is None) == (not plan.starved)
        served = {chunk.work.arrival for chunk in plan.chunks}
        assert served.isdisjoint(work.arrival for work in plan.starved)
        assert {w.arrival for w in scheduler.running} == served | {w.arrival for w in plan.starved}
        for chunk in plan.chunks:
            assert chunk.tokens > 0
            assert len(chunk.work.block_ids) == -(-(chunk.start + chunk.tokens) // limits.block_size)
        outputs = scheduler.update(plan, trace.answers(plan))
        finished.update(output.request_id for output in outputs if output.finish_reason)
        scheduler.check()
        number += 1
        assert number < 60_000, "it does not end"
    assert finished == {planned.request.request_id for planned in trace.requests}
    assert scheduler.ledger.pool.num_free == limits.usable_blocks, "every block came back"


def test_running_requests_are_served_first_in_the_order_of_their_admission() -> None:
    scheduler = Scheduler(ROOMY)
    scheduler.add(request("a", 20))
    scheduler.add(request("b", 20))
    assert step(scheduler) == [("a", 20), ("b", 20)]
    scheduler.add(request("c", 10))
    assert step(scheduler) == [("a", 1), ("b", 1), ("c", 10)]


def test_a_long_prompt_takes_the_whole_rest_of_every_step_until_it_is_done() -> None:
    scheduler = Scheduler(ROOMY)
    scheduler.add(request("long", 150))
    scheduler.add(request("short", 10))
    assert [step(scheduler) for _ in range(3)] == [
        [("long", 64)],
        [("long", 64)],
        [("long", 22), ("short", 10)],
    ]


def test_a_long_prefill_threshold_leaves_room_for_the_short() -> None:
    scheduler = Scheduler(replace(ROOMY, long_prefill_token_threshold=32))
    scheduler.add(request("long", 150))
    scheduler.add(request("short", 10))
    assert step(scheduler) == [("long", 32), ("short", 10)]


def test_the_threshold_does_not_hold_a_lone_request_back() -> None:
    scheduler = Scheduler(replace(ROOMY, long_prefill_token_threshold=16))
    scheduler.add(request("alone", 100))
    assert step(scheduler) == [("alone", 64)]


def test_nobody_overtakes_a_blocked_head() -> None:
    tight = replace(ROOMY, num_gpu_blocks=8, max_num_batched_tokens=512)
    scheduler = Scheduler(tight)
    scheduler.add(request("first", 60, max_tokens=2))
    step(scheduler)
    scheduler.add(request("large", 64))
    scheduler.add(request("small", 4))
    plan = scheduler.schedule()
    assert shares(plan) == [("first", 1)]
    assert plan.queue_stopped_by is Cause.KV


def test_the_full_prompt_gate_refuses_a_prompt_whose_first_chunk_would_fit() -> None:
    def second_step(limits: Settings) -> tuple[list[tuple[str, int]], Cause | None]:
        scheduler = Scheduler(replace(limits, num_gpu_blocks=8, max_num_batched_tokens=33))
        scheduler.add(request("first", 60))
        step(scheduler)
        scheduler.add(request("large", 64))  # four blocks, and three are free
        plan = scheduler.schedule()
        return shares(plan), plan.queue_stopped_by

    assert second_step(ROOMY) == ([("first", 27)], Cause.KV)
    without_gate = replace(ROOMY, scheduler_reserve_full_isl=False)
    assert second_step(without_gate) == ([("first", 27), ("large", 6)], None)


def test_each_stop_of_the_queue_has_the_name_of_its_budget() -> None:
    scheduler = Scheduler(replace(ROOMY, max_num_seqs=1))
    scheduler.add(request("a", 10))
    scheduler.add(request("b", 10))
    assert scheduler.schedule().queue_stopped_by is Cause.SLOTS

    scheduler = Scheduler(ROOMY)
    scheduler.add(request("a", 64))
    scheduler.add(request("b", 10))
    assert scheduler.schedule().queue_stopped_by is Cause.TOKENS


def test_without_chunked_prefill_a_prompt_waits_for_a_step_that_takes_it_whole() -> None:
    scheduler = Scheduler(
        replace(ROOMY, enable_chunked_prefill=False, max_num_batched_tokens=512, max_model_len=512)
    )
    scheduler.add(request("a", 300))
    scheduler.add(request("b", 300))
    plan = scheduler.schedule()
    assert shares(plan) == [("a", 300)]
    assert plan.queue_stopped_by is Cause.TOKENS


def test_twins_in_one_step_share_blocks_that_are_only_being_computed() -> None:
    scheduler = Scheduler(ROOMY)
    twin = list(range(40))
    scheduler.add(request("one", twin))
    scheduler.add(request("two", twin))
    plan = scheduler.schedule()
    assert shares(plan) == [("one", 40), ("two", 8)]
    one, two = scheduler.running
    assert one.block_ids[:2] == two.block_ids[:2] == [1, 2]


def test_a_fully_known_prompt_computes_its_last_block_anew() -> None:
    scheduler = Scheduler(ROOMY)
    prompt = list(range(48))
    scheduler.add(request("one", prompt, max_tokens=1))
    assert step(scheduler) == [("one", 48)]
    scheduler.add(request("two", prompt, max_tokens=1))
    assert step(scheduler) == [("two", 16)]
    assert (scheduler.prefix_cache_queries, scheduler.prefix_cache_hits) == (96, 32)


def test_another_salt_shares_nothing() -> None:
    scheduler = Scheduler(ROOMY)
    prompt = list(range(48))
    scheduler.add(request("one", prompt, max_tokens=1))
    step(scheduler)
    scheduler.add(replace(request("two", prompt, max_tokens=1), cache_salt="tenant-2"))
    assert step(scheduler) == [("two", 48)]


def test_the_youngest_is_preempted_keeps_its_tokens_and_comes_back_first() -> None:
    scheduler = Scheduler(replace(ROOMY, num_gpu_blocks=5, max_num_batched_tokens=64))
    scheduler.add(request("old", 31, max_tokens=20))
    scheduler.add(request("young", 31, max_tokens=20))
    scheduler.add(request("next", 10))
    step(scheduler)  # two blocks each: the pool of four is full
    step(scheduler)
    plan = scheduler.schedule()  # `old` needs a third block
    victim = plan.preempted[0]
    assert victim.request.request_id == "young"
    assert victim.status is Status.PREEMPTED
    assert (victim.num_tokens, victim.num_computed_tokens, victim.block_ids) == (33, 0, [])
    assert plan.queue_stopped_by is Cause.KV
    assert scheduler.waiting.peek() is victim


def test_priority_decides_who_is_next_and_who_gives_way() -> None:
    urgent_first = replace(ROOMY, scheduling_policy=SchedulingPolicy.PRIORITY, max_num_seqs=1)
    scheduler = Scheduler(urgent_first)
    scheduler.add(request("later", 10, priority=5))
    scheduler.add(request("urgent", 10, priority=1))
    assert step(scheduler) == [("urgent", 10)]


def test_with_priority_a_tie_lets_the_first_of_equals_preempt_itself() -> None:
    # vLLM picks its victim with max(), which keeps the first of equals; so do we.
    tie = replace(
        ROOMY, scheduling_policy=SchedulingPolicy.PRIORITY, num_gpu_blocks=4, max_num_batched_tokens=64
    )
    scheduler = Scheduler(tie)
    for name in ("a", "b", "c"):
        scheduler.add(request(name, 15))
    step(scheduler)
    step(scheduler)
    plan = scheduler.schedule()
    assert [work.request.request_id for work in plan.preempted] == ["a"]
    assert shares(plan) == []


def test_the_watermark_guards_the_running_but_not_an_idle_engine() -> None:
    careful = replace(ROOMY, num_gpu_blocks=11, watermark=0.5)
    scheduler = Scheduler(careful)
    scheduler.add(request("a", 64))  # 4 of 10 blocks, and 5 are to stay free for others
    assert step(scheduler) == [("a", 64)]
    scheduler.add(request("b", 30))
    plan = scheduler.schedule()
    assert shares(plan) == [("a", 1)]
    assert plan.queue_stopped_by is Cause.KV


def test_a_request_ends_by_eos_by_a_stop_token_or_by_length() -> None:
    def ends(token: int, sampling: SamplingParams) -> tuple[FinishReason | None, int | None]:
        scheduler = Scheduler(ROOMY)
        scheduler.add(Request("a", (1, 2, 3), sampling, 0, 0))
        plan = scheduler.schedule()
        output = scheduler.update(plan, [token])[0]
        return output.finish_reason, output.stop_token_id

    assert ends(2, SamplingParams(max_tokens=9, eos_token_id=2)) == (FinishReason.STOP, None)
    assert ends(5, SamplingParams(max_tokens=9, stop_token_ids=frozenset({5}))) == (FinishReason.STOP, 5)
    assert ends(5, SamplingParams(max_tokens=1)) == (FinishReason.LENGTH, None)
    assert ends(5, SamplingParams(max_tokens=9)) == (None, None)


def test_an_answer_ends_where_the_context_does() -> None:
    scheduler = Scheduler(replace(ROOMY, max_model_len=16))
    scheduler.add(request("a", 14, max_tokens=100))
    step(scheduler)
    plan = scheduler.schedule()
    assert scheduler.update(plan, [7])[0].finish_reason is FinishReason.LENGTH


def test_a_request_cancelled_while_its_step_runs_is_passed_over() -> None:
    scheduler = Scheduler(ROOMY)
    scheduler.add(request("a", 10))
    scheduler.add(request("b", 10))
    plan = scheduler.schedule()
    assert scheduler.abort("a")
    assert [output.request_id for output in scheduler.update(plan, [7, 7])] == ["b"]
    assert not scheduler.abort("a")
    scheduler.check()


def test_cancels_do_not_pile_up_in_the_priority_queue() -> None:
    scheduler = Scheduler(replace(ROOMY, scheduling_policy=SchedulingPolicy.PRIORITY, max_num_seqs=1))
    scheduler.add(request("runs", 10, priority=-1))
    step(scheduler)
    for number in range(500):
        scheduler.add(request(f"w{number}", 4, priority=number % 7))
    for number in range(500):
        assert scheduler.abort(f"w{number}")
    assert len(scheduler.waiting) == 0
    assert vars(scheduler.waiting)["_heap"] == []
