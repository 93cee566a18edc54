"""What the policies `shortest` and `slo` promise beyond the contract of all (test_policies.py)."""

import random
from collections.abc import Sequence
from dataclasses import replace
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.plan import Plan, Work
from headrace.core.request import Request, SamplingParams
from headrace.core.settings import SchedulingPolicy, Settings
from headrace.scheduler.policy import OVERDUE
from headrace.scheduler.ranked import RankedScheduler, make_scheduler
from headrace.scheduler.scheduler import Scheduler
from headrace.scheduler.shortest import PATIENCE
from headrace.scheduler.slo import PATIENCE as PATIENCE_OF_GOALS
from tests.traces import make_ending_trace

MS = 1_000_000
SHORTEST = Settings(
    max_model_len=2048,
    num_gpu_blocks=2000,
    block_size=16,
    max_num_batched_tokens=64,
    max_num_seqs=64,
    scheduling_policy=SchedulingPolicy.SHORTEST,
)
SLO = replace(SHORTEST, scheduling_policy=SchedulingPolicy.SLO)
BOTH = pytest.mark.parametrize("policy", [SchedulingPolicy.SHORTEST, SchedulingPolicy.SLO], ids=str)


def request(name: str, prompt: int, max_tokens: int = 8, at_ns: int = 0, request_class: str = "") -> Request:
    """A prompt that nobody else has."""
    tokens = tuple(crc32(f"{name}/{index}".encode()) for index in range(prompt))
    sampling = SamplingParams(max_tokens=max_tokens)
    return Request(name, tokens, sampling, at_ns, at_ns, request_class=request_class)


def shares(plan: Plan) -> list[tuple[str, int]]:
    return [(chunk.work.request.request_id, chunk.tokens) for chunk in plan.chunks]


def step(scheduler: Scheduler, took_ns: int = 10 * MS) -> Plan:
    """One step that takes `took_ns`, checked."""
    plan = scheduler.schedule()
    scheduler.check()
    scheduler.now_ns += took_ns
    scheduler.update(plan, [7 if chunk.samples else None for chunk in plan.chunks])
    scheduler.check()
    return plan


def test_a_short_prompt_passes_the_running_chunks_of_a_long_one() -> None:
    # With fcfs the long one takes the whole of every step until it is done.
    scheduler = make_scheduler(SHORTEST)
    scheduler.add(request("long", 150))
    assert shares(step(scheduler)) == [("long", 64)]
    scheduler.add(request("short", 10))
    assert shares(step(scheduler)) == [("short", 10), ("long", 54)]
    assert shares(step(scheduler)) == [("short", 1), ("long", 32)]


def test_what_the_prefix_cache_holds_is_not_left_to_compute() -> None:
    scheduler = make_scheduler(replace(SHORTEST, max_num_batched_tokens=256))
    history = tuple(range(160))
    scheduler.add(Request("turn-1", history, SamplingParams(max_tokens=1), 0, 0))
    step(scheduler)
    scheduler.add(request("new", 100))
    scheduler.add(Request("turn-2", (*history, 7, 7, 7), SamplingParams(max_tokens=1), 0, 0))
    assert shares(step(scheduler)) == [("turn-2", 3), ("new", 100)]


def test_a_running_long_prompt_gives_its_blocks_to_a_decode_and_not_the_other_way_round() -> None:
    scheduler = make_scheduler(replace(SHORTEST, num_gpu_blocks=10))
    scheduler.add(request("chat", 15, max_tokens=100))
    step(scheduler)
    scheduler.add(request("long", 127))
    assert shares(step(scheduler)) == [("chat", 1), ("long", 63)]
    assert shares(step(scheduler)) == [("chat", 1)], "it pauses: eight blocks, and seven are left"
    plans = [step(scheduler) for _ in range(200)]
    assert [work.request.request_id for plan in plans for work in plan.preempted] == ["long"]
    assert not scheduler.works


