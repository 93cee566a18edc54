"""What a tuning says while it works: without a terminal, too, never nothing for long."""

from io import StringIO
from math import inf

from rich.console import Console

from headrace.cli.tuning_telling import QUIET_S, Teller


class Clock:
    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


def test_a_long_batch_in_the_twin_says_how_far_it_is_every_ten_seconds_where_there_is_no_terminal() -> None:
    out, clock = StringIO(), Clock()
    teller = Teller(Console(file=out, width=80), inf, clock)
    for done in range(1, 61):
        clock.at += 0.5
        teller.simulating(done, 60)
    assert out.getvalue().splitlines() == [
        " 0:10    twin: 20 simulations; 20 of 60 in this batch",
        " 0:20    twin: 40 simulations; 40 of 60 in this batch",
        " 0:30    twin: 60 simulations; 60 of 60 in this batch",
    ]


def test_what_was_said_otherwise_is_a_sign_of_life_too() -> None:
    out, clock = StringIO(), Clock()
    teller = Teller(Console(file=out, width=80), inf, clock)
    clock.at += QUIET_S - 1
    teller.say("run 3")
    clock.at += QUIET_S - 1
    teller.simulating(1, 2)
    assert out.getvalue() == " 0:09  run 3\n"
