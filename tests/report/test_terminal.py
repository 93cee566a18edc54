import io
import json
from dataclasses import replace

import pytest
from hypothesis import given
from rich.console import Console

from headrace.core.bill import CAUSES, Cause
from headrace.core.exchange import Arrival, Ask
from headrace.core.measurement import Measurement
from headrace.core.timeline import FailureKind, Timeline
from headrace.report.as_json import measurement_json
from headrace.report.progress import Progress, Stage
from headrace.report.terminal import print_measurement
from tests.measure.samples import failure, measurement, measurements, timeline

BILL = dict.fromkeys(CAUSES, 0.0) | {Cause.SHARED_STEPS: 1.0, Cause.TOKENS: 0.5}


def printed(run: Measurement) -> str:
    console = Console(file=io.StringIO(), width=80)
    print_measurement(run, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def line_with(text: str, *words: str) -> str:
    return next(line for line in text.splitlines() if all(word in line for word in words))


def test_every_class_shows_its_latencies_and_rates() -> None:
    shown = printed(measurement(timeline(0.5, "short", (0.1, 0.1)), timeline(3.0, "long", (0.2,))))

    assert line_with(shown, "short", "0.10").split() == ["short", "1", "0", "0.10", "0.3"]
    assert line_with(shown, "long", "TTFT").split("  ")[-1].strip() == "3.00 s"
    assert line_with(shown, "short", "TTFT").count("500 ms") == 4
    assert "from when a request was due" in shown


def test_one_class_alone_is_not_shown_twice() -> None:
    assert "all " not in printed(measurement(timeline(0.5)))


def test_failures_are_told_by_kind_with_an_example() -> None:
    shown = printed(
        measurement(
            timeline(0.5),
            failure(FailureKind.REFUSED, reason="429: slow down"),
            failure(FailureKind.REFUSED, reason="429: slow down"),
            failure(FailureKind.TIMED_OUT, reason="not finished"),
        )
    )

    assert "3 of 4 failed" in shown
    assert "2 refused: 429: slow down" in shown
    assert "1 timed out: not finished" in shown


def test_the_bill_of_the_slow_says_which_budget_and_how_much() -> None:
    shown = printed(measurement(timeline(2.0, bill_s=BILL)))

    assert "Where the slow short requests' TTFT went: 1 from P95 on, mean 2.00 s" in shown
    assert line_with(shown, "others' part").split("█")[0].split()[-3:] == ["1.00", "s", "50%"]
    assert "max_num_batched_tokens" in line_with(shown, "queued: steps were full")
    assert "500 ms" in line_with(shown, "outside the server")


def test_a_client_that_fell_behind_says_so() -> None:
    late = Timeline("r", "short", 40, 0.0, 0.5, (1.0,), "length")

    assert "INVALID: requests left 500 ms late" in printed(measurement(late))
    assert "bottleneck" not in printed(measurement(timeline(1.0)))


def test_answers_that_ended_early_and_cached_prompts_are_pointed_out() -> None:
    early = Timeline("r", "short", 40, 0.0, 0.0, (1.0,), "stop", cached_tokens=32, asked_tokens=4)

    shown = printed(measurement(early))

    assert "1 answer ended before the length asked for" in shown
    assert "80% of the prompt tokens came from the server's prefix cache" in shown


def test_a_load_that_shares_its_beginnings_was_not_sent_before() -> None:
    hit = Timeline("r", "short", 40, 0.0, 0.0, (1.0,), "length", cached_tokens=32)

    most, few = (printed(replace(measurement(hit), shared_share=share)) for share in (0.79, 0.2))
    assert "prefix cache" not in most
    assert "share 20%: this seed was sent before" in few.replace("\n", " ")


def test_a_server_that_counts_cached_tokens_and_no_prompt_is_shown_all_the_same() -> None:
    """It divided by the prompt tokens of the run."""
    wrong = Timeline("r", "short", 0, 0.0, 0.0, (1.0,), "length", cached_tokens=32)

    assert "prefix cache" not in printed(measurement(wrong))


def test_a_run_in_which_nothing_was_answered_can_be_shown() -> None:
    assert "1 of 1 failed" in printed(measurement(failure()))
    assert printed(measurement())


def test_a_run_that_ended_in_its_warm_up_says_so_and_shows_no_zeros() -> None:
    run = replace(measurement(timeline(0.5, due_at=1.0), timeline(0.5, due_at=2.0)), warm_up_s=6.0)

    shown = printed(run)

    assert "Requests sent: 2, all due in the warm-up of the first 6.00 s" in shown
    assert "answers/s" not in shown
    assert "before any request was due" in printed(measurement())


@pytest.mark.slow
@given(measurements.filter(lambda run: all(r.request_class != "all" for r in run.results)))
def test_any_measurement_can_be_shown_and_said_in_json(run: Measurement) -> None:
    printed(run)
    json.dumps(measurement_json(run), allow_nan=False)


def test_a_bill_beyond_what_the_client_waited_is_shown() -> None:
    """A request that was answered at the instant it was due divided by its wait."""
    assert line_with(printed(measurement(timeline(0.0, bill_s=BILL))), "steps", "67%")


def test_a_program_finds_what_the_tables_show() -> None:
    said = measurement_json(measurement(timeline(0.5, bill_s=BILL), failure(FailureKind.CUT)))

    assert said["classes"]["short"]["ttft_s"]["p95"] == 0.5
    assert said["classes"]["all"]["failed"] == 1
    assert said["failures"] == {"cut": 1}
    assert said["slow_bill_s"]["short"]["shared_steps"] == 1.0


def progressing(console: Console, now: list[float]) -> Progress:
    progress = Progress(console, 3, clock=lambda: now[0])
    progress.on_start()
    ask = Ask("r", "short", "a prompt", 1)
    for due_at in (1.0, 11.0, 12.0):
        progress.on_event(Arrival(due_at, ask))
        progress.on_event(timeline(0.25, due_at=due_at) if due_at < 12 else failure())
    return progress


def test_progress_is_told_in_a_line_and_by_the_clock_so_a_stall_is_seen() -> None:
    now = [0.0]
    progress = progressing(Console(file=io.StringIO()), now)
    progress.on_event(Arrival(12.5, Ask("r", "short", "a prompt", 1)))

    now[0] = 40.0

    assert progress.line() == "40 s: 3 of 3 done, 1 in flight, 1 failed, recent TTFT 250 ms"


def test_requests_alone_are_no_part_of_the_runs_progress() -> None:
    now = [0.0]
    progress = Progress(Console(file=io.StringIO()), 3, clock=lambda: now[0])

    now[0] = 12.0
    before = progress.line()
    assert progress.view().plain == before
    progress.on_start()
    now[0] = 15.0

    assert before == "12 s: the run has not begun"
    assert progress.line() == "3 s: 0 of 3 done, 0 in flight"


def test_the_view_of_a_terminal_fits_into_80_columns_and_has_the_last_failure() -> None:
    lines = progressing(Console(file=io.StringIO()), [5.0]).view().plain.splitlines()

    assert all(len(line) <= 80 for line in lines)
    assert "1 failed, the last: no" in lines[-1]
    assert any("TTFT P50 250 ms" in line for line in lines)


def test_a_run_of_several_says_which_it_is_and_how_long_all_take_still() -> None:
    now = [0.0]
    console = Console(file=io.StringIO())
    progress = Progress(console, 3, 60.0, clock=lambda: now[0], stage=Stage("pair 2 of 5, B", 480.0))
    open_end = Progress(console, 3, 60.0, clock=lambda: now[0], stage=Stage("run 1", 60.0, is_least=True))

    now[0] = 20.0
    before = progress.line()
    progress.on_start()
    open_end.on_start()
    now[0] = 40.0

    assert before == "pair 2 of 5, B, 20 s: the run has not begun"
    assert progress.line() == "pair 2 of 5, B, 20 of 60 s: 0 of 3 done, 0 in flight; about 9 min left"
    assert progress.view().plain.splitlines()[0] == "pair 2 of 5, B; about 9 min left"
    assert open_end.line().endswith("; at least 2 min left")
    assert all(len(line) <= 80 for line in progress.view().plain.splitlines())


def test_progress_ends_with_its_run() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True)

    with Progress(console, num_requests=1) as progress:
        progress.on_event(failure())

    assert not progress.is_drawing
