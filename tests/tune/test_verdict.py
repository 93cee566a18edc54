"""The rule that tells a gain from noise."""

import pytest

from headrace.tune.verdict import gain_of, is_beyond_noise


def test_one_run_of_each_says_nothing_about_noise() -> None:
    assert gain_of([3.0], [1.0]) is None
    assert gain_of([3.0, 3.0], []) is None
    assert gain_of([], [1.0, 1.0]) is None


def test_steady_runs_prove_what_scattered_ones_do_not() -> None:
    steady = gain_of([3.0, 3.1, 2.9], [1.5, 1.55])
    scattered = gain_of([3.0, 6.0, 1.5], [1.0, 2.25])
    assert steady is not None
    assert scattered is not None
    assert steady.ratio == pytest.approx(scattered.ratio, rel=0.03)
    assert is_beyond_noise(steady)
    assert not is_beyond_noise(scattered)


def test_the_bound_is_students() -> None:
    """By hand: shift ln 1/2, pooled deviation of (0, d, -d) and (0, 0) is d * sqrt(2/3), t(3) = 2.353."""
    gain = gain_of([2.0, 2.2, 2.0 / 1.1], [1.0, 1.0])
    assert gain is not None
    assert gain.ratio == pytest.approx(0.5)
    deviation = 0.0953102 * (2 / 3) ** 0.5
    assert gain.ratio_at_most == pytest.approx(0.5 * 2.718281828 ** (2.353 * deviation * (5 / 6) ** 0.5))
    assert (gain.baseline_runs, gain.contender_runs) == (3, 2)


def test_a_certain_gain_too_small_to_matter_does_not_count() -> None:
    gain = gain_of([1.0, 1.0, 1.0], [0.97, 0.97])
    assert gain is not None
    assert not is_beyond_noise(gain)


def test_many_runs_narrow_the_bound() -> None:
    few = gain_of([2.0, 2.4], [1.4, 1.8])
    many = gain_of([2.0, 2.4] * 10, [1.4, 1.8] * 10)
    assert few is not None
    assert many is not None
    assert many.ratio == pytest.approx(few.ratio)
    assert many.ratio_at_most < few.ratio_at_most
