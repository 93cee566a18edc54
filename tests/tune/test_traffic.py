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
    document_length,
    fit,
    keeps_up,
    lighter,
    plan_runs,
    typical,
)
from headrace.workload.mixed import LONG, SHORT, MixedWorkload


@given(st.floats(0.01, 60), st.floats(0.005, 10))
def test_rates_spend_their_shares_of_the_machine_and_no_more(document_s: float, short_s: float) -> None:
    rates = fit(Probe(1500, document_s, short_s))
    assert rates.short_rps * short_s <= SHORT_SHARE * 1.06
    assert rates.long_rps * document_s == pytest.approx(LONG_SHARE, rel=0.06)


def test_documents_take_seconds_on_slow_machines_and_fast_ones() -> None:
    assert document_length(1500, 2.5) == 3600  # 600 tokens a second: 6 s
    assert document_length(1500, 0.5) == MOST_DOCUMENT_TOKENS
    assert document_length(1500, 0.5, most_tokens=2000) == 2000
    assert document_length(1500, 20.0) == 1200


def test_a_load_that_a_server_fell_behind_is_made_lighter_in_proportion() -> None:
    workload = MixedWorkload(short_rps=1.4, long_rps=0.08, duration_s=34)
    assert keeps_up(workload, 37.0)
    assert not keeps_up(workload, 49.0)
    less = lighter(workload, 49.0)
    assert less.short_rps == 0.68
    assert less.long_rps == 0.039
    assert replace(less, short_rps=1.4, long_rps=0.08) == workload


def test_runs_share_the_time_and_candidates_are_given_up_before_a_meaningful_p95_is() -> None:
    def seconds(left_s: float, around_s: float, short_rps: float, long_rps: float = 1.0) -> float:
        mix = MixedWorkload(short_rps=short_rps, long_rps=long_rps)
        return plan_runs(left_s, around_s, (8, 7, 6), mix)

    assert seconds(330, 10, short_rps=1.4) == 31
    assert seconds(330, 20, short_rps=2.0) == 21
    assert seconds(330, 20, short_rps=1.3) == 35
    assert seconds(330, 20, short_rps=0.1) == 35
    assert seconds(330, 20, short_rps=9.0, long_rps=0.15) == 35  # five documents, too, want their time
    assert seconds(330, 20, short_rps=9.0, long_rps=0.0) == 21
    assert seconds(30, 20, short_rps=1.0) == 12
    assert seconds(86_400, 20, short_rps=1.0) == MOST_DURATION_S


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
