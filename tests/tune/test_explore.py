"""The twin's best is found though neighbours that come to the same are many."""

from collections.abc import Callable
from dataclasses import replace

from headrace.core.cost import Pace
from headrace.core.grade import Grade
from headrace.tune.explore import explore
from headrace.tune.space import CAP, SEQS, TOKENS
from headrace.tune.twin import WHOLE, Point, load_of, rung_of
from tests.tune.model import CAPACITY, LATENCY, grade_of, graded, problem


def test_of_settings_that_come_to_the_same_the_one_with_fewest_changes_stays() -> None:
    def twin(point: Point) -> Grade:
        changed = {name: value for name, value in point.overrides.items() if name != SEQS}
        return grade_of(changed, point.load, point.pace)

    found = explore(problem(twin=twin), Pace()).candidates
    assert all(SEQS not in each.overrides for each in found)
    assert len(found) > 6
    assert all(a.grade != b.grade or a.rung != b.rung for a in found for b in found if a is not b)


def test_a_neighbour_that_carries_more_is_found_behind_many_that_are_nearer_to_no_wait() -> None:
    """A conversation on an H100: a cap of 128 tokens waited less at every load that both carried, one of 256
    carried a rung more; eight values of a lever that did nothing stood between them.
    """
    best, next_best = 256, 128

    def twin(point: Point) -> Grade:
        cap = point.overrides.get(CAP, 0)
        highest = {best: 10 if point.share == WHOLE else 6, next_best: 9}.get(int(cap), 2)
        ratio = 0.95 if cap == best else 0.9
        is_met = rung_of(point.load) <= highest
        return graded(0.4 * (ratio if is_met else 1.5), 0.01, point.load, CAPACITY)

    found = explore(problem(twin=twin), Pace()).best
    assert found is not None
    assert found.overrides == {CAP: best}
    assert found.load == load_of(10)


def test_a_change_that_gains_two_per_cent_is_not_worth_making_but_one_that_gains_five_is() -> None:
    def twin_with(gain: float) -> Callable[[Point], Grade]:
        def twin(point: Point) -> Grade:
            ratio = 0.5 if CAP in point.overrides else 1.0
            ratio *= 1 - gain if TOKENS in point.overrides else 1.0
            return graded(0.4 * ratio, 0.01, point.load, LATENCY)

        return twin

    trifle, gain = (
        explore(problem(LATENCY, twin=twin_with(gain)), Pace()).candidates for gain in (0.02, 0.05)
    )
    assert trifle[0].overrides.keys() == {CAP}
    assert gain[0].overrides.keys() == {CAP, TOKENS}


def test_of_settings_that_are_as_good_the_one_that_keeps_others_waiting_least_is_taken() -> None:
    def twin(point: Point) -> Grade:
        cap = int(point.overrides.get(CAP, 0))
        found = graded(0.4 * {64: 0.50, 96: 0.51}.get(cap, 1.0), 0.01, point.load, LATENCY)
        (own,) = found.classes
        others = replace(own, request_class="long", ttft_p95_s=6.6 if cap == 64 else 5.3)
        return replace(found, classes=(own, others))

    best = explore(problem(LATENCY, twin=twin), Pace()).best
    assert best is not None
    assert best.overrides == {CAP: 96}


def test_levers_that_must_move_together_are_found_over_one_that_is_not_the_best() -> None:
    """A conversation on an H100 again: with a cap of 128 a smaller step is no gain, and with the smaller step
    a cap of 256 is the best there is.
    """
    worth = {
        (2048, 96): 0.85,
        (2048, 128): 0.80,
        (1024, 128): 0.801,
        (1024, 256): 0.60,
    }

    def twin(point: Point) -> Grade:
        tokens, cap = int(point.overrides.get(TOKENS, 2048)), int(point.overrides.get(CAP, 0))
        return grade_of({}, point.load * worth.get((tokens, cap), 1.2))

    best = explore(problem(twin=twin), Pace()).best
    assert best is not None
    assert best.overrides == {TOKENS: 1024, CAP: 256}
