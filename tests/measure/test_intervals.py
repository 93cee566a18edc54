"""Intervals hold what they promise: about 95 of 100 have the truth in them, dependent requests included."""

import numpy as np
import pytest

from headrace.measure.intervals import FEWEST, by_class, fewest, interval_of, interval_of_gaps
from tests.measure.samples import failure, measurement, timeline


def coverage(draw: str, rounds: int, count: int, percentile: float, truth: float) -> float:
    chance = np.random.default_rng(7)
    hits = 0
    for _ in range(rounds):
        values = chance.exponential(1.0, count)
        if draw == "runs":  # ten neighbours are alike, as those who wait in one queue are
            values = np.repeat(chance.exponential(1.0, count // 10), 10)
        found = interval_of(values.tolist(), [percentile])
        assert found is not None
        hits += found[0][0] <= truth <= found[0][1]
    return hits / rounds


@pytest.mark.slow
def test_the_median_of_independent_requests_is_inside_as_often_as_said() -> None:
    assert coverage("single", 200, 300, 50, float(np.log(2))) == pytest.approx(0.95, abs=0.05)


@pytest.mark.slow
def test_requests_that_are_slow_together_widen_the_interval() -> None:
    """Drawing them one by one would leave the truth out of half of the intervals."""
    assert coverage("runs", 200, 1_000, 50, float(np.log(2))) > 0.8


def test_the_gaps_of_one_request_are_no_news_of_each_other() -> None:
    """A hundred gaps of each of 30 requests say little more than 30 gaps do."""
    chance = np.random.default_rng(2)
    speeds = chance.exponential(0.1, 30)
    many = [timeline(0.1, gaps_s=(float(speed),) * 100) for speed in speeds]

    (found,) = interval_of_gaps(many, [50]) or ((0.0, 0.0),)

    assert found[1] - found[0] > 0.03


def test_of_a_few_there_is_no_interval() -> None:
    assert interval_of([1.0] * (FEWEST - 1), [95]) is None
    assert by_class(measurement(timeline(0.1), failure())) == {}


def test_the_same_run_has_the_same_intervals() -> None:
    values = np.random.default_rng(1).exponential(1.0, 100).tolist()

    assert interval_of(values, [50, 95]) == interval_of(values, [50, 95])


def test_a_percentile_needs_so_many_requests_that_the_slowest_is_surely_beyond_it() -> None:
    assert (fewest(50), fewest(95), fewest(99)) == (20, 72, 368)
    some = by_class(measurement(*(timeline(0.1 + n, gaps_s=(0.1,)) for n in range(72))))["short"]
    assert set(some["ttft_s"]) == {"p50", "p95"}
