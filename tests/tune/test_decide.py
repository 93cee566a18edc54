"""The search finds what is there, claims nothing that is not, and goes on where it was stopped."""

from dataclasses import replace
from math import ceil
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.conclusion import Bracket, Conclusion
from headrace.core.cost import Pace
from headrace.core.goal import Aim, Goal
from headrace.core.grade import Grade
from headrace.core.objective import parse_objectives
from headrace.core.ports import Overrides
from headrace.core.trial import NoResult, Purpose, Run, Verdict, Wanted
from headrace.tune.belief import view_of
from headrace.tune.decide import Room, next_trial
from headrace.tune.drive import Budget, drive
from headrace.tune.evidence import bracket_of
from headrace.tune.problem import Extra, Problem
from headrace.tune.twin import Point, highest_rung, load_of, rung_of
from tests.tune.model import CAPACITY, LATENCY, Server, grade_of, graded, off_by, problem


class Silent:
    def starting(self, wanted: object, number: int) -> None: ...

    def ended(self, run: object, number: int) -> None: ...


def tune(server: Server, asked: Problem, most: int | None = 30) -> Conclusion:
    return drive(asked, server.judge, Budget(max_trials=most), lambda: 0.0, Silent())


def capacity(server: Server, overrides: Overrides) -> float:
    def meets(rung: int) -> bool:
        found = server.truth(overrides, load_of(rung))
        return isinstance(found, Grade) and found.meets

    rung = highest_rung(meets)
    return 0.0 if rung is None else load_of(rung)


def best_capacity(server: Server, asked: Problem) -> float:
    grid = asked.space.grid(("max_num_batched_tokens", "long_prefill_token_threshold", "max_num_seqs"), 4000)
    return max(capacity(server, each) for each in grid)


@pytest.mark.parametrize(("prefill", "decode"), [(1.0, 1.0), (1.2, 0.85), (0.85, 1.2)])
def test_the_capacity_found_is_near_the_best_though_the_twin_is_off_by_a_fifth(
    prefill: float, decode: float
) -> None:
    server, asked = Server(off_by(prefill, decode)), problem()
    found = tune(server, asked)
    assert found.verdict is Verdict.IMPROVED
    assert capacity(server, found.recommended) >= 0.9 * best_capacity(server, asked)
    assert capacity(server, found.recommended) > 1.05 * capacity(server, {})
    assert len(server.runs) <= 12


def test_the_capacity_claimed_is_one_that_runs_have_shown() -> None:
    server = Server(off_by(1.1, 1.0))
    found = tune(server, problem())
    assert found.contender is not None
    assert found.contender_bracket == bracket_of(server.runs, found.contender)
    assert found.contender_bracket.met == found.load
    assert found.baseline_bracket.missed is not None
    assert found.baseline_bracket.missed <= found.load
    assert found.baseline_believed is not None
    assert (found.baseline_bracket.met or 0) <= found.baseline_believed < found.baseline_bracket.missed


def test_a_load_is_met_where_most_runs_or_their_mean_meet_it() -> None:
    choice: Overrides = {"max_num_seqs": 256}

    def bracket(*ttft_s: float) -> Bracket:
        grades = [graded(each, 0.01, 2.0, CAPACITY) for each in ttft_s]
        return bracket_of([Run(choice, 2.0, Purpose.PROOF, grade) for grade in grades], choice)

    assert bracket(0.38, 0.405).met == 2.0
    assert bracket(0.395, 0.42).missed == 2.0
    assert bracket(0.38, 0.405, 0.408).met == 2.0
    assert bracket(0.38, 0.38, 0.6).met == 2.0
    assert bracket(0.38, 0.405, 0.43).missed == 2.0


