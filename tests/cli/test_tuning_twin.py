"""The twin of a tuning: wherever its simulations run, the same grades come out, and refusals are results."""

import pytest

from headrace.cli.tuning_twin import Grader, Predictor, TwinServer
from headrace.core.cost import FrontEnd, Machine, Pace, Residual
from headrace.core.errors import TargetFailed
from headrace.core.goal import Aim, Goal
from headrace.core.grade import Grade
from headrace.core.objective import parse_objectives
from headrace.core.ports import Overrides
from headrace.core.trial import NoResult
from headrace.executor.cost import FittedCost
from headrace.tune.twin import Point
from headrace.workload.trace import TraceRequest

COST = FittedCost(
    {"step": 2e6, "decode_seqs": 1e5, "prefill_tokens": 1e5},
    Residual(1000, 0.01, 0.05),
    {},
    Machine("here", "m", 8192, 2**30, 2**12, async_scheduling=False),
    FrontEnd(1_000_000, 0.0, 500_000),
)
REQUESTS = tuple(
    TraceRequest(number * 0.05, 3000 if number % 20 == 0 else 40, 8, "docs" if number % 20 == 0 else "chat")
    for number in range(80)
)
START: Overrides = {"max_num_batched_tokens": 2048, "max_num_seqs": 128, "long_prefill_token_threshold": 0}
TWIN = TwinServer(COST, START, REQUESTS)
GOAL = Goal(Aim.CAPACITY, parse_objectives("chat: p95 ttft < 500ms"))
POINTS = (
    Point({}),
    Point({"long_prefill_token_threshold": 128}),
    Point({"max_num_batched_tokens": 64}),  # fewer than may run at once: refused, as vLLM does
    Point({}, load=2.0),
    Point({}, pace=Pace(prefill=1.5)),
    Point({}, share=0.5),
)


def test_settings_loads_and_paces_make_the_difference_that_they_make_on_a_server() -> None:
    start, capped, refused, hurried, slow, half = Predictor(Grader(TWIN, GOAL), workers=1)(POINTS)
    assert isinstance(start, Grade)
    assert isinstance(capped, Grade)
    assert isinstance(hurried, Grade)
    assert isinstance(slow, Grade)
    assert isinstance(half, Grade)
    assert capped.ratio < start.ratio < min(hurried.ratio, slow.ratio)
    assert half.due < start.due
    assert isinstance(refused, NoResult)
    assert "max_num_batched_tokens (64)" in refused.cause


@pytest.mark.slow
def test_in_other_processes_the_same_comes_out() -> None:
    here = Predictor(Grader(TWIN, GOAL), workers=1)
    there = Predictor(Grader(TWIN, GOAL), workers=2)
    there._one_s = 10.0  # as if one took long
    assert here(POINTS) == there(POINTS)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_over_ray_the_same_comes_out() -> None:
    """Where Ray is installed: it is an extra, and large."""
    pytest.importorskip("ray")
    here = Predictor(Grader(TWIN, GOAL), workers=1)
    there = Predictor(Grader(TWIN, GOAL), ray_address="local")
    there._one_s = 10.0  # as if one took long
    assert repr(there(POINTS)) == repr(here(POINTS))


def test_processes_are_started_only_where_all_are_done_sooner_with_them() -> None:
    predictor = Predictor(Grader(TWIN, GOAL), workers=2)
    predictor._one_s = 5.0
    assert [predictor._is_worth_starting(count) for count in (0, 1, 2, 3, 8)] == [
        False,
        False,
        True,
        True,
        True,
    ]
    predictor._start_s = 25.0  # as on a machine that others keep busy
    assert [predictor._is_worth_starting(count) for count in (2, 8, 12)] == [False, False, True]
    predictor._one_s = 0.01
    assert not predictor._is_worth_starting(400)


def test_progress_is_told_and_time_is_counted() -> None:
    told: list[tuple[int, int]] = []
    predictor = Predictor(Grader(TWIN, GOAL), workers=1, on_done=lambda done, of: told.append((done, of)))
    predictor(POINTS[:2])
    assert told == [(1, 2), (2, 2)]
    assert predictor.took_s > 0


def test_a_context_that_nothing_fits_into_is_no_answer_instead_of_an_empty_one() -> None:
    with pytest.raises(TargetFailed, match="not one request was answered"):
        TwinServer(COST, START | {"max_model_len": 16}, REQUESTS).run(Point({"max_num_batched_tokens": 4096}))
