"""The search ends near the true edge of a server that is known, and says when there is none to find."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.measure.capacity import NEAR, Found, Judge, Probe, find
from headrace.measure.goodput import Verdict


def server(edge: float, *, undecided: float = 1.0, limit: float = float("inf")) -> Judge:
    """Meets below its edge; within a factor of it, nothing can be told; the client ends at `limit`."""

    def judge(rate: float, number: int, longer: float) -> Probe:
        verdict = Verdict.MET if rate < edge else Verdict.MISSED
        if edge / undecided < rate < edge * undecided:
            verdict = Verdict.UNDECIDED
        return Probe(rate, verdict, rate < 2 * edge, "as made", is_valid=rate <= limit)

    return judge


@given(st.floats(0.05, 200))
def test_the_edge_lies_between_what_met_and_what_missed_and_they_are_near(edge: float) -> None:
    found = find(server(edge), 1.0)

    assert found.found is Found.FOUND
    assert found.met is not None
    assert found.missed is not None
    assert found.met < edge <= found.missed
    assert found.missed / found.met <= NEAR


def test_where_nothing_can_be_told_the_search_ends_with_what_it_knows() -> None:
    found = find(server(10.0, undecided=1.4), 1.0)

    assert found.found is Found.FOUND
    assert found.met is not None
    assert found.met <= 10 / 1.4
    assert sum(probe.verdict is Verdict.UNDECIDED for probe in found.probes) == 2  # the second one longer


@pytest.mark.parametrize(
    ("judge", "ended"),
    [
        (server(1e-9), Found.NO_STEADY_STATE),
        (server(1e9), Found.NEVER_MISSED),
        (server(1e9, limit=50.0), Found.CLIENT_LIMIT),
        (server(1.0, undecided=1.5), Found.UNDECIDED),
    ],
)
def test_an_edge_out_of_reach_is_said_to_be_so(judge: Judge, ended: Found) -> None:
    assert find(judge, 1.0).found is ended


def test_too_slow_without_a_queue_is_not_called_overload() -> None:
    def slow(rate: float, number: int, longer: float) -> Probe:
        return Probe(rate, Verdict.MISSED, True, "slow")

    assert find(slow, 1.0).found is Found.NEVER_MET


def test_a_rate_that_met_by_luck_is_not_reported() -> None:
    """Each rate is judged once more before it is called the capacity."""
    judged = list[float]()

    def lucky(rate: float, number: int, longer: float) -> Probe:
        is_first = rate not in judged
        judged.append(rate)
        met = rate < 4 or (is_first and rate < 4.5)
        return Probe(rate, Verdict.MET if met else Verdict.MISSED, True, "")

    found = find(lucky, 1.0)

    assert found.met is not None
    assert found.met < 4.5
    assert found.met <= 4 or found.found is not Found.FOUND
