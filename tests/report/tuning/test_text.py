"""The terminal's report fits its 80 columns, says the verdict first, and every number is the search's own."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given

from headrace.core.conclusion import Curve, CurvePoint
from headrace.core.trial import Verdict
from headrace.report.tuning.text import tuning_text
from headrace.report.tuning.tuning import Tuning
from tests.report.tuning import examples
from tests.report.tuning.drawn import tunings

GOLDEN = Path(__file__).parent / "golden"
EVERY = pytest.mark.parametrize("example", examples.EVERY)
Example = Callable[[], Tuning]


def flat(example: Example) -> str:
    return " ".join(tuning_text(example()).split())


@EVERY
def test_each_verdict_reads_as_agreed(example: Example) -> None:
    """`python -m tests.report.tuning.test_text` writes them anew; read what has changed."""
    path = GOLDEN / f"{example.__name__}.txt"
    text = f"{tuning_text(example())}\n"
    assert text == path.read_text(encoding="utf-8")


@EVERY
def test_a_report_is_forty_to_fifty_lines_of_eighty_columns(example: Example) -> None:
    lines = tuning_text(example()).splitlines()
    assert len(lines) <= 52
    assert all(len(line) <= 80 and line == line.rstrip() for line in lines)


@pytest.mark.slow
@given(tunings)
def test_any_outcome_can_be_told_without_a_control_character(tuning: Tuning) -> None:
    text = tuning_text(tuning)
    assert text
    assert all(char.isprintable() or char == "\n" for char in text)


def test_the_verdict_is_first_and_the_command_last() -> None:
    text = tuning_text(examples.improved())
    assert text.startswith("IMPROVED: short requests get their first token 5.4 times sooner: P95 TTFT 1.83 s")
    assert text.endswith("--long-prefill-token-threshold 256")
    assert "at least 2.7 times" in " ".join(text.split())


def test_the_change_that_matters_most_comes_first_with_what_undoing_it_costs() -> None:
    text = flat(examples.improved)
    assert "Change long_prefill_token_threshold 0 (no cap) -> 256; max_num_batched_tokens 2048 -> 512" in text
    assert "long_prefill_token_threshold: worst latency x 3.78" in text


def test_what_got_worse_is_named_as_the_price() -> None:
    assert "Price long P95 TTFT 6.25 s -> 7.81 s (+25%)" in flat(examples.improved)
    assert "Price" not in flat(examples.already_best)


def test_a_capacity_is_told_in_requests_a_second_and_by_which_runs_kept_the_limits() -> None:
    text = flat(examples.carries_more)
    assert "it carries 9.50 times the load within every limit: 0.25 requests/s -> 2.38 requests/s" in text
    assert "2 of 2 runs of the winner kept them, and 0 of 2 of the start" in text


def test_a_winner_of_which_runs_missed_is_at_its_limits_and_not_within_them() -> None:
    text = flat(examples.at_its_limits)
    assert "it carries 9.50 times the load at its limits: 0.25 requests/s -> 2.38 requests/s" in text
    assert (
        "2 of 4 runs of the winner did not keep them (mean 0.997 of the limit), nor did 2 of 2 of the start"
        in text
    )
    assert "every limit" not in text


def test_a_start_that_was_not_run_near_its_edge_is_not_said_to_carry_only_what_it_met() -> None:
    """It was met at 0.1 times the load, missed at 0.95, and the twin puts its edge at half of that."""
    tuning = examples.carries_more()
    assert tuning.conclusion
    bracket = replace(tuning.conclusion.baseline_bracket, missed=0.95)
    found = replace(tuning.conclusion, baseline_bracket=bracket, baseline_believed=0.475)
    text = " ".join(tuning_text(replace(tuning, conclusion=found)).split())
    assert "in the twin they carry 1.19 requests/s, so it is 2.00 times the load." in text
    assert "9.50" not in text


def test_a_cost_is_told_in_replicas_and_money() -> None:
    text = flat(examples.at_a_cost)
    assert "Today's load takes 2 replicas instead of 10" in text
    assert "a thousand requests cost 2.78 -> 0.292" in text


def test_settings_that_are_best_already_are_kept_with_the_reason() -> None:
    text = flat(examples.already_best)
    assert text.startswith("ALREADY BEST: keep the settings as they are")
    assert "The best other values in the twin: max_num_batched_tokens 1024, worst latency x 1.36" in text
    assert "Command line, unchanged" in text


def test_a_start_that_is_best_says_how_much_it_carries_and_other_values_are_told_by_that() -> None:
    """Asked for the most load, it told the latency at the workload's own, and levers by that: all x 1.00."""
    tuning = examples.carries_more()
    assert tuning.conclusion
    assert tuning.explanation
    found = replace(
        tuning.conclusion,
        verdict=Verdict.NOTHING_BETTER,
        contender=None,
        baseline_bracket=replace(tuning.conclusion.baseline_bracket, met=4.0, missed=None),
        baseline_believed=5.0,
    )
    answer = tuning.explanation.answer
    points = (
        CurvePoint(64, 4.0, answer, ""),
        CurvePoint(128, 5.0, answer, ""),
        CurvePoint(256, 5.0, answer, ""),
    )
    curves = (
        Curve("max_num_seqs", 128, points, None, ()),
        Curve("max_num_batched_tokens", 128, points[:2], None, ()),
    )
    kept = replace(tuning, conclusion=found, explanation=replace(tuning.explanation, curves=curves))
    text = " ".join(tuning_text(kept).split())
    assert "They carry 12.5 requests/s within the limits in the twin, 5 times the workload's own." in text
    assert "max_num_batched_tokens 64, load x 0.80; as good: max_num_seqs 256." in text


def test_candidates_that_all_failed_are_not_called_worse() -> None:
    text = flat(examples.crashing)
    assert text.startswith("NOTHING BETTER")
    assert "None of 2 runs under other settings gave a result: the server ended before it was ready" in text


def test_what_is_undecided_or_interrupted_says_how_to_go_on() -> None:
    for example, word in ((examples.inconclusive, "INCONCLUSIVE"), (examples.interrupted, "INTERRUPTED")):
        text = flat(example)
        assert text.startswith(word)
        assert text.endswith("nothing measured twice: headrace tune --target vllm --workload mix.jsonl")


def test_objectives_out_of_reach_say_how_near_and_what_would_be_needed() -> None:
    text = flat(examples.out_of_reach)
    assert "1.02 times the limit, at best" in text
    assert "more replicas would be needed" in text
    assert "What the slowest 5% of long requests wait for" in text


def test_somebody_elses_server_gets_advice_that_says_it_is_not_proven() -> None:
    text = flat(examples.attached)
    assert text.startswith("ADVICE: the server was measured and left as it is")
    assert "No run has proven it" in text
    assert "--budget" not in text


def test_bills_of_the_twin_are_called_so() -> None:
    assert "short requests wait for, on average, in the twin" in flat(examples.without_bills)
    assert "in the twin, since" not in flat(examples.improved)


if __name__ == "__main__":
    for each in examples.EVERY:
        (GOLDEN / f"{each.__name__}.txt").write_text(f"{tuning_text(each())}\n", encoding="utf-8")
