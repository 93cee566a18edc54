"""Routers: who gets a request, whatever they were asked before."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.gateway.router import (
    LOAD_BOUND,
    Asked,
    LeastRequests,
    LeastTokens,
    Outstanding,
    PrefixAffine,
    RoundRobin,
    Router,
)

ASKED = Asked(100)
loads = st.lists(st.builds(Outstanding, st.integers(0, 50), st.integers(0, 9999)), min_size=1, max_size=9)


def alike(number: int) -> Asked:
    return Asked(100, f"prompt {number}".encode())


def test_round_robin_gives_each_its_turn() -> None:
    router = RoundRobin()
    assert [router.choose(ASKED, [Outstanding()] * 3) for _ in range(5)] == [0, 1, 2, 0, 1]


def test_the_least_loaded_gets_it_and_the_first_of_equals() -> None:
    outstanding = [Outstanding(2, 10), Outstanding(1, 500), Outstanding(1, 10)]
    assert LeastRequests().choose(ASKED, outstanding) == 1
    assert LeastTokens().choose(ASKED, outstanding) == 0


def test_prompts_that_begin_alike_go_to_one_replica_and_others_spread() -> None:
    idle = [Outstanding() for _ in range(4)]
    chosen = [PrefixAffine().choose(alike(number), idle) for number in range(400)]
    assert chosen == [PrefixAffine().choose(alike(number), idle) for number in range(400)]
    assert min(Counter(chosen).values()) > 60


def test_one_more_replica_moves_only_what_it_takes() -> None:
    for number in range(100):
        before = PrefixAffine().choose(alike(number), [Outstanding()] * 4)
        assert PrefixAffine().choose(alike(number), [Outstanding()] * 5) in {before, 4}


def test_a_prefix_that_everybody_has_does_not_overrun_its_replica() -> None:
    outstanding = [Outstanding() for _ in range(4)]
    for _ in range(100):
        outstanding[PrefixAffine().choose(alike(1), outstanding)].add(ASKED)
    assert max(each.requests for each in outstanding) <= LOAD_BOUND * 100 / 4 + 1


def test_a_prompt_with_an_unknown_beginning_goes_to_the_least_loaded() -> None:
    assert PrefixAffine().choose(ASKED, [Outstanding(2), Outstanding(1)]) == 1


@pytest.mark.parametrize("router", [RoundRobin(), LeastRequests(), LeastTokens(), PrefixAffine()])
@given(outstanding=loads, number=st.integers(0, 99))
def test_every_router_always_chooses_one_that_is_there(
    router: Router, outstanding: list[Outstanding], number: int
) -> None:
    assert router.choose(alike(number), outstanding) in range(len(outstanding))
