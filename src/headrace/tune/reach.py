"""Objectives that no setting meets: how near one gets, and what would be needed.

View --out_of_reach--> one sentence with the numbers | None
"""

from dataclasses import replace
from math import ceil, exp, inf

from headrace.core.goal import Aim
from headrace.core.grade import Grade
from headrace.tune.belief import View
from headrace.tune.evidence import OWN_LOAD, deviation, grades_of, mean_ratio
from headrace.tune.explore import COARSE, MAIN, START, explore
from headrace.tune.twin import LOWEST_RUNG, Point, grades, load_of


def nearest(view: View) -> Grade | None:
    """Of the settings with the lowest mean ratio at the workload's own load, the best run."""
    choices = [run.overrides for run in view.runs if isinstance(run.outcome, Grade) and run.load == OWN_LOAD]
    best = min(choices, key=lambda each: mean_ratio(view.runs, each, OWN_LOAD) or inf, default=None)
    grades = [] if best is None else grades_of(view.runs, best, OWN_LOAD)
    return min(grades, key=lambda grade: grade.ratio, default=None)


def out_of_reach(view: View) -> str | None:
    """Why; None where a run met them, where more or less load decides, or nobody set limits."""
    if view.problem.goal.is_relative or view.seeks_capacity:
        return None
    grade = nearest(view)
    attained = None if grade is None else grade.binding()
    if grade is None or attained is None or grade.ratio < 1:
        return None
    name = attained.request_class or "all"
    came_to = f"{attained.value_s:.3g} s, {attained.ratio:.2f} times the limit"
    said = (
        f"{name}: p{attained.objective.percentile:g} {attained.objective.metric} came to {came_to}, at best"
    )
    return f"{said}{_within_noise(view, grade)}; {_needed(view)}"


def _within_noise(view: View, grade: Grade) -> str:
    """Whether another run of the same settings might meet them by chance."""
    spread = deviation(view.runs)
    factor = 1.0 if spread is None else exp(spread[0] * 2**0.5)
    return f", no further off than runs differ by (a factor of {factor:.2f})" if grade.ratio < factor else ""


def _needed(view: View) -> str:
    """Whether an idle server would meet them tells if more servers help, and how many."""
    settings = [START, *view.problem.space.grid(MAIN, COARSE)]
    settings = [each for each in settings if not view.is_out(each)]
    points = [Point(each, load_of(LOWEST_RUNG), view.pace) for each in settings]
    best = min((grade.ratio for grade in grades(view.problem.twin, points) if grade is not None), default=inf)
    if best >= 1:
        return (
            f"in the twin even an idle server comes to {best:.3g} times the limit: a faster machine or a "
            "smaller model, by as much, or a wider limit would be needed"
        )
    capacity = replace(view.problem, goal=replace(view.problem.goal, aim=Aim.CAPACITY))
    found = explore(capacity, view.pace, is_out=view.is_out).best
    if found is None:
        return "in the twin an idle server meets it: more replicas, or less load, would be needed"
    return (
        f"in the twin one server meets it at {found.load:.2g} times the load: more replicas "
        f"({ceil(OWN_LOAD / found.load)} for this load), or less load, would be needed"
    )
