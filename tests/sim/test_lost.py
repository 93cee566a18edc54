"""A run that is left before its end would have missed its objectives; one that meets them is not left."""

from dataclasses import replace

import pytest

from headrace.capacity.catalogue import model_named
from headrace.capacity.deployment import Deployment
from headrace.capacity.gpu_names import gpu_named
from headrace.capacity.roofline import Roofline
from headrace.cli.plan_fit import usual_requests
from headrace.core.objective import parse_objectives
from headrace.core.settings import Settings
from headrace.measure.goodput import meets
from headrace.sim.lost import Seen, goals_of, is_lost
from headrace.sim.measurement import About, measurement_of
from headrace.sim.run import Fleet, simulate, simulate_unless
from headrace.workload.trace import TraceRequest

COST = Roofline(Deployment(model_named("llama-3.2-1b"), gpu_named("t4")))
SETTINGS = Settings(num_gpu_blocks=2000, block_size=16, max_model_len=3000, max_num_seqs=64)


def requests_at(speed: float) -> tuple[TraceRequest, ...]:
    classes = ("short", "other")
    return tuple(
        replace(each, due_at=each.due_at / speed, request_class=classes[place % 2])
        for place, each in enumerate(usual_requests()[:100])
    )


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize(
    "goals",
    ["p95 ttft < 200ms", "p80 e2e < 4400ms", "p80 itl < 13ms", "short: p50 ttft < 300ms; p95 itl < 20ms"],
)
def test_only_what_misses_is_left(goals: str, replicas: int) -> None:
    objectives, fleet = parse_objectives(goals), Fleet(replicas)
    outcomes = set[tuple[bool, bool]]()
    for speed in (1.0, 4.0, 40.0):
        trace = requests_at(speed)
        looked_for = goals_of(trace, objectives)
        left = (
            simulate_unless(lambda seen, g=looked_for: is_lost(g, seen), trace, SETTINGS, COST, fleet=fleet)
            is None
        )
        whole = measurement_of(simulate(trace, SETTINGS, COST, fleet=fleet), About("twin", "", {}, "", {}))
        outcomes.add((left, meets(whole, objectives)))
    assert (True, True) not in outcomes
    assert (True, False) in outcomes
    assert (False, True) in outcomes


def test_a_run_is_left_when_it_is_lost_and_not_at_its_end() -> None:
    trace, seen_at = requests_at(40.0), list[int]()

    def enough(seen: Seen) -> bool:
        seen_at.append(len(seen.lives))
        return len(seen_at) == 3

    assert simulate_unless(enough, trace, SETTINGS, COST) is None
    assert seen_at[-1] < len(trace)
