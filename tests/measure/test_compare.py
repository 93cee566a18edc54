"""Better, worse, the same or inconclusive: right as often as said, and blind to drift."""

import numpy as np
import pytest

from headrace.core.measurement import Measurement
from headrace.measure.compare import (
    FEWEST_PAIRS,
    WRONG,
    Difference,
    Verdict,
    differences,
    left_out,
    order,
    p_value,
    pairs_to_decide,
)
from tests.measure.samples import failure, measurement, timeline


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
    assert found.between is not None
    assert abs(found.ratio - 0.5) < 0.01
    assert found.between[0] < found.ratio < found.between[1] < 0.6
    assert verdict([0.5, 0.51, 0.49], [1.0, 1.02, 0.98]) is Verdict.WORSE


def test_noise_is_inconclusive_and_equality_is_the_same() -> None:
    assert verdict([1.0, 1.5, 0.8], [0.9, 1.6, 1.1]) is Verdict.INCONCLUSIVE
    assert verdict([1.0, 1.001, 0.999], [1.001, 1.0, 1.0]) is Verdict.SAME


def test_a_machine_that_gets_slower_in_both_does_not_hide_the_difference() -> None:
    drift = [1.0, 2.0, 4.0, 8.0]

    assert verdict(drift, [0.8 * each for each in drift]) is Verdict.BETTER


def figures(chance: np.random.Generator, slices: int, noise: float, times: float) -> list[Difference]:
    """Of two servers whose latencies scatter from slice to slice; B takes `times` as long."""
    a, b = np.exp(chance.normal(0, noise, (2, 2, slices)))
    return differences(
        [(noisy_slice(*at_a), noisy_slice(*(times * at_b))) for at_a, at_b in zip(a.T, b.T, strict=True)]
    )


def noisy_slice(first: float, gap: float) -> Measurement:
    """Of two classes, so that there are two dozen figures."""
    return measurement(
        *(
            timeline(each * first * (0.9 + 0.02 * n), name, gaps_s=(0.05 * gap * (0.9 + 0.02 * n),))
            for each, name in ((1.0, "short"), (3.0, "long"))
            for n in range(11)
        )
    )


def is_said(found: list[Difference], *verdicts: Verdict) -> bool:
    return any(each.verdict in verdicts for each in found)


@pytest.mark.slow
@pytest.mark.parametrize(("slices", "noise"), [(3, 0.05), (5, 0.05)])
def test_of_two_alike_any_figure_is_called_different_in_one_of_twenty_at_most(
    slices: int, noise: float
) -> None:
    """By each figure's own interval it is a tenth of these comparisons."""
    chance = np.random.default_rng(4)
    found = [figures(chance, slices, noise, 1.0) for _ in range(200)]

    assert sum(is_said(each, Verdict.BETTER, Verdict.WORSE) for each in found) <= 200 * WRONG + 6
    assert sum(each.is_alone for one in found for each in one) > 0


@pytest.mark.slow
def test_a_tenth_is_found_where_slices_scatter_by_less() -> None:
    chance = np.random.default_rng(5)
    found = [figures(chance, 5, 0.02, 1.1) for _ in range(50)]
    blurred = [figures(chance, 5, 0.2, 1.1) for _ in range(50)]

    assert sum(is_said(each, Verdict.WORSE) for each in found) >= 40  # it is 44
    assert sum(is_said(each, Verdict.BETTER) for each in found) <= 1
    assert sum(is_said(each, Verdict.WORSE, Verdict.BETTER) for each in blurred) <= 15  # else inconclusive


@pytest.mark.parametrize(("freedom", "t"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (14, 2.145)])
def test_students_t_is_that_of_the_tables(freedom: int, t: float) -> None:
    assert p_value(t, freedom) == pytest.approx(0.05, abs=1e-4)
    assert p_value(-t, freedom) == p_value(t, freedom)
    assert p_value(0.0, freedom) == pytest.approx(1.0)


def test_turns_are_swapped_and_one_pair_proves_nothing() -> None:
    assert list(order(3)) == [("a", "b"), ("b", "a"), ("a", "b")]
    assert differences(pairs([1.0], [0.5])) == []


def test_two_pairs_give_ratios_and_no_interval_however_alike_they_are() -> None:
    """By Student's t of one degree of freedom intervals reached from 0.00 to 92609043."""
    found = differences(pairs([1.0, 1.0], [2.0, 2.0001]))
    three = differences(pairs([1.0, 1.0, 1.0], [2.0, 2.0001, 2.0]))

    assert {each.between for each in found} == {None}
    assert {each.verdict for each in found} == {Verdict.INCONCLUSIVE}
    assert abs(found[0].ratio - 2) < 0.01
    assert not any(each.is_alone for each in found)
    assert all(each.between is not None for each in three)
    assert FEWEST_PAIRS == 3


def test_so_many_pairs_as_are_told_decide_where_they_scatter_as_before() -> None:
    a, b = [1.0, 1.0, 1.0], [1.2, 1.05, 1.3]
    found = next(each for each in differences(pairs(a, b)) if each.figure == "TTFT P95")
    assert found.verdict is Verdict.INCONCLUSIVE

    count = pairs_to_decide(found, 8)

    assert count is not None
    assert count > 3
    # Pairs whose logarithms have the same mean and deviation.
    logs = np.log(found.ratios)
    fewer, enough = ([*np.resize([-1.0, 1.0], n)] for n in (count - 2, count))
    for signs, is_decided in ((fewer, False), (enough, True)):
        scaled = np.array(signs) - np.mean(signs)
        shifts = logs.mean() + scaled * logs.std(ddof=1) / scaled.std(ddof=1)
        p = p_value(shifts.mean() / (shifts.std(ddof=1) / len(shifts) ** 0.5), len(shifts) - 1)
        assert (p <= WRONG / 8) is is_decided


def test_what_is_decided_or_no_different_needs_no_pairs() -> None:
    for b in ([2.0, 2.01, 2.0], [1.0, 1.001, 1.0], [1.3, 0.72, 1.06]):
        assert all(
            pairs_to_decide(each, 1) is None
            for each in differences(pairs([1.0, 1.0, 1.0], b))
            if each.verdict is not Verdict.INCONCLUSIVE or abs(each.ratio - 1) < 0.02
        )


def test_a_class_that_one_of_them_never_answered_is_told_and_not_dropped() -> None:
    a = measurement(*(timeline(0.1 + n / 100, name) for n in range(9) for name in ("short", "long")))
    b = measurement(*(timeline(0.1 + n / 100) for n in range(9)), failure(request_class="long"))

    found = left_out([(a, a), (a, b), (a, b)])

    assert [(each.request_class, each.side, each.pair, each.requests) for each in found] == [
        ("long", "B", 2, 1)
    ]
    assert "long" not in {each.request_class for each in differences([(a, a), (a, b), (a, b)])}
