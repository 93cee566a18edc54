"""Virtual time: expected instants, determinism, and equality of skipped and taken steps."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.bill import CAUSES, Cause
from headrace.core.cost import FrontEnd, StepShape
from headrace.core.errors import BadInput
from headrace.core.plan import Work
from headrace.core.settings import Settings
from headrace.gateway.router import LeastRequests, LeastTokens, PrefixAffine, RoundRobin, Router
from headrace.sim import replica as replica_module
from headrace.sim.prefixes import TracePrefixes
from headrace.sim.replica import Life
from headrace.sim.run import Fleet, Simulated, Watch, simulate
from headrace.workload.trace import TraceRequest

MS = 1_000_000
SETTINGS = Settings(
    max_model_len=512, num_gpu_blocks=200, block_size=16, max_num_batched_tokens=64, max_num_seqs=8
)


@dataclass(frozen=True, slots=True)
class TokensCost:
    """A millisecond a step and one a token: easy to follow by hand."""

    def step_ns(self, shape: StepShape) -> int:
        return MS * (1 + shape.tokens)


@dataclass(frozen=True, slots=True)
class ContextCost:
    """Depends on everything in a shape, so that a wrong one shows."""

    def step_ns(self, shape: StepShape) -> int:
        preparing_ns = 500 if shape.resized else 0
        return (
            1_000
            + 7 * shape.tokens
            + 3 * shape.decode_context_tokens
            + shape.prefill_attention_pairs
            + preparing_ns
        )


def at(due_ms: float, prompt: int, output: int, **more: object) -> TraceRequest:
    return replace(TraceRequest(due_ms / 1e3, prompt, output), **more)


def token_ms(simulated: Simulated, life: Life, replica: int = 0) -> list[float]:
    ends = simulated.step_ends_ns[replica]
    return [ends[step] / MS for first, count in life.token_steps for step in range(first, first + count)]


def test_a_lone_request_takes_a_step_for_its_prompt_and_one_for_each_further_token() -> None:
    simulated = simulate([at(5, 10, 3)], SETTINGS, TokensCost())
    assert token_ms(simulated, simulated.lives[0]) == [16, 18, 20]
    assert simulated.steps == 3


@dataclass(frozen=True, slots=True)
class ResizedCost:
    def step_ns(self, shape: StepShape) -> int:
        return MS * (10 if shape.resized else 1)


def test_a_step_of_another_size_than_the_one_before_is_told_so() -> None:
    """Real ones take some ms longer; steady batches were once predicted as if each of their steps did."""
    simulated = simulate([at(0, 3, 4), at(11.5, 1, 2)], SETTINGS, ResizedCost())
    first, second = simulated.lives
    # Three tokens; then one, twice; then two (a prompt of one beside it); and both once more.
    assert token_ms(simulated, first) == [10, 20, 30, 31]
    assert token_ms(simulated, second) == [30, 31]


def test_who_comes_during_a_step_is_served_in_the_next() -> None:
    simulated = simulate([at(0, 32, 2), at(1, 10, 1)], SETTINGS, TokensCost())
    first, second = simulated.lives
    assert token_ms(simulated, first) == [33, 45]  # the second step: one token and ten
    assert token_ms(simulated, second) == [45]
    assert second.bill is not None
    assert second.bill.seconds()[Cause.STEP_IN_FLIGHT] == 0.032


def test_with_async_scheduling_a_newcomer_waits_for_the_step_that_was_planned_ahead() -> None:
    ahead = replace(SETTINGS, async_scheduling=True)
    simulated = simulate([at(0, 32, 9), at(1, 10, 1)], ahead, TokensCost())
    first, second = simulated.lives
    # The first decode step was planned at 0 ms, behind the prompt; the newcomer joins the one after it.
    assert token_ms(simulated, first)[:3] == [33, 35, 47]
    assert token_ms(simulated, second) == [47]


def test_two_replicas_share_the_load() -> None:
    simulated = simulate([at(0, 30, 2)] * 4, SETTINGS, TokensCost(), fleet=Fleet(2))
    assert simulated.replica_of == (0, 1, 0, 1)
    assert token_ms(simulated, simulated.lives[0], 0) == token_ms(simulated, simulated.lives[1], 1)


def test_a_shared_prefix_is_computed_once() -> None:
    twin = {"prefix_ids": (1, 2, 3), "prefix_block_tokens": 16}
    simulated = simulate([at(0, 50, 1, **twin), at(200, 50, 1, **twin)], SETTINGS, TokensCost())
    assert [life.cached_tokens for life in simulated.lives] == [0, 48]


def test_a_request_that_can_never_fit_is_refused_and_told() -> None:
    simulated = simulate([at(0, 600, 1), at(0, 5, 1)], SETTINGS, TokensCost())
    assert "max_model_len is 512" in simulated.lives[0].refused
    assert simulated.lives[1].finished


def test_budgets_over_time_add_up_to_the_work_done() -> None:
    simulated = simulate([at(0, 64, 1), at(2_500, 64, 1)], SETTINGS, TokensCost(), watch=Watch(bin_s=1.0))
    samples = simulated.budgets[0]
    assert [sample.at_s for sample in samples] == [0.0, 2.0]
    assert [round(sample.tokens_per_s) for sample in samples] == [64, 64]
    assert samples[0].busy == pytest.approx(0.065)


@pytest.mark.parametrize(
    ("trace", "complaint"),
    [
        ([], "no requests"),
        ([at(5, 1, 1), at(4, 1, 1)], "due at 0.004 s, after one due at 0.005 s"),
        ([at(float("nan"), 1, 1)], "due at nan"),
        ([at(0, 0, 1)], "0 prompt tokens"),
        ([at(0, 1, -3)], "-3 output tokens"),
    ],
)
def test_a_nonsensical_trace_is_refused_with_the_numbers(trace: list[TraceRequest], complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        simulate(trace, SETTINGS, TokensCost())


requests = st.lists(
    st.builds(at, st.integers(0, 900), st.integers(1, 200), st.integers(1, 120), priority=st.integers(0, 2)),
    min_size=1,
    max_size=25,
).map(lambda trace: sorted(trace, key=lambda traced: traced.due_at))


def limited(blocks: int, seqs: int, tokens: int, *, ahead: bool) -> Settings:
    return replace(
        SETTINGS,
        num_gpu_blocks=blocks,
        max_num_seqs=seqs,
        max_num_batched_tokens=max(seqs, tokens),
        async_scheduling=ahead,
    )


settings = st.builds(
    limited, st.integers(25, 120), st.integers(1, 8), st.integers(1, 128), ahead=st.booleans()
)


def told(simulated: Simulated) -> str:
    lives = [
        (life.token_steps, life.bill, life.cached_tokens, life.refused, life.finished)
        for life in simulated.lives
    ]
    return repr(
        (lives, [list(ends) for ends in simulated.step_ends_ns], simulated.replica_of, simulated.preemptions)
    )


@given(requests, settings, st.integers(1, 3))
def test_two_simulations_in_one_process_are_equal_to_the_byte(
    trace: list[TraceRequest], limits: Settings, replicas: int
) -> None:
    first, again = (simulate(trace, limits, ContextCost(), fleet=Fleet(replicas)) for _ in range(2))
    assert told(first) == told(again)


@given(requests, settings, st.integers(1, 3))
def test_skipping_quiet_steps_changes_nothing(
    trace: list[TraceRequest], limits: Settings, replicas: int
) -> None:
    skipping = simulate(trace, limits, ContextCost(), fleet=Fleet(replicas))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replica_module, "WORTH_SKIPPING", 10**9)
        stepping = simulate(trace, limits, ContextCost(), fleet=Fleet(replicas))
    assert told(skipping) == told(stepping)
    assert skipping.steps == stepping.steps


alike = st.tuples(st.integers(0, 3), st.integers(1, 5)).map(
    lambda drawn: {
        "prefix_ids": tuple(range(drawn[0] * 10, drawn[0] * 10 + drawn[1])),
        "prefix_block_tokens": 16,
    }
)


def one_of(due_ms: int, prompt: int, output: int, prefix: dict[str, object]) -> TraceRequest:
    return at(due_ms, prompt, output, **prefix)


sharing = st.lists(
    st.builds(one_of, st.integers(0, 40), st.integers(1, 200), st.integers(1, 300), alike | st.just({})),
    min_size=5,
    max_size=25,
).map(lambda trace: sorted(trace, key=lambda traced: traced.due_at))


def every_block(prefixes: TracePrefixes, work: Work) -> int:
    return 10**6


@given(sharing, settings)
def test_blocks_that_nobody_else_can_ask_for_need_no_index(
    trace: list[TraceRequest], limits: Settings
) -> None:
    limits = replace(limits, num_gpu_blocks=limits.num_gpu_blocks // 3 + 20)  # so that many are preempted
    lean = simulate(trace, limits, ContextCost())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TracePrefixes, "sharable_blocks", every_block)
        indexed = simulate(trace, limits, ContextCost())
    assert told(lean) == told(indexed)


@given(requests, settings)
def test_every_request_ends_and_its_bill_is_its_ttft(trace: list[TraceRequest], limits: Settings) -> None:
    simulated = simulate(trace, limits, ContextCost())
    for traced, life in zip(trace, simulated.lives, strict=True):
        if life.refused:
            continue
        assert life.finished
        assert sum(count for _, count in life.token_steps) == min(
            traced.output_tokens, limits.max_model_len - traced.prompt_tokens
        )
        assert life.bill is not None
        assert len(life.bill.parts_ns) == len(CAUSES)
        first_token_ns = simulated.step_ends_ns[0][life.token_steps[0][0]]
        assert life.bill.ttft_ns == first_token_ns - life.request.arrived_ns


def crowd(seed: int) -> list[TraceRequest]:
    """Many at once with long answers, so that a request may be preempted before its first token is back."""
    chance = random.Random(seed)
    trace = [
        at(chance.choice([0, 0.3]), chance.randrange(1, 100), chance.randrange(1, 400)) for _ in range(15)
    ]
    return sorted(trace, key=lambda traced: traced.due_at)


def test_the_bill_is_the_ttft_whatever_is_preempted_while_a_step_is_in_flight() -> None:
    preemptions = 0
    for seed in range(12):
        simulated = simulate(crowd(seed), limited(34 + seed, 8, 64, ahead=True), ContextCost())
        preemptions += simulated.preemptions
        for life in simulated.lives:
            assert life.bill is not None
            first_token_ns = simulated.step_ends_ns[0][life.token_steps[0][0]]
            assert life.bill.ttft_ns == first_token_ns - life.request.arrived_ns
    assert preemptions > 50


def assert_skipping_changes_nothing(trace: list[TraceRequest], limits: Settings, fleet: Fleet) -> None:
    skipping = simulate(trace, limits, ContextCost(), fleet=fleet)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replica_module, "WORTH_SKIPPING", 10**9)
        stepping = simulate(trace, limits, ContextCost(), fleet=fleet)
    assert told(skipping) == told(stepping)


@pytest.mark.slow
def test_a_step_in_flight_that_computes_anew_after_a_preemption_is_not_quiet() -> None:
    # Such a step was taken for a decode, and its time and context were wrong from there on.
    for seed in range(12):
        assert_skipping_changes_nothing(crowd(seed), limited(45 + seed, 8, 64, ahead=True), Fleet())


@pytest.mark.slow
@pytest.mark.parametrize("make_router", [RoundRobin, LeastRequests, LeastTokens, PrefixAffine])
def test_a_router_sees_no_ending_before_its_time(make_router: Callable[[], Router]) -> None:
    # A stretch is skipped when it begins, and who ended in it was no longer counted from then on.
    for seed in range(12):
        chance = random.Random(seed)
        trace = [
            at(chance.random() * 3, chance.randrange(1, 100), chance.randrange(1, 100)) for _ in range(40)
        ]
        trace.sort(key=lambda traced: traced.due_at)
        fleet = Fleet(3, make_router, FrontEnd(20_000, 300.0, 10_000) if seed % 2 else None)
        assert_skipping_changes_nothing(trace, limited(100, 8, 64, ahead=seed % 3 == 0), fleet)
