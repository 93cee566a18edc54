"""Servers that crash, that never answer, that are noisy or become slower: searches end with what is so."""

from dataclasses import replace

import pytest

from headrace.core.errors import TargetFailed
from headrace.core.grade import Grade
from headrace.core.ports import Overrides
from headrace.core.trial import NoResult, Purpose, Run, Verdict
from headrace.tune.decide import next_trial
from tests.tune.model import CAPACITY, LATENCY, Server, grade_of, problem
from tests.tune.test_decide import tune


def test_settings_that_crash_are_left_and_others_that_ask_for_as_much() -> None:
    def crashes(overrides: Overrides, load: float) -> Grade | NoResult:
        if (
            int(overrides.get("max_num_batched_tokens", 0)) > 2048
            or int(overrides.get("max_num_seqs", 0)) > 128
        ):
            return NoResult("out of memory")
        return grade_of(overrides, load)

    server = Server(crashes)
    found = tune(server, problem())
    failed = [run for run in server.runs if isinstance(run.outcome, NoResult)]
    assert len(failed) <= 3
    assert found.verdict in (Verdict.IMPROVED, Verdict.NOTHING_BETTER)
    assert not isinstance(crashes(found.recommended, 1.0), NoResult)


def test_what_settings_that_crash_have_in_common_is_left_alone_and_others_are_tried() -> None:
    """All five checks went to values of the one lever under which the server cannot start."""

    def believed(overrides: Overrides, load: float) -> Grade:
        capped = 0.5 if "long_prefill_token_threshold" in overrides else 1.0
        crowded = 0.7 if int(overrides.get("max_num_seqs", 0)) > 128 else 1.0
        return grade_of({}, load * capped * crowded)

    def crashes(overrides: Overrides, load: float) -> Grade | NoResult:
        capped = "long_prefill_token_threshold" in overrides
        return NoResult("no such flag") if capped else believed(overrides, load)

    server = Server(crashes)
    found = tune(server, problem(twin=lambda point: believed(point.overrides, point.load)))
    assert sum(isinstance(run.outcome, NoResult) for run in server.runs) <= 3
    assert found.verdict is Verdict.IMPROVED
    assert set(found.recommended) == {"max_num_seqs"}


def test_a_start_that_fails_is_an_error_with_its_cause() -> None:
    with pytest.raises(TargetFailed, match="gave no result: port taken"):
        tune(Server(lambda _o, _l: NoResult("port taken")), problem())


def test_a_start_that_answers_nothing_is_an_error() -> None:
    nothing = replace(grade_of({}, 1.0), due=5, failed=5)
    runs = [Run({}, 1.0, Purpose.BASELINE, nothing)]
    with pytest.raises(TargetFailed, match="none of 5 requests was answered"):
        next_trial(problem(), runs)


def test_a_machine_that_drifts_is_said_to_have_drifted() -> None:
    asked = problem(LATENCY)
    server = Server(lambda _, load: grade_of({}, load, goal=LATENCY), noise=0.01, drift=1.12, goal=LATENCY)
    found = tune(server, asked)
    assert found.verdict is not Verdict.IMPROVED
    assert any("drifted" in note for note in found.notes)


def test_a_machine_that_became_slower_hides_no_gain_behind_nothing_better() -> None:
    """Candidates that ran on a slower machine lost to a start that had run on a faster one."""
    asked = problem(CAPACITY)
    server = Server(grade_of, noise=0.01, drift=1.3)
    found = tune(server, asked)
    assert found.verdict is Verdict.DRIFTED
    assert "late runs of the baseline took" in found.why


def test_a_noisy_machine_is_not_said_to_have_drifted() -> None:
    drifted = 0
    for seed in range(40):
        server = Server(lambda _, load: grade_of({}, load, goal=LATENCY), noise=0.3, seed=seed, goal=LATENCY)
        drifted += any("drifted" in note for note in tune(server, problem(LATENCY)).notes)
    assert drifted <= 8, "of a machine that never changed"
