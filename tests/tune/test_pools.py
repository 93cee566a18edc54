"""Pools pay where kinds of requests stand in each other's way, and not where they only split the load."""

from headrace.core.cost import Pace
from headrace.core.grade import Grade
from headrace.tune.pools import pools_of
from headrace.tune.problem import Problem
from headrace.tune.twin import Point
from tests.tune.model import CAPACITY, LATENCY, grade_of, problem


def carrying(times: float) -> Problem:
    """A server that carries so many times the model's load."""

    def twin(point: Point) -> Grade:
        return grade_of(point.overrides, point.load / times, point.pace)

    return problem(CAPACITY, twin=twin)


def test_pools_that_carry_more_together_are_worth_it() -> None:
    found = pools_of(carrying(1.0), {"short": carrying(4.0), "long": carrying(4.0)}, Pace(), load=20.0)
    assert found is not None
    assert found.is_worth_it
    assert sum(pool.servers for pool in found.apart) < 0.6 * found.together.servers
    assert [pool.name for pool in found.apart] == ["short", "long"]


def test_pools_that_only_split_the_load_are_not() -> None:
    found = pools_of(carrying(1.0), {"short": carrying(2.0), "long": carrying(2.0)}, Pace(), load=20.0)
    assert found is not None
    assert not found.is_worth_it
    assert "together" in found.why


def test_a_saving_that_whole_servers_eat_up_is_none() -> None:
    found = pools_of(carrying(1.0), {"short": carrying(4.0), "long": carrying(4.0)}, Pace(), load=1.0)
    assert found is not None
    assert not found.is_worth_it, "one server does for all, two would be needed"


def test_a_pool_that_meets_nothing_is_said_to() -> None:
    found = pools_of(carrying(1.0), {"short": carrying(1e-6), "long": carrying(4.0)}, Pace(), load=1.0)
    assert found is not None
    assert not found.is_worth_it
    assert "short" in found.why


def test_a_goal_of_latency_has_no_pools() -> None:
    assert pools_of(problem(LATENCY), {}, Pace(), load=1.0) is None
