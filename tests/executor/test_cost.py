"""Fits: rates found again, outliers resisted, nothing ever cheaper for being larger."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.cost import StepShape
from headrace.core.errors import BadInput
from headrace.executor.cost import FittedCost, fit, nnls

MADE = {"made": "by a test"}


def some_steps(count: int, seed: int = 1) -> list[StepShape]:
    """Decode-only, prefill-only and mixed, of very different lengths."""
    chance = random.Random(seed)
    steps = list[StepShape]()
    for _ in range(count):
        seqs = chance.choice([0, 1, 2, 5, 16, 40, 120])
        tokens = chance.choice([0, 0, 3, 60, 300, 1500])
        chunks = 1 if tokens else 0
        if not seqs and not tokens:
            seqs = 1
        earlier = chance.randrange(2000) if tokens else 0
        steps.append(
            StepShape(
                decode_seqs=seqs,
                decode_context_tokens=seqs * chance.randrange(1, 4000),
                prefill_seqs=chunks,
                prefill_tokens=tokens,
                prefill_context_tokens=earlier,
                prefill_attention_pairs=tokens * earlier + tokens * (tokens + 1) // 2,
                sampled_seqs=seqs + chunks,
            )
        )
    return steps


def linear_ns(shape: StepShape) -> int:
    return (
        2_000_000
        + 30_000 * shape.tokens
        + 90 * shape.decode_context_tokens
        + 4 * shape.prefill_attention_pairs
        + 50_000 * shape.sampled_seqs
    )


def bent_ns(shape: StepShape) -> int:
    """Weights are read whatever the batch, until arithmetic takes longer."""
    return 500_000 + max(9_000_000, 40_000 * shape.tokens) + 60 * shape.decode_context_tokens


def worst_error(cost: FittedCost, ns: dict[int, int], shapes: list[StepShape]) -> float:
    return max(abs(cost.step_ns(shape) / ns[index] - 1) for index, shape in enumerate(shapes))


def test_steps_that_follow_the_form_are_told_exactly() -> None:
    fitted = fit([(shape, linear_ns(shape)) for shape in some_steps(300)], MADE)
    unseen = some_steps(100, seed=2)
    assert worst_error(fitted, {i: linear_ns(shape) for i, shape in enumerate(unseen)}, unseen) < 1e-3
    assert fitted.residual.p95 < 1e-3
    assert fitted.residual.observations == 300


def test_a_bend_between_memory_and_arithmetic_is_followed() -> None:
    fitted = fit([(shape, bent_ns(shape)) for shape in some_steps(400)], MADE)
    unseen = some_steps(100, seed=3)
    assert worst_error(fitted, {i: bent_ns(shape) for i, shape in enumerate(unseen)}, unseen) < 0.15
    assert fitted.residual.median < 0.03


def test_a_jump_to_a_slower_kernel_is_followed_and_costs_the_steps_before_it_nothing() -> None:
    """Five decodes take 1.4 times as long as four. A bend at 8 tokens told those of up to four too slow."""

    def jumping_ns(shape: StepShape) -> int:
        return linear_ns(shape) + (9_000_000 if shape.tokens > 4 else 0)

    steps = [StepShape(seqs, 100 * seqs, sampled_seqs=seqs) for seqs in (1, 2, 3, 4, 5, 6, 8, 16, 40)] * 3
    fitted = fit([(shape, jumping_ns(shape)) for shape in steps], MADE)
    assert worst_error(fitted, {i: jumping_ns(shape) for i, shape in enumerate(steps)}, steps) < 0.01


def test_what_it_costs_to_change_the_size_is_told_apart() -> None:
    steps = [replace(shape, resized=index % 2 == 0) for index, shape in enumerate(some_steps(300))]
    fitted = fit([(shape, linear_ns(shape) + 4_000_000 * shape.resized) for shape in steps], MADE)
    same = StepShape(3, 900, sampled_seqs=3)
    assert fitted.step_ns(same) == pytest.approx(linear_ns(same), rel=1e-3)
    assert fitted.step_ns(replace(same, resized=True)) == pytest.approx(linear_ns(same) + 4_000_000, rel=1e-3)


def test_disturbed_steps_do_not_pull_the_others() -> None:
    records = [(shape, linear_ns(shape)) for shape in some_steps(300)]
    disturbed = [(shape, ns * 8 if index % 10 == 0 else ns) for index, (shape, ns) in enumerate(records)]
    fitted = fit(disturbed, MADE)
    assert np.median([abs(fitted.step_ns(shape) / ns - 1) for shape, ns in records]) < 0.01
    assert fitted.residual.p95 > 0.5  # and it is not hidden that there were some


def test_short_and_long_steps_count_alike() -> None:
    short, long = StepShape(1, 10, sampled_seqs=1), StepShape(0, 0, 1, 4000, 0, 8_000_000, 1)
    records = [(short, 1_000_000), (long, 3_000_000_000)] * 20
    fitted = fit(records, MADE)
    assert fitted.step_ns(short) == pytest.approx(1_000_000, rel=0.01)
    assert fitted.step_ns(long) == pytest.approx(3_000_000_000, rel=0.01)


@pytest.mark.parametrize(
    ("records", "complaint"),
    [
        ([], "0 steps were recorded"),
        ([(StepShape(1), 5)] * 9, "9 steps were recorded; at least 10"),
        ([(StepShape(1), 5)] * 9 + [(StepShape(1), 0)], "taken 0 ns"),
        ([(StepShape(1), 5)] * 9 + [(StepShape(1), -7)], "taken -7 ns"),
    ],
)
def test_records_that_say_nothing_are_refused(records: list[tuple[StepShape, int]], complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        fit(records, MADE)


def test_the_same_step_over_and_over_is_enough_to_know_that_step() -> None:
    fitted = fit([(StepShape(4, 100, sampled_seqs=4), 7_000_000)] * 10, MADE)
    assert fitted.step_ns(StepShape(4, 100, sampled_seqs=4)) == pytest.approx(7_000_000, rel=1e-6)


some = st.integers(0, 3000)
FITTED = [
    fit([(shape, bent_ns(shape)) for shape in some_steps(200)], MADE),
    fit([(shape, linear_ns(shape)) for shape in some_steps(200)], MADE),
]


@given(
    st.sampled_from(FITTED),
    st.builds(StepShape, some, some, st.just(1), some, some, some, some),
    st.builds(StepShape, some, some, st.just(0), some, some, some, some),
)
def test_a_step_with_more_in_it_never_costs_less(
    cost: FittedCost, shape: StepShape, added: StepShape
) -> None:
    larger = StepShape(*(getattr(shape, name) + getattr(added, name) for name in StepShape.__slots__))
    assert 1 <= cost.step_ns(shape) <= cost.step_ns(larger)


@given(st.integers(1, 8), st.integers(1, 30), st.integers(0, 10_000))
def test_nnls_finds_the_least_there_is(columns: int, rows: int, seed: int) -> None:
    """By the conditions of Karush, Kuhn and Tucker: no rate is negative, and none could be moved to gain."""
    chance = np.random.default_rng(seed)
    table = chance.normal(size=(rows, columns)) * chance.choice([1e-3, 1.0, 1e6], size=columns)
    target = chance.normal(size=rows)
    x = nnls(table, target)
    scale = np.linalg.norm(table, axis=0)
    gain = table.T @ (target - table @ x) / scale
    assert (x >= 0).all()
    assert (gain <= 1e-6 * np.linalg.norm(target)).all()
    assert np.abs(gain[x > 0]).max(initial=0.0) <= 1e-6 * np.linalg.norm(target)
