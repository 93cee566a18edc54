"""The calibration of `bench.fidelity` on a machine whose truth is known."""

from dataclasses import replace

import numpy as np
import pytest

from bench.fidelity.__main__ import METRICS
from bench.fidelity.calibrate import calibrate
from bench.fidelity.reference import CALIBRATED_ON, Lives, load, predict, roofline
from headrace.capacity.roofline import Multipliers, Roofline


def test_the_stored_run_is_whole_and_its_clocks_agree() -> None:
    reference = load()
    assert len(reference.trace) == len(reference.observed.due_at) == 300
    due_at = np.array([traced.due_at for traced in reference.trace])
    assert np.abs(reference.observed.due_at - due_at).max() < 0.02
    assert (reference.observed.ttft_s > 0).all()
    assert [traced.output_tokens for traced in reference.trace] == reference.observed.output_tokens.tolist()


@pytest.mark.slow
def test_multipliers_that_made_a_run_are_found_from_its_times() -> None:
    reference = load()
    part = replace(reference, trace=reference.trace[:60])
    truth = Multipliers(compute=1.2, weights=1.3, context=0.85, overhead=1.1)
    observed = predict(part, roofline(part, truth))
    found = calibrate(observed, lambda multipliers: predict(part, roofline(part, multipliers)))
    again = predict(part, roofline(part, found.multipliers))
    assert found.residual.median < 0.02
    for _, _, value in METRICS.values():
        assert value(again) == pytest.approx(value(observed), rel=0.05)


@pytest.mark.slow
def test_the_reference_run_is_predicted_within_its_aim() -> None:
    """With the catalogue's own figures for the card: what a person gets who calibrates nothing."""
    reference = load()
    rest = slice(CALIBRATED_ON, None)
    observed: Lives = reference.observed.part(rest)
    predicted = predict(reference, Roofline(reference.deployment)).part(rest)
    for _, _, value in METRICS.values():
        assert value(predicted) == pytest.approx(value(observed), rel=0.10)
