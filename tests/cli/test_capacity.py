"""A search on a server whose true capacity is known: one place, served in order of arrival."""

import numpy as np
import pytest

from headrace.cli.capacity import probe_of
from headrace.core.measurement import Measurement
from headrace.core.objective import parse_objectives
from headrace.core.timeline import Timeline
from headrace.measure.capacity import Capacity, Found, Judge, Probe, find
from tests.measure.samples import measurement

SERVICE_S = 0.1
DURATION_S = 60.0
SLO = parse_objectives("p95 ttft < 500ms")
TRUE = 6.70
"""Requests a second at which P95 is 500 ms, from runs of 400,000 requests."""


def queue_run(rate: float, duration_s: float, chance: np.random.Generator) -> Measurement:
    """Poisson arrivals, service times from half of the mean to half as much again."""
    gaps = chance.exponential(1 / rate, round(rate * duration_s * 1.5) + 50)
    due = np.cumsum(gaps)
    due = due[due < duration_s]
    service = chance.uniform(0.5 * SERVICE_S, 1.5 * SERVICE_S, due.size)
    ahead = np.concatenate(([0.0], np.cumsum(service[:-1] - np.diff(due))))[: due.size]
    waited = ahead - np.minimum.accumulate(ahead)
    first = (due + waited + service).tolist()
    timelines = [
        Timeline(str(n), "chat", 40, at, at, (token_at,), "length")
        for n, (at, token_at) in enumerate(zip(due.tolist(), first, strict=True))
    ]
    return measurement(*timelines, duration_s=max(first, default=duration_s))


def queue(seed: int) -> Judge:
    def judge(rate: float, number: int, longer: float) -> Probe:
        run = queue_run(rate, DURATION_S * longer, np.random.default_rng([seed, number]))
        return probe_of(rate, run, SLO)

    return judge


@pytest.fixture(scope="module")
def searches() -> list[Capacity]:
    starts = np.random.default_rng(1).uniform(0.7, 1.4, 20).tolist()
    return [find(queue(seed), start) for seed, start in enumerate(starts)]


@pytest.mark.slow
def test_the_true_capacity_is_inside_or_next_to_it(searches: list[Capacity]) -> None:
    """Near the knee a run's own interval is too narrow: that is why both ends are tried twice."""
    outside = [not (found.met or 0.0) <= TRUE <= (found.missed or 1e9) for found in searches]

    assert sum(outside) <= 4
    assert all((found.met or 0.0) <= 1.1 * TRUE for found in searches)
    assert all((found.missed or 1e9) >= TRUE / 1.1 for found in searches)


@pytest.mark.slow
def test_nearly_every_search_finds_both_ends(searches: list[Capacity]) -> None:
    assert sum(found.met is not None and found.missed is not None for found in searches) >= 17
    assert {found.found for found in searches} <= {Found.FOUND, Found.UNDECIDED}
