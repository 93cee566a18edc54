"""Loads of our own making: lengths, openings, the process."""

from itertools import islice

import pytest

from headrace.core.errors import BadInput
from headrace.measure.arrivals import describe
from headrace.measure.synthetic import Lengths, asks, due_times
from headrace.workload.arrivals import Regularity

LENGTHS = Lengths((10, 20), (2, 4))


def test_prompts_have_their_lengths_and_no_two_open_alike() -> None:
    sent = list(islice(asks(LENGTHS, 7), 2_000))

    assert {len(ask.prompt.split()) for ask in sent} == set(range(10, 21))
    assert {ask.max_tokens for ask in sent} == {2, 3, 4}
    assert len({tuple(ask.prompt.split()[:3]) for ask in sent}) == len(sent)
    assert sent == list(islice(asks(LENGTHS, 7), 2_000))
    assert not {a.prompt for a in sent} & {a.prompt for a in islice(asks(LENGTHS, 8), 2_000)}


@pytest.mark.parametrize(
    ("regularity", "burstiness", "dispersion", "within"),
    [
        (Regularity.POISSON, 1.0, 1.0, 0.1),
        (Regularity.CONSTANT, 1.0, 0.0, 0.1),
        (Regularity.GAMMA, 0.25, 3.4, 0.6),
        (Regularity.GAMMA, 1.0, 1.0, 0.1),
    ],
)
def test_the_arrivals_are_the_process_that_was_asked_for(
    regularity: Regularity, burstiness: float, dispersion: float, within: float
) -> None:
    found = describe(list(islice(due_times(20.0, regularity, burstiness, 11), 8_000)))

    assert found.per_s == pytest.approx(20, rel=0.05)
    assert found.dispersion == pytest.approx(dispersion, abs=within)
    assert found.lag_1 == pytest.approx(0, abs=0.05)


def test_wrong_lengths_are_refused() -> None:
    with pytest.raises(BadInput, match="smaller first"):
        Lengths((20, 10), (1, 1))
