"""What is known of an engine from when it was told something and when it said something."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.net.pulse import LEAST_PATIENCE_S, UNKNOWN_PATIENCE_S, Pulse

TOKENS = 2048


def test_an_engine_that_rests_may_be_silent() -> None:
    pulse = Pulse(TOKENS, now_s=0)
    assert pulse.silent_s(1000) == 0
    pulse.sent("a", 1000)
    assert pulse.silent_s(1003) == 3, "its silence begins when it has something to do"
    pulse.taken(1, 1004)
    pulse.stepped(20, 0.5, 1005)
    assert pulse.silent_s(1006) == 1
    pulse.stepped(0, 0.0, 1007)
    assert pulse.silent_s(2000) == 0


def test_what_was_said_before_it_heard_of_a_request_is_no_rest() -> None:
    """The two cross on the way; it would have counted as resting while it worked, or hung."""
    pulse = Pulse(TOKENS, now_s=0)
    pulse.sent("a", 0)
    pulse.taken(1, 0)
    pulse.sent("b", 5)
    pulse.stepped(0, 0.0, 5)
    assert pulse.silent_s(8) == 3


def test_it_is_silent_though_nobody_waits_any_more() -> None:
    pulse = Pulse(TOKENS, now_s=0)
    pulse.sent("a", 0)
    pulse.left("a")
    assert (pulse.untaken, pulse.silent_s(9)) == (0, 9)


@given(st.lists(st.sampled_from(("sent", "left", "taken")), max_size=60))
def test_on_their_way_are_those_that_were_sent_and_neither_taken_nor_left(moves: list[str]) -> None:
    pulse, on_their_way, sent = Pulse(TOKENS, now_s=0), list[int](), 0
    for now_s, move in enumerate(moves):
        if move == "sent":
            sent += 1
            pulse.sent(str(sent), now_s)
            on_their_way.append(sent)
        elif move == "left" and on_their_way:
            gone = on_their_way.pop(now_s % len(on_their_way))
            pulse.left(str(gone))
        elif move == "taken":
            number = max(sent - now_s % 3, 0)
            pulse.taken(number, now_s)
            on_their_way = [each for each in on_their_way if each > number]
        assert pulse.untaken == len(on_their_way)


def test_patience_is_for_the_largest_step_at_a_twentieth_of_the_best_speed() -> None:
    pulse = Pulse(TOKENS, now_s=0)
    assert pulse.patience_s == UNKNOWN_PATIENCE_S
    pulse.stepped(1, 1.0, 1)
    assert pulse.patience_s == 20 * 2048 * 1.0, "one token at a time says little of a long prompt"
    pulse.stepped(100, 2.0, 3)
    assert pulse.patience_s == 20 * 2048 * 0.02
    pulse.stepped(100, 9.0, 12)
    assert pulse.patience_s == 20 * 2048 * 0.02
    pulse.stepped(2048, 0.5, 13)
    assert pulse.patience_s == LEAST_PATIENCE_S


def test_after_a_death_the_next_engine_begins_anew() -> None:
    pulse = Pulse(TOKENS, now_s=0)
    pulse.sent("a", 0)
    pulse.lost(1)
    assert (pulse.untaken, pulse.silent_s(9)) == (0, 0)
    pulse.sent("b", 10)
    pulse.taken(1, 11)
    assert pulse.untaken == 0
