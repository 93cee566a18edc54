"""A server that is simulated, so that the truth is known, seen only as its client sees it."""

from collections.abc import Callable, Sequence

import pytest

from headrace.core.cost import FrontEnd, Residual, StepShape
from headrace.core.errors import TargetFailed
from headrace.core.exchange import Arrival
from headrace.core.settings import Settings
from headrace.core.timeline import Failure, Timeline
from headrace.executor.cost import FittedCost
from headrace.measure.black_box import BlackBox, calibrate_server
from headrace.sim.measurement import timelines_and_failures
from headrace.sim.run import Fleet, simulate
from headrace.workload.trace import TraceRequest

TRUTH = FittedCost(
    {
        "step": 12e6,
        "tokens_upto_8": 1e6,
        "prefill_tokens": 0.8e6,
        "decode_context_tokens": 4e3,
        "prefill_attention_pairs": 100.0,
        "sampled_seqs": 2e5,
    },
    Residual(10, 0.0, 0.0),
    {},
)
OUTSIDE = FrontEnd(fixed_ns=4_000_000, ns_per_prompt_token=5_000.0, answer_ns=2_000_000)
SHAPES = [
    StepShape(1, 100, sampled_seqs=1),
    StepShape(12, 2_000, sampled_seqs=12),
    StepShape(30, 3_000, sampled_seqs=30),
    StepShape(0, 0, 1, 400, 0, 80_200, 1),
    StepShape(8, 1_000, 1, 200, 0, 20_100, 9),
    StepShape(8, 1_000, 1, 1_500, 0, 1_125_750, 9),
    StepShape(4, 1_000, 1, 250, 1_000, 281_375, 5),
]


def server(
    budget: int, slots: int, most_tokens: int = 10_000
) -> Callable[[Sequence[Arrival]], tuple[Timeline | Failure, ...]]:
    settings = Settings(4096, 2000, max_num_batched_tokens=budget, max_num_seqs=slots)

    def send(arrivals: Sequence[Arrival]) -> tuple[Timeline | Failure, ...]:
        in_order = sorted(arrivals, key=lambda arrival: arrival.due_at)
        trace = [
            TraceRequest(a.due_at, a.ask.num_prompt_words + 20, min(a.ask.max_tokens, most_tokens))
            for a in in_order
        ]
        return timelines_and_failures(simulate(trace, settings, TRUTH, fleet=Fleet(front_end=OUTSIDE)))

    return send


def seen(budget: int = 2048, *, slots: int = 128, said: list[str] | None = None) -> BlackBox:
    say = [] if said is None else said
    return calibrate_server(
        server(budget, slots), {"made": "by a test"}, 0, say.append, budget_s=60.0, max_model_len=4096
    )


@pytest.fixture(scope="module")
def ample() -> BlackBox:
    return seen(4096)


@pytest.mark.parametrize("shape", SHAPES)
def test_steps_of_sizes_that_were_not_probed_are_told_within_a_fiftieth(
    ample: BlackBox, shape: StepShape
) -> None:
    assert ample.cost.step_ns(shape) == pytest.approx(TRUTH.step_ns(shape), rel=0.02)
    assert ample.cost.residual.p95 < 0.02


def test_the_way_in_and_back_is_told_apart_from_the_steps(ample: BlackBox) -> None:
    found = ample.cost.front_end
    assert found is not None
    assert found.fixed_ns + found.answer_ns == pytest.approx(6_000_000, rel=0.05)
    assert found.ns_per_prompt_token == pytest.approx(5_000, rel=0.1)
    assert found.fixed_ns <= OUTSIDE.fixed_ns


@pytest.mark.parametrize("budget", [256, 512, 2048])
def test_a_very_long_prompt_beside_a_crowd_shows_how_many_tokens_a_step_may_have(budget: int) -> None:
    found = seen(budget)
    assert found.chunk_tokens == budget
    assert found.largest_step_tokens <= budget
    for shape in SHAPES:
        assert found.cost.step_ns(shape) == pytest.approx(TRUTH.step_ns(shape), rel=0.05)


def test_where_no_prompt_was_cut_the_largest_step_is_told_and_no_budget(ample: BlackBox) -> None:
    assert ample.chunk_tokens is None
    assert ample.largest_step_tokens > 2600


def test_a_server_with_few_slots_is_calibrated_and_the_crowds_it_cannot_hold_are_told() -> None:
    found = seen(slots=8)
    assert any(each.startswith("32 requests") for each in found.left_out)
    for shape in (SHAPES[0], StepShape(6, 1_000, sampled_seqs=6), *SHAPES[3:]):
        assert found.cost.step_ns(shape) == pytest.approx(TRUTH.step_ns(shape), rel=0.05)


@pytest.mark.parametrize("most_tokens", [1, 2, 6])
def test_a_server_that_ends_its_answers_early_is_told_so(most_tokens: int) -> None:
    with pytest.raises(TargetFailed, match="no crowd ever decoded together for long"):
        calibrate_server(server(2048, 128, most_tokens), {}, 0, [].append, budget_s=60.0)


def test_it_says_how_far_it_has_got() -> None:
    said: list[str] = []
    seen(said=said)
    assert said[0].startswith("round 1: ")
