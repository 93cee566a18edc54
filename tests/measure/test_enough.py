"""How long a run must be for its promises to be told, and that so long is enough."""

from dataclasses import replace

import numpy as np
import pytest

from headrace.core.measurement import Measurement
from headrace.core.objective import parse_objectives
from headrace.measure.enough import enough_s, shortages
from headrace.measure.intervals import FEWEST, fewest
from tests.measure.samples import measurement, timeline

SLO = parse_objectives("long: p95 ttft < 1s, p95 itl < 80ms; short: p50 ttft < 1s")


def run_of(long: int, short: int, lasts_s: float, warm_up_s: float = 0.0) -> Measurement:
    """Evenly spread after the warm-up."""
    results = [
        timeline(0.1, name, (0.01,), due_at=warm_up_s + (number + 1) * (lasts_s - warm_up_s) / count)
        for name, count in (("long", long), ("short", short))
        for number in range(count)
    ]
    return replace(measurement(*results, duration_s=lasts_s), warm_up_s=warm_up_s)


def test_what_is_short_is_told_with_what_it_has_and_needs() -> None:
    short = shortages(run_of(11, 99, 60), SLO)

    said = [(each.request_class, each.objective.metric.value, each.has, each.needs) for each in short]
    assert said == [("long", "ttft", 11, fewest(95)), ("long", "itl", 11, FEWEST)]
    assert shortages(run_of(72, 20, 60), SLO) == []


def test_a_run_that_has_enough_needs_no_longer_one() -> None:
    assert enough_s(run_of(72, 20, 60), SLO) is None
    assert enough_s(run_of(0, 99, 60), SLO) is None, "of a class that never came nobody knows its rate"
    assert enough_s(measurement(), SLO) is None


def test_where_eleven_come_in_a_minute_it_takes_eight() -> None:
    """72 of them and two standard errors: 89, in 486 s."""
    assert enough_s(run_of(11, 99, 60), SLO) == 490


@pytest.mark.parametrize("warm_up_s", [0.0, 6.0])
def test_of_poisson_arrivals_so_long_is_enough_in_nearly_all_cases(warm_up_s: float) -> None:
    lasts_s = enough_s(run_of(11, 99, 60, warm_up_s), SLO)
    assert lasts_s is not None
    rate = 11 / (60 - warm_up_s)
    counts = np.random.default_rng(1).poisson(rate * (lasts_s - lasts_s * warm_up_s / 60), 2_000)

    assert (counts >= fewest(95)).mean() > 0.95