@BOTH
def test_answers_that_lost_their_blocks_do_not_take_them_from_each_other_for_ever(
    policy: SchedulingPolicy,
) -> None:
    """Without the full-prompt gate two of them took turns: all computed again, for a token each."""
    settings = Settings(
        max_model_len=256,
        num_gpu_blocks=11,
        max_num_batched_tokens=40,
        max_num_seqs=12,
        scheduling_policy=policy,
        scheduler_reserve_full_isl=False,
        enable_prefix_caching=False,
    )
    scheduler = make_scheduler(settings)
    for number in range(15):
        prompt, answer = ((100, 40), (70, 60), (130, 20), (45, 50), (90, 30))[number % 5]
        scheduler.add(request(f"r{number}", prompt, answer))
    plans: list[Plan] = []
    while scheduler.works:
        plans.append(step(scheduler, 50 * MS))
    computed = sum(chunk.tokens for plan in plans for chunk in plan.chunks)
    wanted = 3 * (100 + 40 + 70 + 60 + 130 + 20 + 45 + 50 + 90 + 30)
    assert computed < 3 * wanted  # it was 6 times as much, in 400 steps instead of 290
    assert len(plans) < 330


@given(st.integers(0, 10**9))
def test_shortest_lets_nobody_pass_who_comes_after_a_multiple_of_ones_own_work_is_done(seed: int) -> None:
    """Once PATIENCE times P tokens of prompts were computed since a request with P tokens came."""
    rng = random.Random(seed)
    settings = replace(SHORTEST, max_num_batched_tokens=rng.choice([64, 128]))
    scheduler = make_scheduler(settings)
    came_at: dict[int, int] = {}
    computed = 0
    for number in range(rng.randint(2, 60)):
        for each in range(rng.choice([0, 1, 1, 2, 5])):
            if len(scheduler.works) < settings.max_num_seqs:
                prompt = rng.choice([1, 3, 20, 60, 300])
                came_at[scheduler.add(request(f"r{number}-{each}", prompt, max_tokens=2)).arrival] = computed
        unanswered = [work for work in scheduler.works.values() if work.num_tokens == work.num_prompt_tokens]
        plan = step(scheduler)
        given_to = {
            chunk.work.arrival for chunk in plan.chunks if chunk.tokens > 1 or chunk.work in plan.admitted
        }
        answered = {chunk.work.arrival for chunk in plan.chunks if chunk.samples}
        for work in unanswered:
            closed_at = came_at[work.arrival] + PATIENCE * work.num_prompt_tokens
            if closed_at <= computed and work.arrival not in answered:
                assert all(came_at[arrival] < closed_at for arrival in given_to), work
        computed += sum(chunk.tokens for chunk in plan.chunks if chunk.work.arrival in given_to)


def steps_until_answered(scheduler: Scheduler, work: Work, flood: Sequence[int]) -> int:
    """With new prompts of these lengths before every step."""
    number = 0
    while work.num_tokens == work.num_prompt_tokens:
        for each, tokens in enumerate(flood):
            at_ns = scheduler.now_ns
            scheduler.add(request(f"{number}-{each}", tokens, max_tokens=1, at_ns=at_ns))
        step(scheduler)
        number += 1
        assert number < 2_000, "it starves"
    return number


def test_shortest_ends_a_long_prompt_in_a_flood_of_short_ones_that_never_ends() -> None:
    scheduler = make_scheduler(SHORTEST)
    long = scheduler.add(request("long", 320))
    steps = steps_until_answered(scheduler, long, [32, 32])
    overdue_after = PATIENCE * 320 // 64
    assert overdue_after < steps <= overdue_after + 320 // 64 + 1


def test_slo_ends_a_long_prompt_in_a_flood_of_urgent_ones_that_never_ends() -> None:
    scheduler = make_scheduler(replace(SLO, slo="long: ttft 100ms; ttft 10ms, itl 10s"))
    long = scheduler.add(request("long", 320, request_class="long"))
    steps = steps_until_answered(scheduler, long, [32, 32])
    overdue_after = PATIENCE_OF_GOALS * 100 // 10
    assert steps <= overdue_after + 320 // 64 + 1


