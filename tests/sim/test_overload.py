"""Overload is told from fluctuation: queues below, at and above capacity, ramps, bursts, short runs."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.timeline import Timeline
from headrace.sim.overload import Load, Verdict, judge_load


def answered(due: Sequence[float], first: Sequence[float], decoding_s: float = 0.0) -> list[Timeline]:
    return [
        Timeline(str(number), "request", 1, at, at, (begun, begun + decoding_s), "length")
        for number, (at, begun) in enumerate(zip(due, first, strict=True))
    ]


def one_server(due: Sequence[float], services_s: Sequence[float]) -> list[float]:
    """When each is done, first come first served."""
    free, done = 0.0, list[float]()
    for at, service_s in zip(due, services_s, strict=True):
        free = max(free, at) + service_s
        done.append(free)
    return done


Services = Callable[[np.random.Generator, int], Sequence[float]]


def exponential(chance: np.random.Generator, count: int) -> Sequence[float]:
    return chance.exponential(1, count).tolist()


def constant(chance: np.random.Generator, count: int) -> Sequence[float]:
    return [1.0] * count


def heavy(chance: np.random.Generator, count: int) -> Sequence[float]:
    return chance.lognormal(-(1.5**2) / 2, 1.5, count).tolist()


def queue_at(load: float, count: int, services: Services, seed: int) -> Load:
    chance = np.random.default_rng(seed)
    due = np.cumsum(chance.exponential(1 / load, count)).tolist()
    return judge_load(answered(due, one_server(due, services(chance, count))))


def share_called(verdict: Verdict, load: float, count: int, services: Services) -> float:
    runs = 100
    return sum(queue_at(load, count, services, seed).verdict is verdict for seed in range(runs)) / runs


@pytest.mark.slow
@pytest.mark.parametrize("services", [exponential, constant, heavy])
@pytest.mark.parametrize("count", [200, 2000])
@pytest.mark.parametrize("load", [0.3, 0.8, 0.95])
def test_below_capacity_hardly_any_run_is_called_overloaded(
    load: float, count: int, services: Services
) -> None:
    assert share_called(Verdict.OVERLOADED, load, count, services) <= 0.06


@pytest.mark.slow
@pytest.mark.parametrize("services", [exponential, constant, heavy])
@pytest.mark.parametrize(("load", "count"), [(1.5, 2000), (3.0, 300)])
def test_well_above_capacity_nearly_every_run_is(load: float, count: int, services: Services) -> None:
    assert share_called(Verdict.OVERLOADED, load, count, services) >= 0.9
    assert share_called(Verdict.KEPT_UP, load, count, services) <= 0.02


@pytest.mark.slow
def test_at_capacity_a_run_is_called_overloaded_about_as_often_as_chance_has_it() -> None:
    assert share_called(Verdict.OVERLOADED, 1.0, 1000, exponential) <= 0.15


def test_the_growth_is_the_share_that_the_server_cannot_carry() -> None:
    load = queue_at(2.0, 4000, constant, seed=0)
    assert load.verdict is Verdict.OVERLOADED
    assert load.queue_growth == pytest.approx(0.5, abs=0.05)
    assert load.begun_per_s == pytest.approx(1.0, rel=0.02)
    assert "stayed in the queue" in load.why


@given(st.floats(1.2, 5), st.integers(100, 400))
def test_evenly_spaced_requests_above_capacity_always_overload(load: float, count: int) -> None:
    due = [number / load for number in range(count)]
    assert judge_load(answered(due, one_server(due, [1.0] * count))).verdict is Verdict.OVERLOADED


@given(st.floats(0.05, 0.99), st.integers(100, 400), st.floats(0, 3))
def test_evenly_spaced_requests_below_capacity_never_do(load: float, count: int, decoding_s: float) -> None:
    due = [number / load for number in range(count)]
    assert judge_load(answered(due, one_server(due, [1.0] * count), decoding_s)).verdict is Verdict.KEPT_UP


def test_a_ramp_that_stays_below_capacity_is_no_overload() -> None:
    due = np.cumsum(1 / np.linspace(0.2, 0.85, 600)).tolist()
    assert judge_load(answered(due, one_server(due, [1.0] * 600), 30)).verdict is Verdict.KEPT_UP


def test_a_ramp_beyond_capacity_is_overload_at_its_end() -> None:
    due = np.cumsum(1 / np.linspace(0.5, 2.0, 600)).tolist()
    assert judge_load(answered(due, one_server(due, [1.0] * 600))).verdict is Verdict.OVERLOADED


@pytest.mark.parametrize("burst_at", [0.1, 0.4, 0.6, 0.8, 0.95])
def test_a_burst_is_not_a_trend(burst_at: float) -> None:
    even = [number * 2.0 for number in range(500)]
    due = sorted(even + [1000 * burst_at] * 40)
    assert judge_load(answered(due, one_server(due, [1.0] * len(due)))).verdict is not Verdict.OVERLOADED


def test_answers_that_outlast_a_short_run_leave_it_unsettled() -> None:
    due = [float(number) for number in range(200)]
    load = judge_load(answered(due, [at + 0.5 for at in due], decoding_s=1000))
    assert load.verdict is Verdict.UNSETTLED
    assert "filling up" in load.why


@pytest.mark.parametrize("due", [[], [1.0], [0.0] * 500, [float(number) for number in range(30)]])
def test_too_few_requests_and_all_at_once_are_unsettled(due: list[float]) -> None:
    load = judge_load(answered(due, one_server(due, [1.0] * len(due))))
    assert load.verdict is Verdict.UNSETTLED


def test_a_queue_that_came_before_and_stood_is_no_server_that_kept_up() -> None:
    """Twice the load for half the time, then just what it can do: 62 s of queue were called "kept up"."""
    due = [*(0.5 * n for n in range(200)), *(100.0 + n for n in range(300))]
    stood = judge_load(answered(due, one_server(due, [1.0] * len(due))))
    assert stood.verdict is Verdict.UNSETTLED
    assert "behind a queue from before" in stood.why
    calm = [float(n) for n in range(500)]
    assert judge_load(answered(calm, one_server(calm, [1.0] * 500))).verdict is Verdict.KEPT_UP
