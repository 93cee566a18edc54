"""The ladder of loads, the twin's memory, and the pace that runs show."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.cost import Pace, PacedCost, StepShape
from headrace.core.grade import Grade
from headrace.core.ports import Overrides
from headrace.core.trial import NoResult, Purpose, Run
from headrace.tune.explore import explore
from headrace.tune.pace import paces
from headrace.tune.twin import (
    HIGHEST_RUNG,
    LOWEST_RUNG,
    Point,
    Remembered,
    highest_rung,
    load_of,
    rung_of,
)
from tests.tune.model import CAPACITY, LATENCY, grade_of, off_by, problem


@given(st.integers(LOWEST_RUNG - 1, HIGHEST_RUNG), st.integers(LOWEST_RUNG, HIGHEST_RUNG))
def test_the_edge_is_found_from_wherever_one_begins_and_nothing_is_asked_twice(edge: int, start: int) -> None:
    asked: list[int] = []

    def meets(rung: int) -> bool:
        asked.append(rung)
        return rung <= edge

    assert highest_rung(meets, start) == (edge if edge >= LOWEST_RUNG else None)
    assert len(asked) == len(set(asked)) <= 20


@given(st.integers(LOWEST_RUNG, HIGHEST_RUNG))
def test_a_load_is_on_its_own_rung(rung: int) -> None:
    assert rung_of(load_of(rung)) == rung
    assert rung_of(load_of(rung) * 1.02) == rung


def test_nothing_is_simulated_twice_whatever_the_order_of_the_settings() -> None:
    batches: list[int] = []

    def predict(points: object) -> list[NoResult]:
        assert isinstance(points, list)
        batches.append(len(points))
        return [NoResult("none")] * len(points)

    twin = Remembered(predict)
    one, other = Point({"a": 1, "b": 2}), Point({"b": 2, "a": 1})
    assert twin([one, other, Point({})]) == [NoResult("none")] * 3
    assert twin([other]) == [NoResult("none")]
    assert (batches, twin.simulated) == ([2], 2)


@pytest.mark.parametrize(("prefill", "decode"), [(1.2, 0.85), (0.8, 1.15), (1.0, 1.0)])
def test_a_few_runs_show_the_machines_pace(prefill: float, decode: float) -> None:
    truth = off_by(prefill, decode)
    settings: list[Overrides] = [{}, {"max_num_batched_tokens": 256}, {"max_num_batched_tokens": 8192}]
    runs = [Run(each, 1.0, Purpose.BASELINE, truth(each, 1.0)) for each in settings for _ in range(2)]
    found = paces(runs, problem().twin)
    assert found[0] == Pace()
    assert found[-1].prefill == pytest.approx(prefill, rel=0.06)
    assert found[-1].decode == pytest.approx(decode, rel=0.06)


def test_a_run_without_a_result_tells_nothing_of_the_pace() -> None:
    assert paces([Run({}, 1.0, Purpose.BASELINE, NoResult("crash"))], problem().twin) == [Pace(), Pace()]


def test_steps_with_prompts_and_without_have_a_pace_each() -> None:
    class Cost:
        def step_ns(self, shape: StepShape) -> int:
            return 100 + shape.tokens

    paced = PacedCost(Cost(), Pace(prefill=2.0, decode=0.5))
    assert paced.step_ns(StepShape(decode_seqs=20)) == 60
    assert paced.step_ns(StepShape(decode_seqs=20, prefill_seqs=1, prefill_tokens=80)) == 400


def test_exploring_is_deterministic_and_finds_what_a_grid_of_everything_finds() -> None:
    asked = problem(CAPACITY)
    ranking = explore(asked, Pace())
    best = ranking.best
    assert best is not None
    assert best.rung is not None
    assert explore(problem(CAPACITY), Pace()) == ranking
    names = [lever.name for lever in asked.space.levers]

    def reaches(rung: int) -> bool:
        return any(grade_of(each, load_of(rung)).meets for each in asked.space.grid(names[:3], 10**6))

    highest = highest_rung(reaches)
    assert highest is not None
    assert best.rung >= highest - 1
    assert asked.twin.simulated < 700


def test_exploring_a_latency_keeps_the_throughput() -> None:
    ranking = explore(problem(LATENCY), Pace())
    assert ranking.best is not None
    assert ranking.start is not None
    assert ranking.best.grade.ratio < ranking.start.grade.ratio
    assert ranking.best.grade.throughput_rps >= 0.95 * ranking.start.grade.throughput_rps


def test_settings_that_preempt_in_storms_are_not_proposed() -> None:
    def stormy(point: Point) -> Grade:
        found = grade_of(point.overrides, point.load, point.pace)
        return replace(found, preemptions=100) if int(point.overrides.get("max_num_seqs", 0)) > 128 else found

    ranking = explore(problem(CAPACITY, twin=stormy), Pace())
    assert all(int(each.overrides.get("max_num_seqs", 128)) <= 128 for each in ranking.candidates)
