"""The load fits the machine, and a run is typical of what its rates promise."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.tune.traffic import (
    LONG_SHARE,
    MOST_DOCUMENT_TOKENS,
    MOST_DURATION_S,
    SHORT_SHARE,
    Probe,
    fit,
    plan_runs,
    typical,
)
from headrace.workload.mixed import LONG, SHORT, MixedWorkload


@given(st.floats(0.01, 60), st.floats(0.005, 10))
def test_a_load_spends_its_shares_of_the_machine_and_no_more(document_s: float, short_s: float) -> None:
    load = fit(Probe(1500, document_s, short_s))
    assert load.short_rps * short_s <= SHORT_SHARE * 1.06
    assert load.long_rps * load.document_tokens * document_s / 1500 == pytest.approx(LONG_SHARE, rel=0.06)
    assert 1200 <= load.document_tokens <= MOST_DOCUMENT_TOKENS


def test_documents_take_seconds_on_slow_machines_and_fast_ones() -> None:
    assert fit(Probe(1500, 2.5, 0.3)).document_tokens == 3600  # 600 tokens a second: 6 s
    assert fit(Probe(1500, 0.5, 0.1)).document_tokens == MOST_DOCUMENT_TOKENS
    assert fit(Probe(1500, 0.5, 0.1), most_document_tokens=2000).document_tokens == 2000
    assert fit(Probe(1500, 20.0, 1.0)).document_tokens == 1200


def test_the_reference_machine_gets_the_reference_load() -> None:
    """650 prompt tokens a second and 0.25 s a short request: about 1.2 short and 0.07 documents a second."""
    load = fit(Probe(1500, 1500 / 650, 0.25))
    assert load.short_rps == pytest.approx(1.2)
    assert load.long_rps == pytest.approx(0.067, abs=0.005)


def test_runs_share_the_time_and_candidates_are_given_up_before_a_meaningful_p95_is() -> None:
    assert plan_runs(330, 10, (8, 7, 6), short_rps=1.2) == 31
    assert plan_runs(330, 20, (8, 7, 6), short_rps=1.2) == 21
    assert plan_runs(330, 20, (8, 7, 6), short_rps=0.9) == 35
    assert plan_runs(330, 20, (8, 7, 6), short_rps=0.1) == 35
    assert plan_runs(30, 20, (8, 7, 6), short_rps=1.0) == 12
    assert plan_runs(86_400, 20, (8, 7, 6), short_rps=1.0) == MOST_DURATION_S
    assert plan_runs(330, 10, (1, 1, 1), short_rps=0.0) == MOST_DURATION_S


@pytest.mark.slow
@pytest.mark.parametrize("long_rps", [0.02, 0.06, 0.2])
@pytest.mark.parametrize("short_rps", [0.5, 3.0])
def test_a_typical_timetable_has_the_documents_its_rate_promises_and_a_quiet_end(
    short_rps: float, long_rps: float
) -> None:
    for seed in range(0, 100, 20):
        workload = MixedWorkload(short_rps=short_rps, long_rps=long_rps, duration_s=30, seed=seed)
        found = typical(workload)
        arrivals = found.arrivals()
        long_due = [arrival.due_at for arrival in arrivals if arrival.ask.request_class == LONG]
        num_short = len(arrivals) - len(long_due)
        assert replace(found, seed=seed) == workload
        assert len(long_due) == max(1, round(long_rps * 30))
        assert max(long_due) <= 21
        assert abs(num_short - short_rps * 30) <= max(1.0, 0.1 * short_rps * 30) + 1e-9


def test_a_workload_without_documents_stays_without() -> None:
    workload = MixedWorkload(short_rps=2, long_rps=0, duration_s=20)
    assert all(arrival.ask.request_class == SHORT for arrival in typical(workload).arrivals())


@pytest.mark.slow
def test_where_no_timetable_is_typical_the_nearest_is_taken() -> None:
    """A hundred documents, none in the last third: no seed will do, and the search for one ends."""
    workload = MixedWorkload(short_rps=0.2, long_rps=4, long_prompt_tokens=(2, 2), duration_s=25)
    assert abs(len(typical(workload).arrivals()) - 105) < 20