@BOTH
@given(st.integers(0, 10**9))
def test_who_is_admitted_ranked_before_everybody_who_is_left_in_the_queue(
    policy: SchedulingPolicy, seed: int
) -> None:
    """The overdue first among them: whatever blocks or slots the head lacks, nobody passes it."""
    trace = make_ending_trace(seed)
    goals = "ttft 30ms" if policy is SchedulingPolicy.SLO else ""
    settings = replace(trace.settings, scheduling_policy=policy, slo=goals, async_scheduling=False)
    scheduler = make_scheduler(settings)
    assert isinstance(scheduler, RankedScheduler)
    for number in range(trace.last_step + 50):
        for newcomer in trace.arrivals(number):
            scheduler.add(replace(newcomer, arrived_ns=scheduler.now_ns, handed_ns=scheduler.now_ns))
        scheduler._policy.begin_step(scheduler.now_ns)
        ranks = {work.arrival: scheduler._policy.rank(work) for work in scheduler.waiting}
        plan = step(scheduler)
        admitted = [ranks.pop(work.arrival) for work in plan.admitted]
        # Slack is weighed when a request queues, and shifts with what is learnt; being overdue does not.
        left = [rank for rank in ranks.values() if rank[0] == OVERDUE or policy is SchedulingPolicy.SHORTEST]
        assert not (admitted and left) or max(admitted) < min(left)


@BOTH
@given(st.integers(0, 10**9))
def test_while_blocks_last_every_decode_gets_its_token_in_every_step(
    policy: SchedulingPolicy, seed: int
) -> None:
    trace = make_ending_trace(seed)
    settings = replace(trace.settings, scheduling_policy=policy, num_gpu_blocks=25 * 256 + 1)
    scheduler = make_scheduler(replace(settings, async_scheduling=False))
    for number in range(trace.last_step + 50):
        for newcomer in trace.arrivals(number):
            scheduler.add(newcomer)
        decoding = {
            work.arrival for work in scheduler.running if work.expected_tokens - work.num_computed_tokens == 1
        }
        plan = step(scheduler)
        assert decoding <= {chunk.work.arrival for chunk in plan.chunks}
        assert not plan.preempted


def test_slo_serves_the_class_that_has_less_time() -> None:
    scheduler = make_scheduler(replace(SLO, slo="chat: ttft 50ms; docs: ttft 10s"))
    scheduler.add(request("doc", 64, request_class="docs"))
    scheduler.add(request("chat", 64, request_class="chat"))
    assert shares(step(scheduler)) == [("chat", 64)]


def test_slo_does_not_make_others_late_for_one_that_is_late_anyway() -> None:
    scheduler = make_scheduler(replace(SLO, slo="ttft 100ms, itl 10s"))
    scheduler.add(request("late", 64))
    scheduler.now_ns = 150 * MS
    scheduler.add(request("in-time", 64, at_ns=140 * MS))
    assert shares(step(scheduler)) == [("in-time", 64)]


def test_slo_gives_prompts_what_the_goal_of_the_decodes_leaves() -> None:
    """A token of a prompt takes 1 ms, a decode 10. Of a goal of 60 ms four fifths are aimed at."""
    scheduler = make_scheduler(
        replace(SLO, block_size=4, max_num_batched_tokens=512, slo="ttft 1s, itl 60ms")
    )
    scheduler.add(request("chat", 10, max_tokens=500))
    step(scheduler, took_ns=10 * MS)
    scheduler.add(request("doc", 1500))
    took_ms: list[int] = []
    for _ in range(20):
        plan = scheduler.schedule()
        took_ms.append(sum(10 if tokens == 1 else tokens for _, tokens in shares(plan)))
        scheduler.now_ns += took_ms[-1] * MS
        scheduler.update(plan, [7 if chunk.samples else None for chunk in plan.chunks])
    assert max(took_ms[1:]) <= 60, "the first one was planned without knowing what a decode takes"
    assert min(took_ms[1:]) >= 40


def test_slo_gives_prompts_a_share_even_where_the_decodes_cannot_meet_their_goal() -> None:
    scheduler = make_scheduler(replace(SLO, slo="ttft 1s, itl 1ms"))
    scheduler.add(request("chat", 10, max_tokens=500))
    step(scheduler)
    scheduler.add(request("doc", 320))
    assert [dict(shares(step(scheduler)))["doc"] for _ in range(3)] == [16, 16, 16]
