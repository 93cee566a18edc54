"""What a tuning says while it works: without a terminal, too, never nothing for long."""

from io import StringIO
from math import inf

from rich.console import Console

from headrace.cli.tuning_telling import QUIET_S, Teller, grade_words
from headrace.core.grade import Attained, ClassGrade, Grade
from headrace.core.objective import parse_objectives


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


def test_a_run_shows_the_percentile_that_its_objective_is_held_to() -> None:
    """Beside 1.00 of a limit of 15.2 s it said 14.3 s, interpolated, of the same 64 requests."""
    (asked,) = parse_objectives("short: p95 ttft < 15.2s")
    grade = Grade(
        attained=(Attained(asked, "short", 15.2),),
        classes=(
            ClassGrade("long", 6, 0, 7.0, 15.2, 0.1, 0.8, None),
            ClassGrade("short", 64, 0, 7.0, 14.3, 0.1, 0.8, None),
        ),
        due=70,
        failed=0,
        throughput_rps=0.86,
        output_tokens_per_s=15.0,
        is_steady=True,
        preemptions=0,
    )
    said = grade_words(grade)
    assert said == "long P95 TTFT 15.2 s, short P95 TTFT 15.2 s, 0.86 req/s, 1.00 of the limit"
