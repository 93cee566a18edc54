"""Before and after are compared run by run, each figure as sure as repeated runs make it."""

from dataclasses import replace
from math import exp, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.bill import Cause
from headrace.core.grade import Grade
from headrace.report.tuning.figures import compared, same_settings
from headrace.report.tuning.tuning import Tuning
from tests.report.tuning import examples
from tests.report.tuning.drawn import tunings
from tests.report.tuning.formula import BEST, CAP, TOKENS


def grade_of(tuning: Tuning, number: int) -> Grade:
    outcome = tuning.runs[number].outcome
    assert isinstance(outcome, Grade)
    return outcome


def test_the_start_counts_all_its_runs_at_the_load_and_the_contender_only_its_repeats() -> None:
    sides = compared(examples.improved())
    assert sides.before
    assert sides.after
    assert sides.before.numbers == (0, 1, 4, 6)
    assert sides.after.numbers == (5, 7)
    sides = compared(examples.carries_more())
    assert sides.before
    assert sides.after
    assert (sides.before.numbers, sides.before.load) == ((5, 7), 0.95)
    assert sides.after.numbers == (6, 8)


def test_a_contender_with_a_single_run_is_told_by_that_run() -> None:
    after = compared(examples.inconclusive()).after
    assert after
    assert after.numbers == (2,)


def test_a_figure_is_the_geometric_mean_of_its_runs_inside_its_interval() -> None:
    tuning = examples.improved()
    row = compared(tuning).rows[0]
    values = [grade_of(tuning, number).attained[0].value_s for number in (0, 1, 4, 6)]
    assert row.before
    assert row.before.interval
    assert row.before.value == pytest.approx(exp(sum(map(log, values)) / 4))
    assert row.before.interval[0] < row.before.value < row.before.interval[1]


def test_without_a_repeated_choice_no_interval_is_claimed() -> None:
    assert all(row.before and row.before.interval is None for row in compared(examples.interrupted()).rows)


def test_what_was_asked_comes_first_and_is_not_told_twice() -> None:
    rows = compared(examples.improved()).rows
    assert [(row.request_class, row.label, row.objective is not None) for row in rows[:4]] == [
        ("short", "P95 TTFT", True),
        ("short", "P95 ITL", True),
        ("short", "P50 TTFT", False),
        ("short", "P50 ITL", False),
    ]
    assert len({(row.request_class, row.label) for row in rows}) == len(rows)


def test_bills_are_the_servers_own_or_else_the_twins() -> None:
    own, twins = compared(examples.improved()).bills, compared(examples.without_bills()).bills
    assert [each.is_twin for each in own] == [False, False]
    assert [each.is_twin for each in twins] == [True, True]
    assert twins[0].after
    assert twins[0].before[Cause.SHARED_STEPS] > twins[0].after[Cause.SHARED_STEPS] > 0


def test_of_objectives_out_of_reach_the_nearest_setting_stands_beside_the_start() -> None:
    sides = compared(examples.out_of_reach())
    assert sides.after
    assert sides.after.overrides == BEST
    assert sides.worst
    assert sides.worst.request_class == "long"


def test_a_percentile_among_failures_has_no_figure_and_no_interval() -> None:
    row = compared(examples.hopeless_percentile()).rows[0]
    assert row.before
    assert row.before.value == float("inf")
    assert row.before.interval is None


def test_settings_are_the_same_in_any_order() -> None:
    assert same_settings({TOKENS: 1, CAP: 2}, {CAP: 2, TOKENS: 1})
    assert not same_settings({TOKENS: 1}, {TOKENS: 1, CAP: 2})


@given(st.floats(0.1, 10))
def test_figures_scale_with_the_machine(slower: float) -> None:
    tuning = examples.improved()
    scaled = tuple(replace(run, outcome=_slower(run.outcome, slower)) for run in tuning.runs)
    for row, other in zip(compared(tuning).rows, compared(replace(tuning, runs=scaled)).rows, strict=True):
        if row.objective and row.before and other.before and row.before.interval and other.before.interval:
            assert other.before.value == pytest.approx(slower * row.before.value)
            assert other.before.interval[1] == pytest.approx(slower * row.before.interval[1])


def _slower(outcome: object, factor: float) -> Grade:
    assert isinstance(outcome, Grade)
    return replace(
        outcome, attained=tuple(replace(each, value_s=factor * each.value_s) for each in outcome.attained)
    )


@pytest.mark.slow
@given(tunings)
def test_no_side_has_runs_of_other_settings_or_loads(tuning: Tuning) -> None:
    sides = compared(tuning)
    for side in (sides.before, sides.after):
        for number, grade in zip(side.numbers, side.grades, strict=True) if side else ():
            run = tuning.runs[number]
            assert run.outcome == grade
            assert side
            assert same_settings(run.overrides, side.overrides)
            assert run.load == side.load
