"""The report of a search says the verdict first, fits 80 columns, and every number is the search's own."""

import json
from typing import Any

import pytest

from headrace.core.bill import Cause
from headrace.core.trial import Outcome, Verdict
from headrace.report.tune import tune_text
from headrace.report.tuned import Tuned, pooled, tune_json
from headrace.tune.candidates import Start
from headrace.tune.search import START, Budget, conclude, search
from tests.tune.synthetic import Notes, SyntheticServer

VLLM = Start(2048, 128, 0, 8192)
BILL = {Cause.SHARED_STEPS: 5.0, Cause.STEP_IN_FLIGHT: 2.0, Cause.OWN_PREFILL: 0.3}


def tuned(server: SyntheticServer, **limits: int) -> Tuned:
    outcome = search(server.judge, VLLM, Budget(**limits), server.clock, Notes())
    return Tuned(outcome, VLLM.levers(), "smollm2")


def parsed(found: Tuned) -> dict[str, Any]:
    line = tune_json(found)
    assert "\n" not in line
    return json.loads(line)


IMPROVED = tuned(SyntheticServer(bill=BILL))
NOTHING = tuned(SyntheticServer(lambda _: 3.0, bill=BILL, seed=2))
UNDECIDED = tuned(SyntheticServer(), max_trials=3)
FAILING = tuned(SyntheticServer(refuses=lambda o: o.get("max_num_batched_tokens") == 512, loses=lambda _: 2))
EMPTY = Tuned(conclude([]), VLLM.levers(), "smollm2")


@pytest.mark.parametrize("found", [IMPROVED, NOTHING, UNDECIDED, FAILING, EMPTY])
def test_a_report_fits_eighty_columns_without_trailing_spaces(found: Tuned) -> None:
    for line in tune_text(found).splitlines():
        assert len(line) <= 80
        assert line == line.rstrip()


def test_the_verdict_comes_first_with_before_and_after() -> None:
    text = tune_text(IMPROVED)
    before, after = IMPROVED.before(), IMPROVED.after()
    assert before
    assert after
    start, best = before.classes["short"].ttft_s, after.classes["short"].ttft_s
    assert start
    assert best
    assert text.startswith("IMPROVED: short requests get their first token ")
    assert f"{start.p95 / best.p95:.1f} times sooner" in text
    assert f"P95 TTFT {start.p95:.2f} s -> {best.p95 * 1000:.0f} ms" in " ".join(text.split())


def test_why_is_taken_from_the_bill_and_the_reflex_from_its_trial() -> None:
    text = " ".join(tune_text(IMPROVED).split())
    assert "of what was saved is 'others' part of its steps'" in text
    assert "now it gets at most 64 of a step's 256" in text
    assert "Lowering max_num_batched_tokens to 256 alone gave" in text


def test_the_commands_are_for_both_servers() -> None:
    text = tune_text(IMPROVED)
    for server in ("headrace serve smollm2", "vllm serve MODEL"):
        command = text[text.index(server) :].replace(" \\\n     ", "")
        assert command.startswith(f"{server} --max-num-batched-tokens 256 --long-prefill-token-threshold 64")


def test_what_got_worse_is_named_as_the_price() -> None:
    start, best = SyntheticServer(run_noise=0.01), SyntheticServer(run_noise=0.01, throughput=lambda _: 0.97)
    outcome = search(lambda o: (start if o == START else best).judge(o), VLLM, Budget(), lambda: 0.0, Notes())
    assert "What it costs: throughput -3%." in tune_text(Tuned(outcome, VLLM.levers(), "smollm2"))
    assert "no measured latency grew by more than 5 %" in " ".join(tune_text(IMPROVED).split())


def test_nothing_better_keeps_the_start_and_says_why() -> None:
    text = " ".join(tune_text(NOTHING).split())
    assert text.startswith("NOTHING BETTER found beyond the noise: keep the starting settings")
    assert "repeated runs of the same settings differ by a factor of" in text
    assert text.endswith("Command line, unchanged: headrace serve smollm2")
    assert "What it costs" not in text


def test_an_undecided_search_asks_for_more_time_and_lists_what_was_not_tried() -> None:
    text = tune_text(UNDECIDED)
    assert text.startswith("INCONCLUSIVE: ")
    assert "A larger --budget decides it." in " ".join(text.split())
    assert "not tried" in text
    assert "keeps no bill" in text


def test_failed_trials_and_failed_requests_are_shown() -> None:
    text = tune_text(FAILING)
    assert "no result" in text
    assert "failed: the server ended before it was ready: out of memory" in text
    assert "6/114" in text


def test_few_requests_for_a_p95_are_pointed_out() -> None:
    measured = IMPROVED.outcome.measured(START)[0]
    lines = measured.results[:5] + measured.results[-2:]
    trials = tuple(
        type(t)(t.overrides, type(measured)("t", "m", {}, "w", 0, 30.0, lines))
        for t in IMPROVED.outcome.trials
    )
    outcome = Outcome(Verdict.NOTHING_BETTER, "so it is", trials, None, None, ())
    assert "are few for a P95" in tune_text(Tuned(outcome, VLLM.levers(), "smollm2"))


def test_what_the_confidence_does_not_cover_is_said() -> None:
    text = " ".join(tune_text(IMPROVED).split())
    assert "every run sent the same requests: 38 requests. So the confidence is about noise between" in text
    assert "2 long in each run" in text
    assert "not tried and may be better" not in text
    assert "candidates were not tried and may be better still" in " ".join(tune_text(UNDECIDED).split())


def test_the_json_line_carries_the_same_figures() -> None:
    line, before, after = parsed(IMPROVED), IMPROVED.before(), IMPROVED.after()
    assert before
    assert before.classes["short"].ttft_s
    assert after
    assert after.classes["long"].ttft_s
    assert line["verdict"] == "improved"
    assert line["baseline"]["short"]["p95_ttft_s"] == before.classes["short"].ttft_s.p95
    assert line["best"]["long"]["p95_ttft_s"] == after.classes["long"].ttft_s.p95
    assert line["best"]["throughput_rps"] == after.classes["all"].throughput_rps
    assert line["baseline"]["slow_bill_s"]["shared_steps"] > 1
    assert line["recommended"] == {
        "max_num_batched_tokens": 256,
        "max_num_seqs": 128,
        "long_prefill_token_threshold": 64,
    }
    assert len(line["trials"]) == len(IMPROVED.outcome.trials)


def test_without_an_improvement_the_json_recommends_the_start() -> None:
    for found in (NOTHING, UNDECIDED, EMPTY):
        assert parsed(found)["recommended"] == VLLM.levers()
    assert parsed(UNDECIDED)["best"]["short"]["p95_ttft_s"] < 1
    assert parsed(EMPTY)["baseline"] == {}


def test_the_start_pools_all_runs_and_the_best_only_its_repeats() -> None:
    before, after = IMPROVED.before(), IMPROVED.after()
    assert before
    assert after
    assert (before.runs, after.runs) == (3, 2)
    runs = IMPROVED.outcome.measured(START)
    whole = pooled(runs)
    assert len(whole.results) == sum(len(run.results) for run in runs)
    assert whole.duration_s == sum(run.duration_s for run in runs)
