"""Pools pay where kinds of requests stand in each other's way, and not where they only split the load."""

import pytest

from headrace.core.cost import Pace
from headrace.core.grade import Grade
from headrace.tune.pools import length_bound, pools_of
from headrace.tune.problem import Problem
from headrace.tune.twin import Point
from tests.tune.model import CAPACITY, LATENCY, grade_of, problem


def carrying(times: float) -> Problem:
    """A server that carries so many times the model's load."""

    def twin(point: Point) -> Grade:
        return grade_of(point.overrides, point.load / times, point.pace)

    return problem(CAPACITY, twin=twin)


def test_pools_that_carry_more_together_are_worth_it_where_the_fleet_is_large_enough() -> None:
    found = pools_of(carrying(1.0), {"short": carrying(4.0), "long": carrying(4.0)}, Pace())
    assert found is not None
    assert found.share == pytest.approx(0.5, rel=0.06)
    assert [pool.name for pool in found.apart] == ["short", "long"]
    assert found.pays_from == 3, "one server does for all of what one carries, two are no fewer than two"


def test_pools_that_only_split_the_load_are_not() -> None:
    found = pools_of(carrying(1.0), {"short": carrying(2.0), "long": carrying(2.0)}, Pace())
    assert found is not None
    assert found.pays_from is None
    assert found.share == pytest.approx(1.0, rel=0.06)
    assert "times the servers" in found.why


def test_a_pool_that_meets_nothing_is_said_to() -> None:
    found = pools_of(carrying(1.0), {"short": carrying(1e-6), "long": carrying(4.0)}, Pace())
    assert found is not None
    assert (found.apart, found.share, found.pays_from) == ((), None, None)
    assert "short" in found.why


def test_a_goal_of_latency_has_no_pools() -> None:
    assert pools_of(problem(LATENCY), {}, Pace()) is None


def test_short_ends_where_lengths_part() -> None:
    assert length_bound([40, 60, 90, 50, 3000, 4800]) == 90
    assert length_bound([100, 100_000]) == 100
    assert length_bound([7] * 20) is None
