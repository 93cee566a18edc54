"""Short and long requests on servers of their own: the workload taken apart, each part tuned in the twin.

twin with all requests + Problem + Pace --pools_advice--> PoolAdvice | None
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from headrace.cli.tuning_targets import Tunable
from headrace.cli.tuning_twin import Grader, Predictor, TwinServer
from headrace.core.cost import Pace
from headrace.core.objective import of_class
from headrace.report.tuning.tuning import PoolAdvice
from headrace.tune.pools import length_bound, pools_of
from headrace.tune.problem import Problem
from headrace.tune.space import demand_of, space_of
from headrace.tune.twin import Remembered
from headrace.workload.trace import TraceRequest

FEWEST = 40
"""Requests of a kind, fewer than which have no percentile worth tuning for."""

Kinds = dict[str, tuple[TraceRequest, ...]]


def pools_advice(
    target: Tunable,
    problem: Problem,
    pace: Pace,
    twin: TwinServer,
    predictor_of: Callable[[Grader], Predictor],
) -> PoolAdvice | None:
    """None where the goal has no capacity, where requests are all alike or too few of a kind, where turns of
    a session wait for each other, or where nothing is asked of a kind.
    """
    if not problem.goal.seeks_capacity or any(each.think_s is not None for each in twin.requests):
        return None
    bound = length_bound([each.prompt_tokens for each in twin.requests])
    if bound is None:
        return None
    kinds = _kinds(twin.requests, bound)
    if any(len(own) < FEWEST or not _is_asked(own, problem) for own in kinds.values()):
        return None
    alone = {name: _alone(problem, replace(twin, requests=own), predictor_of) for name, own in kinds.items()}
    found = pools_of(problem, alone, pace)
    if found is None:
        return None
    commands = tuple(target.command(pool.overrides) for pool in found.apart)
    return PoolAdvice(found, bound, len(kinds["short"]) / len(twin.requests), commands)


def _kinds(requests: Sequence[TraceRequest], bound: int) -> Kinds:
    return {
        "short": tuple(each for each in requests if each.prompt_tokens <= bound),
        "long": tuple(each for each in requests if each.prompt_tokens > bound),
    }


def _is_asked(requests: Sequence[TraceRequest], problem: Problem) -> bool:
    classes = {each.request_class for each in requests}
    return any(of_class(problem.goal.objectives, name) for name in classes)


def _alone(problem: Problem, twin: TwinServer, predictor_of: Callable[[Grader], Predictor]) -> Problem:
    """The same question, of these requests only."""
    demand = demand_of((each.prompt_tokens, each.output_tokens) for each in twin.requests)
    predict = predictor_of(Grader(twin, problem.goal))
    return replace(problem, space=space_of(problem.space.site, demand), twin=Remembered(predict), extras=())
