"""The picture around the answer says what the twin says, in order, with knees where gains end."""

from collections.abc import Sequence
from dataclasses import replace

from headrace.core.grade import Grade
from headrace.core.trial import NoResult, Purpose, Run
from headrace.tune.belief import View, view_of
from headrace.tune.curves import explain
from headrace.tune.twin import Point, Remembered, highest_rung, load_of
from tests.tune.model import CAPACITY, LATENCY, START, grade_of, graded, off_by, problem

TOKENS = "max_num_batched_tokens"


def view(is_capacity: bool = True) -> View:
    goal = CAPACITY if is_capacity else LATENCY
    grade = off_by(1.1, 1.0, goal)({}, 1.0)
    return view_of(problem(goal), [Run({}, 1.0, Purpose.BASELINE, grade)] * 2)


def test_every_lever_has_a_curve_through_the_winner_with_a_step_between_any_two_values() -> None:
    seen = view()
    winner = seen.beliefs[0].overrides
    found = explain(seen, winner, 2.0)
    assert [curve.lever for curve in found.curves] == [lever.name for lever in seen.problem.space.levers]
    for curve in found.curves:
        values = [point.value for point in curve.points]
        assert curve.winner in values
        assert len(curve.steps) == len(values) - 1
        assert curve.knee is None or curve.knee in values
    tokens = next(curve for curve in found.curves if curve.lever == TOKENS)
    assert "capacity" in tokens.steps[0]
    assert "P95 TTFT of short x " in tokens.steps[0]
    assert found.simulated > 0


def test_the_knee_is_the_least_value_within_two_per_cent_of_the_best() -> None:
    found = explain(view(), {}, 2.0)
    seqs = next(curve for curve in found.curves if curve.lever == "max_num_seqs")
    capacities = [point.capacity or 0.0 for point in seqs.points]
    assert seqs.knee is not None
    at = [point.value for point in seqs.points].index(seqs.knee)
    assert capacities[at] >= 0.98 * max(capacities)
    assert all(each < 0.98 * max(capacities) for each in capacities[:at])


def test_a_value_that_meets_at_no_load_is_no_knee_however_near_it_comes() -> None:
    def twin(point: Point) -> Grade:
        seqs = int(point.overrides.get("max_num_seqs", START["max_num_seqs"]))
        is_met = seqs > 32 and point.load <= 0.3
        return graded(0.2 if is_met else 0.404, 0.01, point.load, CAPACITY)

    start = twin(Point({}))
    seen = view_of(problem(twin=twin), [Run({}, 1.0, Purpose.BASELINE, start)] * 2)
    curves = {curve.lever: curve for curve in explain(seen, {}, 0.3).curves}
    assert curves["max_num_seqs"].knee == 48


def test_a_step_that_changes_nothing_says_so() -> None:
    seen = view_of(problem(twin=lambda point: graded(0.2, 0.01, point.load, CAPACITY)), [])
    steps = [step for curve in explain(seen, {}, 1.0).curves for step in curve.steps]
    assert steps
    assert all(step.endswith(": no change") for step in steps)


def test_a_lever_that_does_nothing_has_no_knee() -> None:
    found = explain(view(), {}, 2.0)
    context = [curve for curve in found.curves if curve.lever == "max_model_len"]
    assert all(curve.knee is None for curve in context)


def test_nothing_on_the_frontier_is_beaten_in_both() -> None:
    points = explain(view(), {}, 2.0).frontier
    assert points
    for one in points:
        assert not any(
            other.output_tokens_per_s >= one.output_tokens_per_s and other.ratio < one.ratio
            for other in points
        )


def test_the_obvious_moves_are_simulated_beside_the_start_and_the_answer() -> None:
    seen = view(is_capacity=False)
    found = explain(seen, seen.beliefs[0].overrides, 1.0)
    moves = found.obvious
    assert {
        "four times the tokens a step",
        "a quarter of the tokens a step, alone",
    } <= {move.name for move in moves}
    assert isinstance(found.start, Grade)
    assert isinstance(found.answer, Grade)
    assert found.answer.ratio < found.start.ratio
    for move in moves:
        assert isinstance(move.grade, Grade)
        assert move.unsafe == seen.problem.space.refuse(move.overrides)
    assert all("KV cache" not in move.name for move in moves), "the server has no such lever"


def test_capacities_are_what_a_climb_alone_finds_and_looked_for_side_by_side() -> None:
    batches: list[int] = []

    def predict(points: Sequence[Point]) -> list[Grade | NoResult]:
        batches.append(len(points))
        return [grade_of(point.overrides, point.load, point.pace) for point in points]

    asked = replace(problem(), twin=Remembered(predict))
    seen = view_of(asked, [])
    batches.clear()
    points = next(each for each in explain(seen, {}, 2.0).curves if each.lever == TOKENS).points
    for point in points:
        settings = asked.space.canonical({TOKENS: point.value})
        rung = highest_rung(lambda rung, own=settings: grade_of(own, load_of(rung)).meets)
        assert point.capacity == (None if rung is None else load_of(rung))
    assert sum(batches) > 200
    assert len(batches) < 30, "a climb after the other is nearly as many batches as simulations"