def test_a_contender_whose_repeats_miss_a_limit_has_not_proven_its_load() -> None:
    """Its first run is left out: it was picked for being good."""
    best: Overrides = {"max_num_seqs": 192}

    def twin(point: Point) -> Grade:
        highest, ttft_s = (2.5, 0.36) if point.overrides == best else (1.1, 0.39)
        return graded(ttft_s if point.load <= highest else 2.0, 0.01, point.load, CAPACITY)

    asked = problem(twin=twin)
    runs = [Run({}, 1.0, Purpose.BASELINE, twin(Point({})))] * 2
    check = next_trial(asked, runs)
    assert isinstance(check, Wanted)
    assert check.overrides == best

    def made(overrides: Overrides, purpose: Purpose, ttft_s: float) -> Run:
        return Run(overrides, check.load, purpose, graded(ttft_s, 0.01, check.load, CAPACITY))

    baseline = made({}, Purpose.PROOF, 1.5)
    runs += [made(best, Purpose.CHECK, 0.37), baseline, made(best, Purpose.PROOF, 0.405), baseline]
    wanted = next_trial(asked, runs)
    assert isinstance(wanted, Wanted)
    assert (wanted.overrides, wanted.load, wanted.purpose) == (best, check.load, Purpose.PROOF)
    found = next_trial(asked, [*runs, made(best, Purpose.PROOF, 0.38)])
    assert isinstance(found, Conclusion)
    assert found.verdict is Verdict.IMPROVED


def test_runs_of_a_proof_do_not_change_what_is_proven() -> None:
    """They mended the twin, and of two candidates that were as good now one and now the other was proven."""
    server, asked = Server(off_by(1.2, 0.9)), problem()
    tune(server, asked)
    first = next(at for at, run in enumerate(server.runs) if run.purpose is Purpose.PROOF)
    before, after = view_of(asked, server.runs[:first]), view_of(asked, server.runs)
    assert len(server.runs) > first + 2
    assert (after.pace, after.ranking) == (before.pace, before.ranking)
    assert len({str(run.overrides) for run in server.runs[first:] if run.overrides}) == 1


def test_a_latency_is_found_at_the_workloads_own_load_alone() -> None:
    server = Server(off_by(1.15, 0.9, LATENCY), goal=LATENCY)
    found = tune(server, problem(LATENCY))
    assert found.verdict is Verdict.IMPROVED
    assert {run.load for run in server.runs} == {1.0}
    before, after = server.truth({}, 1.0), server.truth(found.recommended, 1.0)
    assert isinstance(before, Grade)
    assert isinstance(after, Grade)
    assert after.ratio < 0.7 * before.ratio
    assert found.gain is not None
    assert found.gain.ratio_at_most < 0.95


def test_the_baseline_comes_first_twice_and_proof_is_in_turns() -> None:
    server = Server(off_by(1.1, 1.0))
    tune(server, problem())
    purposes = [run.purpose for run in server.runs]
    assert purposes[:2] == [Purpose.BASELINE, Purpose.BASELINE]
    proof = [run for run in server.runs if run.purpose is Purpose.PROOF]
    assert proof[0].overrides == {}
    assert proof[1].overrides
    assert len({run.load for run in proof}) == 1


def test_where_the_start_is_best_it_stays() -> None:
    def flat(overrides: Overrides, load: float) -> Grade:
        return grade_of({}, load) if not overrides else grade_of({}, 1.1 * load)

    asked = problem(twin=lambda point: flat(point.overrides, point.load))
    found = tune(Server(flat), asked)
    assert found.verdict is Verdict.NOTHING_BETTER
    assert found.recommended == {}


@pytest.mark.parametrize("goal", [CAPACITY, LATENCY])
def test_what_the_twin_promises_and_the_server_does_not_keep_is_not_claimed(goal: Goal) -> None:
    asked = problem(goal)
    server = Server(lambda _, load: grade_of({}, load, goal=goal), goal=goal)
    found = tune(server, asked)
    assert found.verdict is Verdict.NOTHING_BETTER
    assert found.recommended == {}


@pytest.mark.slow
@pytest.mark.parametrize("goal", [CAPACITY, LATENCY])
@pytest.mark.parametrize("noise", [0.02, 0.1, 0.3])
def test_noise_alone_is_called_an_improvement_in_fewer_than_one_of_twenty_searches(
    goal: Goal, noise: float
) -> None:
    asked = problem(goal)
    verdicts: list[Verdict] = []
    for seed in range(60):
        server = Server(lambda _, load: grade_of({}, load, goal=goal), noise=noise, seed=seed, goal=goal)
        verdicts.append(tune(server, asked).verdict)
    assert verdicts.count(Verdict.IMPROVED) <= 3


