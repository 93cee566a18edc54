"""A search finds what is there, claims nothing that is not, and keeps to its budget whatever fails."""

import pytest

from headrace.core.bill import Cause
from headrace.core.errors import TargetFailed
from headrace.core.measurement import Measurement
from headrace.core.ports import Overrides
from headrace.core.trial import NoResult, Outcome, Verdict
from headrace.tune.candidates import Start
from headrace.tune.search import START, Budget, conclude, search
from tests.tune.synthetic import Notes, SyntheticServer, step_tokens

VLLM = Start(
    max_num_batched_tokens=2048, max_num_seqs=128, long_prefill_token_threshold=0, max_model_len=8192
)


def tune(server: SyntheticServer, budget: Budget | None = None, notes: Notes | None = None) -> Outcome:
    return search(server.judge, VLLM, budget or Budget(), server.clock, notes or Notes())


def test_the_improvement_is_found_and_proven() -> None:
    server = SyntheticServer()
    outcome = tune(server)
    assert outcome.verdict is Verdict.IMPROVED
    assert step_tokens(outcome.recommended) <= 128
    assert outcome.gain is not None
    assert outcome.gain.ratio < 0.3
    assert outcome.gain.ratio <= outcome.gain.ratio_at_most < 0.95
    assert len(outcome.measured(START)) == 3
    assert len(outcome.measured(outcome.recommended)) == 3


def test_the_baseline_comes_first_and_repeats_alternate_with_it_last() -> None:
    server = SyntheticServer()
    best = tune(server).recommended
    assert server.asked[0] == START
    assert server.asked[-4:] == [START, best, START, best]


def test_the_cap_below_the_budget_wins_and_the_smaller_budget_alone_does_not() -> None:
    outcome = tune(SyntheticServer())
    assert {"max_num_batched_tokens": 256} in [trial.overrides for trial in outcome.trials]
    assert "long_prefill_token_threshold" in outcome.recommended


@pytest.mark.slow
@pytest.mark.parametrize("run_noise", [0.02, 0.15, 0.5])
def test_noise_alone_is_called_an_improvement_in_fewer_than_one_of_twenty_searches(run_noise: float) -> None:
    searches = 300
    servers = (SyntheticServer(lambda _: 3.0, run_noise=run_noise, seed=seed) for seed in range(searches))
    verdicts = [tune(server).verdict for server in servers]
    assert verdicts.count(Verdict.IMPROVED) <= searches / 20
    assert verdicts.count(Verdict.INCONCLUSIVE) == 0


@pytest.mark.slow
def test_a_halved_wait_is_proven_in_most_searches_at_the_noise_of_a_shared_machine() -> None:
    def halved(overrides: Overrides) -> float:
        return 1.5 if step_tokens(overrides) < 2048 else 3.0

    servers = (SyntheticServer(halved, run_noise=0.12, seed=seed) for seed in range(100))
    assert sum(tune(server).verdict is Verdict.IMPROVED for server in servers) >= 80


def test_where_nothing_is_better_the_starting_settings_are_recommended() -> None:
    outcome = tune(SyntheticServer(lambda o: 3.0 if o == START else 4.0, run_noise=0.01))
    assert outcome.verdict is Verdict.NOTHING_BETTER
    assert outcome.recommended == {}
    assert outcome.contender is None


def test_a_gain_inside_the_noise_is_not_a_gain() -> None:
    outcome = tune(SyntheticServer(lambda o: 3.0 if o == START else 2.9, run_noise=0.3, seed=2))
    assert outcome.verdict is Verdict.NOTHING_BETTER
    assert outcome.recommended == {}
    assert "differ by a factor of" in outcome.why or "none of" in outcome.why


def test_a_candidate_that_will_not_start_is_a_result_with_its_cause() -> None:
    server = SyntheticServer(refuses=lambda o: o.get("max_num_batched_tokens") == 512)
    outcome = tune(server)
    refused = [trial for trial in outcome.trials if isinstance(trial.result, NoResult)]
    assert {str(trial.overrides.get("max_num_batched_tokens")) for trial in refused} == {"512"}
    assert "out of memory" in str(refused[0].result)
    assert outcome.verdict is Verdict.IMPROVED


