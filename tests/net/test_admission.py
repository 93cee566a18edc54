"""Who is let in when there is too much, and what the others are told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import Busy
from headrace.net.admission import MOST_RETRY_AFTER_S, Admission, Bounds
from headrace.net.restarts import MOST_QUICK_DEATHS, QUICK_DEATH_S, Restarts


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def refused_for_s(admission: Admission) -> float:
    with pytest.raises(Busy) as refused:
        admission.check()
    return refused.value.retry_after_s


def full(clock: Clock, places: int = 4) -> tuple[Admission, list[str]]:
    refused = list[str]()
    admission = Admission(Bounds(max_num_queued_reqs=places), refused.append, clock)
    for _ in range(places):
        admission.check()
        admission.entered(10)
    return admission, refused


def replace_one(admission: Admission) -> None:
    admission.prefilled(10)
    admission.left()
    admission.entered(10)


def test_requests_up_to_the_limit_are_let_in_and_each_answer_counts() -> None:
    admission, refused = full(Clock(), places=4)
    assert refused_for_s(admission) >= 1
    admission.left()
    admission.check(1)
    with pytest.raises(Busy):
        admission.check(2)
    assert refused == ["max_num_queued_reqs"] * 2


def test_what_is_reserved_counts_until_it_enters_or_never_will() -> None:
    """The answers of one large request enter in turns; nobody takes their places meanwhile."""
    admission = Admission(Bounds(max_num_queued_reqs=4), list[str]().append, Clock())
    admission.reserve(3)
    with pytest.raises(Busy):
        admission.reserve(2)
    admission.release()
    admission.entered(10)
    with pytest.raises(Busy):
        admission.check(2)
    admission.release(2)
    admission.check(3)


def test_prompt_tokens_count_until_the_first_token_and_a_lone_request_may_exceed_them() -> None:
    refused = list[str]()
    admission = Admission(Bounds(max_num_queued_tokens=100), refused.append, Clock())
    admission.check()
    admission.entered(5000)
    assert refused_for_s(admission) >= 1
    admission.prefilled(5000)
    admission.check()
    assert refused == ["max_num_queued_tokens"]


def test_without_limits_everybody_is_let_in() -> None:
    admission = Admission(Bounds(), lambda _: None, Clock())
    for _ in range(10_000):
        admission.check()
        admission.entered(1_000_000)


def test_those_refused_are_told_the_rate_at_which_places_open_one_after_the_other() -> None:
    clock = Clock()
    admission, _ = full(clock)
    for _ in range(20):
        clock.now += 2.0
        replace_one(admission)
    assert [refused_for_s(admission) for _ in range(4)] == [2, 4, 6, 8]
    clock.now += 100
    for _ in range(50):  # it has become faster, and who was told to come back has
        clock.now += 1.0
        replace_one(admission)
    assert refused_for_s(admission) <= 2


def test_idle_time_does_not_make_a_server_look_slow() -> None:
    clock = Clock()
    admission, _ = full(clock, places=1)
    for _ in range(10):
        clock.now += 3.0
        admission.prefilled(10)
        admission.left()
        clock.now += 3600
        admission.entered(10)
    assert refused_for_s(admission) == 3


def test_a_stall_makes_the_wait_longer() -> None:
    clock = Clock()
    admission, _ = full(clock)
    for _ in range(20):
        clock.now += 1.0
        replace_one(admission)
    clock.now += 40.0
    assert refused_for_s(admission) > 5


@given(st.lists(st.tuples(st.floats(0, 1e4), st.sampled_from(["ends", "comes"])), max_size=60))
def test_the_wait_is_always_between_one_second_and_a_minute(story: list[tuple[float, str]]) -> None:
    clock = Clock()
    admission, _ = full(clock)
    for passed_s, event in story:
        clock.now += passed_s
        if event == "ends":
            replace_one(admission)
        else:
            assert 1 <= refused_for_s(admission) <= MOST_RETRY_AFTER_S


def test_an_engine_that_dies_now_and_then_is_always_started_again_at_once() -> None:
    restarts = Restarts()
    assert [restarts.after_death(QUICK_DEATH_S) for _ in range(100)] == [0.0] * 100


def test_an_engine_that_dies_at_once_is_started_later_each_time_and_then_given_up() -> None:
    restarts = Restarts()
    waits = [restarts.after_death(0.0) for _ in range(MOST_QUICK_DEATHS)]
    assert waits == [0.0, 0.5, 1.0, 2.0, None]


def test_a_long_life_forgives_quick_deaths() -> None:
    restarts = Restarts()
    for _ in range(MOST_QUICK_DEATHS - 1):
        assert restarts.after_death(0.0) is not None
    assert restarts.after_death(QUICK_DEATH_S) == 0.0
    assert restarts.after_death(0.0) == 0.5
