"""The benchmark of tuning counts every run alike, and its truth is the best of all settings."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import log
from pathlib import Path

import pytest

from bench.tune.__main__ import keep, print_row, print_totals, read_rows, to_json
from bench.tune.cases import Case, powers_of_two
from bench.tune.kept import Kept, kept
from bench.tune.ours import tune
from bench.tune.rivals import Climb, Rival, by_hand, full_grid, play, random_search
from bench.tune.rows import SLACK, Rivalled, Row, trials_until, value_after
from bench.tune.truth import Server, Spent, Truth, load_at, slowed
from bench.tune.twins import Twin, miscalibrated
from headrace.cli.costs import load_cost
from headrace.core.cost import Pace, Residual, StepShape
from headrace.core.goal import Aim, Goal
from headrace.core.grade import Attained, Grade
from headrace.core.objective import parse_objectives
from headrace.core.ports import Overrides
from headrace.core.trial import NoResult
from headrace.executor.cost import FittedCost
from headrace.tune.space import Site, demand_of, space_of
from headrace.tune.twin import Point, Remembered, load_of
from headrace.workload.trace import TraceRequest

START: Overrides = {
    "max_num_batched_tokens": 2048,
    "max_num_seqs": 32,
    "long_prefill_token_threshold": 0,
    "max_model_len": 4096,
}
REQUESTS = tuple(
    TraceRequest(0.05 * at, 1500 if at % 10 == 0 else 60, 8, "long" if at % 10 == 0 else "short")
    for at in range(60)
)


def truth(aim: Aim = Aim.CAPACITY) -> Truth:
    space = space_of(Site(START), demand_of((each.prompt_tokens, each.output_tokens) for each in REQUESTS))
    few = powers_of_two(space)
    levers = tuple(replace(lever, choices=tuple(lever.near(lever.start, 2))) for lever in few.levers)
    goal = Goal(aim, parse_objectives("short: p95 ttft < 60ms; long: p95 ttft < 1s"))
    return Truth.of(Case("tiny", REQUESTS, load_cost("llama-3.1-8b/h100"), replace(few, levers=levers), goal))


def test_what_a_twin_said_is_read_and_not_simulated_again(tmp_path: Path) -> None:
    twin = truth().twin.predict
    assert isinstance(twin, Twin)
    first = kept(twin, tmp_path / "said.db")
    assert isinstance(first, Kept)
    points = [Point({}), Point({"max_num_batched_tokens": 16}), Point({}, 1.05, Pace(1.1, 0.9))]
    said = first(points)
    assert isinstance(said[1], NoResult)
    assert Kept(replace(twin, requests=()), first.path, first.name)(points) == said == twin(points)


def test_another_twin_is_not_given_what_this_one_said(tmp_path: Path) -> None:
    twin = truth().twin.predict
    assert isinstance(twin, Twin)
    others = (
        replace(twin, cost=miscalibrated(twin.cost, (1.1,))),
        replace(twin, goal=replace(twin.goal, aim=Aim.LATENCY)),
        replace(twin, requests=twin.requests[:-1]),
    )
    found = [kept(each, tmp_path / "said.db") for each in (twin, *others)]
    names = {each.name for each in found if isinstance(each, Kept)}
    assert len(names) == len(found)


@pytest.mark.slow
def test_no_setting_is_better_than_the_best() -> None:
    here = truth()
    best, value = here.best()
    assert here.value(best) == value
    for overrides in here.grid():
        assert here.value(overrides) <= value


def jagged(ratios: Callable[[Overrides, float], float]) -> Truth:
    """A server of which only its worst ratio to a limit is known, as a function of settings and load."""
    case = truth().case
    objective = case.goal.objectives[0]

    def predict(points: Sequence[Point]) -> list[Grade]:
        found = (objective.limit_s * ratios(each.overrides, each.load) for each in points)
        return [
            Grade((Attained(objective, "short", value_s),), (), 100, 0, 1.0, 1.0, True) for value_s in found
        ]

    return Truth(case, Remembered(predict))


def test_a_capacity_ends_at_the_first_load_that_is_missed() -> None:
    """It was whichever edge bisection came upon, 4 % beyond a load that is missed."""
    here = jagged(lambda _, load: 1.02 if 1.2 < load < 1.22 else load / 1.27)
    assert 1.18 < here.value({}) <= 1.2
    assert not here.meets({}, load_at(1 + round(log(here.value({})) / log(load_at(1)))))


def test_no_setting_is_passed_over_for_one_load_that_is_missed_below_its_capacity() -> None:
    """One simulation decided whether a setting was looked at, and what it was worth came from others."""
    better: Overrides = {"max_num_seqs": 16}

    def ratios(overrides: Overrides, load: float) -> float:
        edge = 1.4 if overrides == better else 1.2
        return 1.02 if overrides == better and 1.2 < load < 1.22 else load / edge

    here = jagged(ratios)
    best, value = here.best()
    assert all(here.value(each) <= value for each in here.grid())
    assert here.value(best) == value


def test_a_ratio_that_stays_near_its_limit_at_any_load_is_met_and_soon_told() -> None:
    here = jagged(lambda _, load: 0.95 if load < 2.0 else 1.5)
    assert here.value({}) == pytest.approx(2.0, rel=0.011)
    assert here.twin.simulated < 60


@pytest.mark.slow
def test_a_latency_is_worth_nothing_without_its_throughput() -> None:
    here = truth(Aim.LATENCY)
    best, value = here.best()
    assert value == here.value(best) >= here.value({}) > 0


def test_every_run_is_counted_and_no_more_are_made_than_allowed() -> None:
    server = Server(truth(), seed=1, most=3)
    for _ in range(3):
        assert isinstance(server.run({}, 1.0), Grade)
    with pytest.raises(Spent):
        server.run({}, 1.0)
    assert server.runs == 3


def test_runs_differ_by_chance_and_the_chance_is_seeded() -> None:
    here = truth()
    first, again = Server(here, seed=1), Server(here, seed=1)
    ratios = [first.run({}, 1.0), first.run({}, 1.0)]
    assert [again.run({}, 1.0), again.run({}, 1.0)] == ratios
    assert ratios[0] != ratios[1]


def test_a_slowed_run_has_every_latency_longer() -> None:
    (grade,) = truth().twin([Point({})])
    assert isinstance(grade, Grade)
    twice = slowed(grade, 2.0)
    assert twice.ratio == pytest.approx(2 * grade.ratio)
    assert twice.classes[0].ttft_p50_s == pytest.approx(2 * (grade.classes[0].ttft_p50_s or 0))


@pytest.mark.slow
@pytest.mark.parametrize("rival", [full_grid, by_hand, random_search])
def test_a_rival_keeps_to_its_runs_and_its_history_only_improves(rival: Rival) -> None:
    here = truth()
    server = Server(here, seed=2, most=25)
    climb = play(rival, server, seed=0)
    assert server.runs <= 25
    runs = [made for made, _ in climb.history]
    assert runs == sorted(runs)
    assert value_after(here, climb, 25) >= 0.8 * here.value({})
    assert trials_until(here, climb, 0.0) == runs[0]


def test_a_climb_tries_the_next_setting_where_it_would_be_better() -> None:
    here = truth()
    climb = Climb(Server(here, seed=3))
    climb.begin()
    before, runs = climb.height, climb.server.runs
    told = climb.try_one({"max_num_seqs": 4})
    assert climb.server.runs > runs
    assert (told > before) == (climb.best == {"max_num_seqs": 4})
    assert here.meets(climb.best, load_of(int(climb.height) - 3))


@pytest.mark.slow
def test_our_search_tells_what_it_proved_in_counted_runs() -> None:
    here = truth()
    found = tune(here, (1.15, 0.88, 1.2, 0.85), seed=1, most_runs=12)
    assert 2 <= len(found.runs) <= 12
    assert here.value(found.chosen) >= here.value({})


def test_a_wrong_twin_is_wrong_in_every_part() -> None:
    cost = load_cost("llama-3.1-8b/h100")
    wrong = miscalibrated(cost, (1.2, 1.2, 1.2, 1.2))
    prompt = StepShape(prefill_seqs=1, prefill_tokens=2048, prefill_attention_pairs=2**21, sampled_seqs=1)
    assert wrong.step_ns(prompt) == pytest.approx(1.2 * cost.step_ns(prompt), rel=0.02)
    fitted = FittedCost({"step": 1e6, "prefill_tokens": 1e3}, Residual(10, 0.0, 0.0), {})
    assert miscalibrated(fitted, (0.5, 2.0)) == replace(fitted, ns={"prefill_tokens": 5e2, "step": 2e6})


def test_settings_that_cannot_start_are_a_result() -> None:
    (found,) = truth().twin([Point({"max_num_batched_tokens": 16})])
    assert isinstance(found, NoResult)
    assert "max_num_batched_tokens" in found.cause


def test_a_rival_that_gave_up_is_not_said_to_never_get_there(capsys: pytest.CaptureFixture[str]) -> None:
    rivals = {name: Rivalled(0.7, None, 0.9, 60) for name in ("full grid", "by hand", "random", "tpe")}
    row = Row("a", {}, 2.0, 0.5, {}, "improved", 0.97, 8, 300, 200, rivals)
    print_row(row)
    print_totals([row])
    said = capsys.readouterr().out
    assert "random      70.0% in   8 trials; not within 60 trials; 90.0% after 60" in said
    assert "never" not in said


def test_a_rival_that_holds_our_setting_gets_there_even_if_half_a_percent_less_load_is_missed() -> None:
    """It was asked at 0.995 times our load, and that very load was missed."""
    here = jagged(lambda _, load: load / 1.5 if round(load, 3) != round(0.995 * load_at(41), 3) else 1.02)
    ours = here.value({})
    assert ours == load_at(41) < 1.5
    assert not here.meets({}, 0.995 * ours)
    assert trials_until(here, Climb(Server(here, seed=1), history=[(3, {})]), SLACK * ours) == 3


def test_a_setting_is_worth_what_its_value_says() -> None:
    here = jagged(lambda _, load: 1.02 if 1.2 < load < 1.22 else load / 1.27)
    worths = [here.is_worth({}, load_at(step)) for step in range(30)]
    assert worths == [load_at(step) <= here.value({}) for step in range(30)]
    assert here.is_worth({}, 0.0)


def test_rows_are_kept_and_summed_up(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rivals = {
        name: Rivalled(0.7, None if name == "tpe" else 40.0, 0.9, 60)
        for name in ("full grid", "by hand", "random", "tpe")
    }
    row = Row("a", {}, 2.0, 0.5, {"max_num_seqs": 4}, "improved", 0.97, 8, 300, 200, rivals)
    keep(row, path)
    assert read_rows(path) == {"a": row}
    said = to_json([row])
    assert json.loads(json.dumps(said)) == said
    assert (said["share_of_best_min"], said["trials_max"]) == (0.97, 8)