def test_where_every_candidate_fails_the_start_stands() -> None:
    outcome = tune(SyntheticServer(refuses=lambda o: o != START))
    assert outcome.verdict is Verdict.NOTHING_BETTER


def test_a_start_that_fails_is_an_error_with_its_cause() -> None:
    with pytest.raises(TargetFailed, match=r"starting settings gave no result: .*out of memory"):
        tune(SyntheticServer(refuses=lambda _: True))


def test_a_contender_that_fails_its_repeat_makes_way_for_the_next_best() -> None:
    server = SyntheticServer(run_noise=0.05)
    fastest = tune(SyntheticServer(run_noise=0.05)).recommended

    def falls_the_second_time(overrides: Overrides) -> bool:
        return overrides == fastest and server.asked.count(fastest) > 1

    server.refuses = falls_the_second_time
    outcome = tune(server)
    assert outcome.verdict is Verdict.IMPROVED
    assert outcome.recommended != fastest
    assert len(outcome.measured(outcome.recommended)) == 3


def test_a_candidate_that_loses_requests_is_never_recommended() -> None:
    outcome = tune(SyntheticServer(loses=lambda o: 0 if step_tokens(o) >= 256 else 1))
    assert step_tokens(outcome.recommended) == 256


def test_a_candidate_that_costs_throughput_is_never_recommended() -> None:
    outcome = tune(SyntheticServer(throughput=lambda o: 1.0 if step_tokens(o) >= 256 else 0.9))
    assert step_tokens(outcome.recommended) == 256


@pytest.mark.parametrize("most", range(1, 12))
def test_no_more_trials_are_run_than_allowed(most: int) -> None:
    server, notes = SyntheticServer(), Notes()
    outcome = tune(server, Budget(max_trials=most), notes)
    assert len(server.asked) <= most
    assert [number for number, _ in notes.started] == list(range(1, len(server.asked) + 1))
    assert all(of is not None and number <= of <= most for number, of in notes.started[1:])
    if most >= 6:
        assert outcome.verdict is Verdict.IMPROVED
        assert len(outcome.measured(outcome.recommended)) == 3
    if most == 1:
        assert outcome.verdict is Verdict.INCONCLUSIVE
        assert len(outcome.untried) > 3


@pytest.mark.parametrize("budget_s", [10.0, 85.0, 250.0, 330.0, 10_000.0])
def test_the_search_ends_in_time_and_repeats_come_before_more_candidates(budget_s: float) -> None:
    server = SyntheticServer(run_takes_s=40.0)
    outcome = tune(server, Budget(ends_at=budget_s))
    assert server.now <= max(budget_s, 40.0)  # the baseline is always measured
    if budget_s >= 250:
        assert outcome.verdict is Verdict.IMPROVED


def test_trials_up_to_an_interruption_are_enough_for_a_conclusion() -> None:
    server, notes = SyntheticServer(), Notes()

    def interrupted_later(overrides: Overrides) -> Measurement:
        if len(server.asked) == 4:
            raise KeyboardInterrupt
        return server.judge(overrides)

    with pytest.raises(KeyboardInterrupt):
        search(interrupted_later, VLLM, Budget(), server.clock, notes)
    outcome = conclude(notes.trials)
    assert outcome.verdict is Verdict.INCONCLUSIVE
    assert outcome.contender is not None
    assert outcome.recommended == {}
    assert conclude([]).verdict is Verdict.INCONCLUSIVE


def test_the_same_judge_gives_the_same_search() -> None:
    assert tune(SyntheticServer(seed=7)) == tune(SyntheticServer(seed=7))


def test_what_the_search_cannot_change_is_said() -> None:
    outcome = tune(SyntheticServer(bill={Cause.KV: 3.0, Cause.OWN_PREFILL: 1.0}))
    assert outcome.notes[0].startswith("75% of the slow requests' wait was for KV memory")
