"""The two indices tell a Poisson stream from one that only looks like one."""

import numpy as np
import pytest

from headrace.measure.arrivals import FEWEST, describe


def instants(gaps: np.ndarray) -> list[float]:
    return np.cumsum(gaps).tolist()


def test_poisson_arrivals_have_a_dispersion_of_1_and_gaps_that_know_nothing_of_each_other() -> None:
    found = describe(instants(np.random.default_rng(1).exponential(0.1, 4_000)))

    assert found.per_s == pytest.approx(10, rel=0.05)
    assert found.dispersion == pytest.approx(1, abs=0.1)
    assert found.lag_1 == pytest.approx(0, abs=0.05)


def test_gaps_that_are_used_ten_times_each_are_found_out_though_they_are_exponential() -> None:
    """What ten workers with one seed send: the fault of a well-known load generator."""
    found = describe(instants(np.repeat(np.random.default_rng(1).exponential(0.1, 400), 10)))

    assert found.cv == pytest.approx(1, abs=0.1)
    assert found.lag_1 is not None
    assert found.lag_1 > 0.8
    assert found.dispersion is not None
    assert found.dispersion > 2


def test_constant_arrivals_have_neither() -> None:
    found = describe([0.1 * number for number in range(1_000)])

    assert found.dispersion == pytest.approx(0, abs=0.1)
    assert found.lag_1 == 0


@pytest.mark.parametrize("count", [0, 1, FEWEST - 1])
def test_of_a_few_nothing_is_said(count: int) -> None:
    found = describe([float(number) for number in range(count)])

    assert (found.count, found.dispersion, found.lag_1) == (count, None, None)


def test_many_at_one_instant_have_no_rate() -> None:
    assert describe([1.0] * 100).per_s is None