def test_the_same_runs_give_the_same_next_run_whoever_asks() -> None:
    server = Server(off_by(1.2, 0.9))
    whole = tune(server, problem())
    for made in range(len(server.runs) + 1):
        step = next_trial(problem(), server.runs[:made])
        if made < len(server.runs):
            run = server.runs[made]
            assert not isinstance(step, Conclusion)
            assert (step.overrides, step.load, step.purpose) == (run.overrides, run.load, run.purpose)
        else:
            assert isinstance(step, Conclusion)
            assert replace(step, simulated=0) == replace(whole, simulated=0)


def test_no_load_is_tried_at_which_the_workload_would_be_over_too_soon() -> None:
    server = Server(off_by(1.0, 1.0))
    most = rung_of(capacity(server, {})) + 2
    found = tune(server, replace(problem(), highest_rung=most))
    assert max(run.load for run in server.runs) <= load_of(most)
    assert found.verdict is Verdict.IMPROVED


def test_a_start_that_carries_all_that_may_be_tried_stays_and_the_reason_is_said() -> None:
    server = Server(off_by(1.0, 1.0))
    found = tune(server, replace(problem(), highest_rung=0))
    assert found.verdict is Verdict.NOTHING_BETTER
    assert "too short to tell of more" in found.why
    assert [run.purpose for run in server.runs] == [Purpose.BASELINE] * 2


def test_objectives_that_nobody_can_meet_end_with_how_near_and_what_it_takes() -> None:
    goal = Goal(Aim.CAPACITY, parse_objectives("short: p95 ttft < 5ms"))
    server = Server(off_by(1.0, 1.0, goal), noise=0.0, goal=goal)
    found = tune(server, problem(goal))
    assert found.verdict is Verdict.UNREACHABLE
    assert "times the limit" in found.why
    assert "in the twin even an idle server comes to 5.19 times the limit" in found.why
    assert "faster machine" in found.why
    assert found.nearest is not None
    assert found.nearest.ratio > 1


def test_a_load_too_high_for_one_server_asks_for_more_of_them() -> None:
    def truth(overrides: Overrides, load: float) -> Grade:
        return grade_of(overrides, 5 * load, goal=LATENCY)

    asked = problem(
        LATENCY, twin=lambda point: grade_of(point.overrides, 5 * point.load, point.pace, LATENCY)
    )
    found = tune(Server(truth, noise=0.0, goal=LATENCY), asked)
    assert found.verdict is Verdict.UNREACHABLE
    idle = next(rung for rung in range(-1, -95, -1) if _carried_at(asked, rung))
    assert f"meets it at {load_of(idle):.2g} times the load" in found.why
    assert f"more replicas ({ceil(1 / load_of(idle))} for this load)" in found.why


def _carried_at(asked: Problem, rung: int) -> bool:
    levers = [lever.name for lever in asked.space.levers]
    settings = asked.space.grid(levers, most=10**6)
    return any(
        isinstance(found, Grade) and found.meets
        for found in asked.twin([Point(each, load_of(rung)) for each in settings])
    )


@pytest.mark.parametrize("most", range(1, 9))
def test_no_more_runs_than_allowed_and_an_answer_all_the_same(most: int) -> None:
    server = Server(off_by(1.1, 1.0))
    found = tune(server, problem(), most)
    assert len(server.runs) <= most
    if most < 5:
        assert found.verdict is Verdict.INCONCLUSIVE
        assert found.recommended == {}


@pytest.mark.parametrize("budget_s", [40.0, 85.0, 200.0, 1000.0])
def test_the_search_ends_in_time(budget_s: float) -> None:
    server = Server(off_by(1.1, 1.0))
    drive(problem(), server.judge, Budget(ends_at=budget_s), lambda: 40.0 * len(server.runs), Silent())
    assert 40.0 * len(server.runs) <= max(budget_s, 40.0)


EXTRAS = (
    Extra("good", {"async_scheduling": True}, "planned ahead"),
    Extra("bad", {"enable_prefix_caching": False}, "hashing costs"),
)


