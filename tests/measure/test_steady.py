"""A queue that grows is no steady state, however short the run's percentiles look."""

from random import Random

from headrace.core.measurement import Measurement
from headrace.core.timeline import Timeline
from headrace.measure.steady import steadiness
from tests.measure.samples import measurement, timeline


def queue(load: float, count: int = 1_500) -> Measurement:
    """One server of one request a second, Poisson arrivals."""
    chance, due_at, free_at = Random(5), 0.0, 0.0
    timelines = list[Timeline]()
    for _ in range(count):
        due_at += chance.expovariate(load)
        free_at = max(free_at, due_at) + chance.expovariate(1.0)
        timelines.append(timeline(free_at - due_at, due_at=due_at))
    return measurement(*timelines)


def test_below_capacity_it_is_steady_and_above_it_is_not() -> None:
    assert steadiness(queue(0.7)).is_steady is True
    above = steadiness(queue(1.4))
    assert above.is_steady is False
    assert 0.15 < above.stayed < 0.45
    assert "waited for a first token" in above.why


def test_of_a_short_run_nothing_is_said() -> None:
    assert steadiness(queue(0.7, 20)).is_steady is None
    assert steadiness(measurement()).is_steady is None
