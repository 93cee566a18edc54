"""Better, worse, the same or inconclusive: right as often as said, and blind to drift."""

import numpy as np

from headrace.core.measurement import Measurement
from headrace.measure.compare import Verdict, differences, order
from tests.measure.samples import measurement, timeline


def slice_of(ttft_s: float) -> Measurement:
    return measurement(*(timeline(ttft_s * (0.9 + 0.02 * n), gaps_s=(0.05,)) for n in range(11)))


def pairs(a_s: list[float], b_s: list[float]) -> list[tuple[Measurement, Measurement]]:
    return [(slice_of(a), slice_of(b)) for a, b in zip(a_s, b_s, strict=True)]


def verdict(a_s: list[float], b_s: list[float], figure: str = "TTFT P95") -> Verdict:
    return next(each.verdict for each in differences(pairs(a_s, b_s)) if each.figure == figure)


def test_a_clear_difference_is_told_with_its_size() -> None:
    found = next(
        d for d in differences(pairs([1.0, 1.02, 0.98], [0.5, 0.51, 0.49])) if d.figure == "TTFT P50"
    )

    assert found.verdict is Verdict.BETTER
    assert abs(found.ratio - 0.5) < 0.01
    assert found.between[0] < found.ratio < found.between[1] < 0.6
    assert verdict([0.5, 0.51, 0.49], [1.0, 1.02, 0.98]) is Verdict.WORSE


def test_noise_is_inconclusive_and_equality_is_the_same() -> None:
    assert verdict([1.0, 1.5, 0.8], [0.9, 1.6, 1.1]) is Verdict.INCONCLUSIVE
    assert verdict([1.0, 1.001, 0.999], [1.001, 1.0, 1.0]) is Verdict.SAME


def test_a_machine_that_gets_slower_in_both_does_not_hide_the_difference() -> None:
    drift = [1.0, 2.0, 4.0, 8.0]

    assert verdict(drift, [0.8 * each for each in drift]) is Verdict.BETTER


def test_of_two_alike_one_in_twenty_is_called_different_at_most() -> None:
    chance = np.random.default_rng(4)
    wrong = sum(
        verdict(*(np.exp(chance.normal(0, 0.3, 5)).tolist() for _ in "ab")) in (Verdict.BETTER, Verdict.WORSE)
        for _ in range(60)
    )

    assert wrong <= 8


def test_turns_are_swapped_and_one_pair_proves_nothing() -> None:
    assert list(order(3)) == [("a", "b"), ("b", "a"), ("a", "b")]
    assert differences(pairs([1.0], [0.5])) == []
