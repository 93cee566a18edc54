"""Short and long requests on servers of their own: the workload is taken apart, the twin judges each part."""

from dataclasses import replace

import pytest

from headrace.cli.tuning_pools import pools_advice
from headrace.cli.tuning_targets import TwinTarget
from headrace.cli.tuning_twin import Grader, Predictor, TwinServer
from headrace.core.cost import Pace
from headrace.core.goal import Aim, Goal
from headrace.core.objective import parse_objectives
from headrace.report.tuning.tuning import PoolAdvice
from headrace.tune.problem import Problem
from headrace.tune.space import Site, demand_of, space_of
from headrace.tune.twin import Remembered
from headrace.workload.trace import TraceRequest
from tests.cli.test_tuning_twin import COST, START

SLO = "docs: p95 ttft < 4s; chat: p95 ttft < 150ms"
REQUESTS = tuple(
    TraceRequest(number * 0.02, 3000 if number % 5 == 0 else 40, 8, "docs" if number % 5 == 0 else "chat")
    for number in range(300)
)


def advised(requests: tuple[TraceRequest, ...], slo: str = SLO, aim: Aim = Aim.CAPACITY) -> PoolAdvice | None:
    twin, goal = TwinServer(COST, START, requests), Goal(aim, parse_objectives(slo))

    def predictor_of(grader: Grader) -> Predictor:
        return Predictor(grader, workers=1)

    space = space_of(Site(START), demand_of((each.prompt_tokens, each.output_tokens) for each in requests))
    problem = Problem(goal, space, Remembered(predictor_of(Grader(twin, goal))))
    return pools_advice(TwinTarget("m/gpu"), problem, Pace(), twin, predictor_of)


@pytest.mark.slow
def test_each_kind_is_tuned_alone_and_carries_more_of_itself_than_all_together() -> None:
    advice = advised(REQUESTS)
    assert advice is not None
    assert (advice.bound_tokens, advice.short_share) == (40, 0.8)
    short, long = advice.found.apart
    assert min(short.capacity, long.capacity) > advice.found.together.capacity
    assert advice.found.share == pytest.approx(
        advice.found.together.capacity * (1 / short.capacity + 1 / long.capacity)
    )
    assert all(command.startswith("vllm serve MODEL") for command in advice.commands)


def test_what_has_no_two_kinds_or_no_question_gets_no_advice() -> None:
    assert advised(REQUESTS, aim=Aim.LATENCY) is None
    assert advised(tuple(replace(each, prompt_tokens=40) for each in REQUESTS)) is None
    assert advised(REQUESTS[:150]) is None, "30 documents have no P95"
    assert advised(REQUESTS, "chat: p95 ttft < 150ms") is None, "nothing is asked of documents"
    thinking = (REQUESTS[0], replace(REQUESTS[1], session="s", think_s=1.0), *REQUESTS[2:])
    assert advised(thinking) is None
