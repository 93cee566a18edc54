"""The twin's picture around the answer: what each lever does, where its knee is, and why not simply more.

    View + winner --explain--> Explanation(curves, frontier, obvious moves)

All simulated at the pace that the runs showed, so it is the corrected twin that speaks. Some hundred
simulations.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import inf

from headrace.core.conclusion import (
    Curve,
    CurvePoint,
    Explanation,
    FrontierPoint,
    ObviousMove,
)
from headrace.core.grade import Grade
from headrace.core.ports import Overrides
from headrace.core.trial import NoResult
from headrace.tune.belief import View
from headrace.tune.explore import START
from headrace.tune.space import CAP, KV_BYTES, SEQS, TOKENS, Choice, Lever, Space, Value
from headrace.tune.twin import Climb, Point, grades, load_of, rung_of, settings_key

KNEE = 0.02
"""What is within this share of the best is no longer a gain."""
TOLD = 0.01
"""Of a figure, what is told of a step from one value to the next."""
LOADS = (0.5, 0.7, 0.85, 1.0, 1.15)
"""Of the load of the comparison, for the frontier."""
MOVES: tuple[tuple[str, tuple[tuple[str, float], ...]], ...] = (
    ("four times the tokens a step", ((TOKENS, 4.0),)),
    ("twice the sequences at once", ((SEQS, 2.0),)),
    ("four times the tokens and twice the sequences", ((TOKENS, 4.0), (SEQS, 2.0))),
    ("a quarter of the tokens a step, alone", ((TOKENS, 0.25),)),
    ("a quarter more KV cache", ((KV_BYTES, 1.25),)),
)
"""What people try by reflex, as factors on the start."""


def explain(view: View, winner: Overrides, load: float) -> Explanation:
    """`load`: at which winner and baseline were compared."""
    before, space = view.problem.twin.simulated, view.problem.space
    start, answer = view.problem.twin([Point(each, load, view.pace) for each in (START, winner)])
    ways = {lever.name: _ways(space, lever, winner) for lever in space.levers}
    settings = [overrides for each in ways.values() for _, overrides in each]
    capacities = _capacities(view, settings, load)
    curves = tuple(_curve(view, lever, winner, load, ways[lever.name], capacities) for lever in space.levers)
    frontier = _frontier(view, winner, load)
    obvious = tuple(_obvious(view, load))
    return Explanation(start, answer, curves, frontier, obvious, view.problem.twin.simulated - before)


def _ways(space: Space, lever: Lever, winner: Overrides) -> list[tuple[Choice, Overrides]]:
    """The winner with each safe value of a lever, no cap last."""
    values = [choice for choice in lever.choices if space.is_safe({**winner, lever.name: choice.value})]
    values.sort(key=lambda choice: lever.name == CAP and choice.value == 0)
    return [(choice, space.canonical({**winner, lever.name: choice.value})) for choice in values]


def _curve(
    view: View,
    lever: Lever,
    winner: Overrides,
    load: float,
    ways: Sequence[tuple[Choice, Overrides]],
    capacities: Mapping[object, float | None],
) -> Curve:
    found = view.problem.twin([Point(overrides, load, view.pace) for _, overrides in ways])
    points = tuple(
        CurvePoint(choice.value, capacities.get(settings_key(overrides)), grade, choice.reason)
        for (choice, overrides), grade in zip(ways, found, strict=True)
    )
    return Curve(
        lever=lever.name,
        winner=winner.get(lever.name, view.problem.space.site.start[lever.name]),
        points=points,
        knee=_knee(points, is_capacity=view.seeks_capacity),
        steps=tuple(_step(one, other) for one, other in pairwise(points)),
    )


def _capacities(view: View, settings: Sequence[Overrides], load: float) -> Mapping[object, float | None]:
    """By `settings_key`, if asked for. A rung of each at a time, so that they share the processors."""
    if not view.seeks_capacity:
        return {}
    ways = {settings_key(each): each for each in settings}
    climbs = {key: Climb(rung_of(load), view.problem.highest_rung) for key in ways}
    while going := [key for key, climb in climbs.items() if not climb.is_done]:
        points = [Point(ways[key], load_of(climbs[key].rung), view.pace) for key in going]
        for key, found in zip(going, grades(view.problem.twin, points), strict=True):
            climbs[key].tell(found is not None and found.meets)
    return {key: None if climb.highest is None else load_of(climb.highest) for key, climb in climbs.items()}


def _worth(point: CurvePoint, *, is_capacity: bool) -> float:
    """Higher is better: the capacity where one was looked for, else how far below the limits."""
    if is_capacity:
        return point.capacity or 0.0
    return 0.0 if isinstance(point.grade, NoResult) else 1 / max(point.grade.ratio, 1e-9)


def _knee(points: Sequence[CurvePoint], *, is_capacity: bool) -> Value | None:
    worths = [_worth(point, is_capacity=is_capacity) for point in points]
    best = max(worths, default=0.0)
    if best <= 0 or min(worths) >= (1 - KNEE) * best:
        return None
    return next(
        point.value for point, worth in zip(points, worths, strict=True) if worth >= (1 - KNEE) * best
    )


def _step(one: CurvePoint, other: CurvePoint) -> str:
    head = f"{one.value} -> {other.value}"
    if isinstance(one.grade, NoResult) or isinstance(other.grade, NoResult):
        return f"{head}: one of them gives no result"
    changes = list(_changes(one, one.grade, other, other.grade))
    told = [f"{figure} x {factor:.2f}" for figure, factor in changes if abs(factor - 1) >= TOLD]
    return f"{head}: {', '.join(told) or 'no change'}"


def _changes(one: CurvePoint, was: Grade, other: CurvePoint, now: Grade) -> Iterator[tuple[str, float]]:
    if one.capacity and other.capacity:
        yield "capacity", other.capacity / one.capacity
    elif was.output_tokens_per_s:
        yield "throughput", now.output_tokens_per_s / was.output_tokens_per_s
    for before in was.classes:
        after = now.of_class(before.request_class)
        if after is not None and before.ttft_p95_s and after.ttft_p95_s:
            name = f" of {before.request_class}" if before.request_class else ""
            yield f"P95 TTFT{name}", after.ttft_p95_s / before.ttft_p95_s


def _frontier(view: View, winner: Overrides, load: float) -> tuple[FrontierPoint, ...]:
    """Of the twin's best settings, the winner and the start, at several loads: what none beats in both."""
    choices = {settings_key(each): each for each in (START, winner)}
    choices |= {settings_key(each.overrides): each.overrides for each in view.ranking.candidates}
    points = [
        Point(each, float(f"{share * load:.6g}"), view.pace) for each in choices.values() for share in LOADS
    ]
    found = [
        FrontierPoint(point.overrides, point.load, grade.output_tokens_per_s, grade.ratio)
        for point, grade in zip(points, grades(view.problem.twin, points), strict=True)
        if grade is not None and not grade.failed and grade.is_steady is not False
    ]
    found.sort(key=lambda each: (-each.output_tokens_per_s, each.ratio))
    kept: list[FrontierPoint] = []
    for each in found:
        if each.ratio < min((one.ratio for one in kept), default=inf):
            kept.append(each)
    return tuple(reversed(kept))


def _obvious(view: View, load: float) -> list[ObviousMove]:
    start, space = view.problem.space.site.start, view.problem.space
    moves: list[ObviousMove] = []
    for name, factors in MOVES:
        if any(lever not in start for lever, _ in factors):
            continue
        overrides: Overrides = {lever: max(1, int(float(start[lever]) * factor)) for lever, factor in factors}
        if int({**start, **overrides}.get(SEQS, 1)) > int({**start, **overrides}.get(TOKENS, inf)):
            continue
        (grade,) = view.problem.twin([Point(overrides, load, view.pace)])
        moves.append(ObviousMove(name, overrides, grade, space.refuse(overrides)))
    return moves
