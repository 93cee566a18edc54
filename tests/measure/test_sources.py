"""Who is due when: conversations wait for answers, a closed loop is always full, and nobody is lost."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import BadInput
from headrace.core.exchange import Arrival, Ask
from headrace.measure.sources import Closed, Timetable


def ask(name: str) -> Ask:
    return Ask(name, "c", "a prompt", 1)


def asks() -> Iterator[Ask]:
    number = 0
    while True:
        yield ask(f"r{number}")
        number += 1


def test_a_turn_is_due_when_its_user_has_read_the_answer_before_it() -> None:
    source = Timetable(
        [
            Arrival(0.0, ask("first")),
            Arrival(9.0, ask("second"), after="first", think_s=2.0),
            Arrival(1.0, ask("alone")),
        ]
    )

    assert [arrival.ask.request_id for arrival in source.first()] == ["first", "alone"]
    (turn,) = source.ended("first", 5.0)
    assert (turn.ask.request_id, turn.due_at) == ("second", 7.0)
    assert source.ended("first", 6.0) == []


@given(st.lists(st.integers(0, 20), max_size=20))
def test_every_turn_of_every_conversation_is_due_exactly_once(parents: list[int]) -> None:
    arrivals = [Arrival(0.0, ask("r0"))]
    for number, parent in enumerate(parents, start=1):
        arrivals.append(Arrival(0.0, ask(f"r{number}"), after=f"r{parent % number}"))
    source = Timetable(arrivals)

    seen, waiting = list[str](), list(source.first())
    while waiting:
        name = waiting.pop().ask.request_id
        seen.append(name)
        waiting += source.ended(name, 1.0)

    assert sorted(seen) == sorted(arrival.ask.request_id for arrival in arrivals)


@pytest.mark.parametrize(
    ("arrivals", "complaint"),
    [
        ([Arrival(0.0, ask("a"), after="b")], "request a waits for b, which is never sent"),
        ([Arrival(0.0, ask("a")), Arrival(0.0, ask("a"), after="a")], "the same id"),
        (
            [Arrival(0.0, ask("x")), Arrival(0.0, ask("a"), after="b"), Arrival(0.0, ask("b"), after="a")],
            "never sent",
        ),
    ],
)
def test_a_turn_that_could_never_be_due_is_refused(arrivals: list[Arrival], complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        Timetable(arrivals)


def test_a_closed_loop_starts_gently_and_hands_on_each_place_as_it_is_free() -> None:
    source = Closed(asks(), 4, until_s=10.0, ramp_s=2.0)

    assert [arrival.due_at for arrival in source.first()] == [0.0, 0.5, 1.0, 1.5]
    (following,) = source.ended("r2", 3.25)
    assert (following.ask.request_id, following.due_at) == ("r4", 3.25)
    assert source.ended("r0", 10.0) == ()


def test_a_closed_loop_of_fewer_requests_than_places_ends() -> None:
    source = Closed(iter([ask("only")]), 4, until_s=10.0)

    assert len(source.first()) == 1
    assert source.ended("only", 1.0) == ()
    with pytest.raises(BadInput, match="at least 1"):
        Closed(asks(), 0, until_s=1.0)