def test_a_further_lever_is_kept_only_when_its_runs_are_better() -> None:
    def truth(overrides: Overrides, load: float) -> Grade:
        own = {
            name: value
            for name, value in overrides.items()
            if name not in ("async_scheduling", "enable_prefix_caching")
        }
        found = grade_of(own, load, goal=LATENCY)
        factor = (0.7 if "async_scheduling" in overrides else 1.0) * (
            1.2 if "enable_prefix_caching" in overrides else 1.0
        )
        each = found.classes[0]
        return graded(
            (each.ttft_p95_s or 0) * factor, (each.itl_p95_s or 0) * factor, found.throughput_rps, LATENCY
        )

    server = Server(truth, goal=LATENCY)
    found = tune(server, problem(LATENCY, EXTRAS))
    assert [lever.is_kept for lever in found.levers] == [True, False]
    assert found.recommended["async_scheduling"] is True
    assert "enable_prefix_caching" not in found.recommended
    bad = [run for run in server.runs if "enable_prefix_caching" in run.overrides]
    assert len(bad) == 1


def test_further_levers_come_last_whatever_they_do_to_the_latencies() -> None:
    """The twin does not know them: where one makes all twice as fast, its steps were not wrong."""

    def truth(overrides: Overrides, load: float) -> Grade:
        own = {name: value for name, value in overrides.items() if name != "async_scheduling"}
        pace = Pace(0.5, 2.0) if "async_scheduling" in overrides else Pace(1.1, 1.0)
        return grade_of(own, load, pace, LATENCY)

    server = Server(truth, goal=LATENCY)
    found = tune(server, problem(LATENCY, EXTRAS[:1]))
    purposes = [run.purpose for run in server.runs]
    first = purposes.index(Purpose.LEVER)
    assert set(purposes[first:]) == {Purpose.LEVER}
    assert found.pace.decode == pytest.approx(1.0, abs=0.1)
    assert not any(each.is_beyond_noise for each in found.predictions[first:])


def test_runs_that_contradict_the_twin_are_marked() -> None:
    asked = problem(LATENCY)
    server = Server(lambda _, load: grade_of({}, load, goal=LATENCY), goal=LATENCY, noise=0.01)
    found = tune(server, asked)
    assert any(each.is_beyond_noise for each in found.predictions if each.overrides)
    assert len(found.predictions) == len(server.runs)


def test_a_budget_without_runs_left_concludes_from_what_there_is() -> None:
    server = Server(off_by(1.1, 1.0))
    tune(server, problem(), 2)
    step = next_trial(problem(), server.runs, Room(0))
    assert isinstance(step, Conclusion)
    assert step.verdict is Verdict.INCONCLUSIVE


@st.composite
def odd_servers(draw: st.DrawFn) -> Server:
    """Any server: each setting is as good, or as dead, as chance says, and need not resemble its twin."""
    salt = draw(st.integers(0, 10**6))
    dead, goal = draw(st.sampled_from([0.0, 0.3, 0.9])), draw(st.sampled_from([CAPACITY, LATENCY]))

    def truth(overrides: Overrides, load: float) -> Grade | NoResult:
        chance = Random(f"{salt} {sorted(overrides.items())}")
        if overrides and chance.random() < dead:
            return NoResult("killed")
        return grade_of({}, load * chance.uniform(0.3, 3.0), goal=goal)

    return Server(truth, noise=draw(st.sampled_from([0.0, 0.05, 0.5])), seed=salt, goal=goal)


@settings(deadline=None, max_examples=25)
@given(odd_servers())
def test_whatever_the_server_does_the_search_ends_and_tries_nothing_unsafe(server: Server) -> None:
    asked = problem(server.goal)
    found = tune(server, asked, most=None)
    assert len(server.runs) <= 60
    assert all(asked.space.is_safe(run.overrides) for run in server.runs)
    assert found.recommended in [{}, *(run.overrides for run in server.runs)]
    if found.verdict is Verdict.IMPROVED:
        assert found.gain is not None
        assert found.gain.ratio_at_most <= 0.95
        assert not isinstance(server.truth(found.recommended, 1.0), NoResult)
