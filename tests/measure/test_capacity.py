"""The search ends around the true edge of a server that is known, and says when there is none to find."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.measure.capacity import FOUND_WITHIN, MOST_PROBES, NEAR, Capacity, Found, Judge, Probe, find
from headrace.measure.goodput import Verdict


def server(edge: float, *, undecided: float = 1.0, limit: float = float("inf")) -> Judge:
    """Meets below its edge; within a factor of it, nothing can be told; the client ends at `limit`."""

    def judge(rate: float, number: int, longer: float) -> Probe:
        verdict = Verdict.MET if rate < edge else Verdict.MISSED
        if edge / undecided < rate < edge * undecided:
            verdict = Verdict.UNDECIDED
        return Probe(rate, verdict, rate < 2 * edge, "as made", is_valid=rate <= limit)

    return judge


def noisy_server(edge: float, noise: float, seed: int) -> Judge:
    """What a run measures is off by `noise`, in proportion; its interval of 95 % is as wide as that says."""
    chance = np.random.default_rng(seed)

    def judge(rate: float, number: int, longer: float) -> Probe:
        error = noise / longer**0.5
        seen = np.log(rate / edge) + chance.normal(0, error)
        verdict = Verdict.UNDECIDED
        if abs(seen) > 1.96 * error:
            verdict = Verdict.MET if seen < 0 else Verdict.MISSED
        return Probe(rate, verdict, True, "as it came")

    return judge


def told(judge: Judge, start: float = 1.0) -> tuple[Capacity, float, float]:
    """With both its ends."""
    found = find(judge, start)
    assert found.met is not None
    assert found.missed is not None
    return found, found.met, found.missed


def is_inside(found: Capacity, edge: float) -> bool:
    """An end that was not found lies anywhere."""
    return (found.met or 0.0) < edge <= (found.missed or float("inf"))


def runs_at(found: Capacity, rate: float) -> list[Verdict]:
    return [probe.verdict for probe in found.probes if probe.rate == rate]


@given(st.floats(0.05, 200))
def test_the_edge_lies_between_what_met_and_what_missed_and_they_are_near(edge: float) -> None:
    found, met, missed = told(server(edge))

    assert found.found is Found.FOUND
    assert met < edge <= missed
    assert missed / met <= NEAR


@given(st.floats(0.05, 200), st.floats(1.0, 1.6), st.floats(0.5, 2.0))
def test_found_is_said_only_of_two_ends_that_are_proven_and_near(
    edge: float, undecided: float, start: float
) -> None:
    found, met, missed = told(server(edge, undecided=undecided), start)

    assert met < edge <= missed
    if found.found is Found.FOUND:
        assert missed / met <= FOUND_WITHIN
        assert runs_at(found, met) == [Verdict.MET] * 2
        assert runs_at(found, missed) == [Verdict.MISSED] * 2
    else:
        assert found.found is Found.UNDECIDED
        assert missed / met > FOUND_WITHIN or len(found.probes) >= MOST_PROBES
        assert any(p.verdict is Verdict.UNDECIDED and met < p.rate < missed for p in found.probes)


@pytest.mark.parametrize("noise", [0.01, 0.05, 0.2])
def test_the_true_edge_is_inside_as_often_as_is_said(noise: float) -> None:
    """19 of 20 or more of all searches, however much a run errs; what is said to be found as well."""
    edges = np.exp(np.random.default_rng(1).uniform(-1, 3, 200)).tolist()
    searches = [find(noisy_server(edge, noise, seed), 1.0) for seed, edge in enumerate(edges)]
    inside = [is_inside(search, edge) for search, edge in zip(searches, edges, strict=True)]
    of_found = [each for search, each in zip(searches, inside, strict=True) if search.found is Found.FOUND]

    assert sum(inside) >= 0.95 * len(inside)
    assert sum(of_found) >= 0.95 * len(of_found)


@given(st.integers(0, 1_000))
def test_of_two_runs_at_one_rate_that_disagree_neither_is_believed(seed: int) -> None:
    found, met, missed = told(noisy_server(5.0, 0.05, seed))

    for rate in {probe.rate for probe in found.probes}:
        verdicts = set(runs_at(found, rate)) - {Verdict.UNDECIDED}
        if len(verdicts) > 1:
            assert met < rate < missed
        elif verdicts == {Verdict.MET}:
            assert rate < missed
        elif verdicts == {Verdict.MISSED}:
            assert rate > met


@pytest.mark.parametrize(
    ("judge", "ended"),
    [
        (server(1e-9), Found.NO_STEADY_STATE),
        (server(1e9), Found.NEVER_MISSED),
        (server(1e9, limit=50.0), Found.CLIENT_LIMIT),
        (server(1.0, undecided=1e9), Found.UNDECIDED),
    ],
)
def test_an_edge_out_of_reach_is_said_to_be_so(judge: Judge, ended: Found) -> None:
    assert find(judge, 1.0).found is ended


def test_too_slow_without_a_queue_is_not_called_overload() -> None:
    def slow(rate: float, number: int, longer: float) -> Probe:
        return Probe(rate, Verdict.MISSED, True, "slow")

    assert find(slow, 1.0).found is Found.NEVER_MET


def test_a_first_rate_that_cannot_be_told_is_no_end() -> None:
    """A search that began at the edge by chance once gave up at once."""
    found, met, missed = told(server(1.0, undecided=1.05))

    assert found.found is Found.FOUND
    assert met < 1.0 < missed


def test_where_nothing_can_be_told_few_runs_are_made() -> None:
    assert len(find(server(1.0, undecided=1e9), 1.0).probes) <= 12


@pytest.mark.parametrize("lucky", [Verdict.MET, Verdict.MISSED])
def test_an_end_that_came_by_luck_is_tried_again_and_not_reported(lucky: Verdict) -> None:
    judged = list[float]()

    def by_luck(rate: float, number: int, longer: float) -> Probe:
        is_first = rate not in judged
        judged.append(rate)
        verdict = Verdict.MET if rate < 4.2 else Verdict.MISSED
        return Probe(rate, lucky if is_first and 4 <= rate <= 4.4 else verdict, True, "")

    _, met, missed = told(by_luck)

    assert met < 4.2 <= missed


def test_a_client_that_is_disturbed_when_an_end_is_tried_again_has_proven_nothing() -> None:
    judged = list[float]()

    def disturbed(rate: float, number: int, longer: float) -> Probe:
        is_again = rate in judged
        judged.append(rate)
        verdict = Verdict.MET if rate < 4.2 else Verdict.MISSED
        return Probe(rate, verdict, True, "", is_valid=not is_again)

    assert find(disturbed, 1.0).found is Found.CLIENT_LIMIT


@given(st.floats(0.05, 200), st.floats(0.5, 2.0))
def test_no_search_is_over_before_the_runs_that_are_left_at_least(edge: float, start: float) -> None:
    told = list[int]()
    find(server(edge), start, told.append)
    left = list(range(len(told), 0, -1))  # each rate is one run here, as none is undecided

    assert all(at_least <= were for at_least, were in zip(told, left, strict=True))
    assert told[-1] == 1
    assert told[0] > 1
