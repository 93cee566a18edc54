"""A newcomer's prompt is found in the gaps of those who decode, however many steps it took."""

import pytest

from headrace.core.cost import Residual, StepShape
from headrace.core.timeline import Timeline
from headrace.executor.cost import FittedCost
from headrace.measure.beside import Beside, chunk_tokens, records_of, seen_beside

COST = FittedCost({"step": 10.0, "tokens_upto_8": 1.0, "prefill_tokens": 1.0}, Residual(10, 0, 0), {})


def timeline(sent_at: float, gaps: list[float], prompt_tokens: int = 50) -> Timeline:
    token_at = [sent_at + 1.0]
    for gap in gaps:
        token_at.append(token_at[-1] + gap)
    return Timeline("r", "c", prompt_tokens, sent_at, sent_at, tuple(token_at), "length")


def newcomer(sent_at: float, first_at: float, prompt_tokens: int = 500) -> Timeline:
    return Timeline("n", "c", prompt_tokens, sent_at, sent_at, (first_at,), "length")


def test_the_gap_before_the_first_token_is_the_step_that_computed_the_prompt() -> None:
    crowd = [timeline(0.0, [0.1] * 5 + [0.9] + [0.1] * 5) for _ in range(3)]
    (seen,) = seen_beside(crowd, [newcomer(1.45, 2.41)])
    assert seen.gaps_ns == (pytest.approx(900_000_000),)
    assert seen.prompts == ((500, 0),)
    ((shape, _),) = records_of(seen, None)
    assert shape == StepShape(3, 3 * 56, 1, 500, 0, 125_250, sampled_seqs=4)


def test_a_step_that_it_missed_is_not_its_own_even_if_that_was_a_little_long() -> None:
    """A step of 78 ms among ones of 50 was once taken for a chunk of the 1.5 s prompt behind it."""
    crowd = [timeline(0.0, [0.05] * 5 + [0.078, 1.464] + [0.05] * 5)]
    (seen,) = seen_beside(crowd, [newcomer(1.24, 2.80)])
    assert seen.gaps_ns == (pytest.approx(1_464_000_000),)


def test_several_long_gaps_are_the_chunks_of_one_prompt_and_tell_the_budget_of_a_step() -> None:
    # 1,000 tokens beside one decode: 255 + 255 + 255 + 235 in steps of 256
    chunks_s = [(10 + 1 + 255) / 100] * 3 + [(10 + 1 + 235) / 100]
    crowd = [timeline(0.0, [0.11] * 5 + chunks_s + [0.11] * 5)]
    (seen,) = seen_beside(crowd, [newcomer(1.5, 1.55 + sum(chunks_s), 1_000)])
    assert len(seen.gaps_ns) == 4
    in_ten_ns = Beside(
        seen.decode_seqs,
        seen.decode_context_tokens,
        seen.prompts,
        tuple(g // 10_000_000 for g in seen.gaps_ns),
    )
    assert chunk_tokens([in_ten_ns], COST) == 256
    assert records_of(seen, None) == []
    shapes = [shape for shape, _ in records_of(seen, 256)]
    assert [shape.prefill_tokens for shape in shapes] == [255, 255, 255, 235]
    assert [shape.prefill_context_tokens for shape in shapes] == [0, 255, 510, 765]
    assert [shape.sampled_seqs for shape in shapes] == [1, 1, 1, 2]


def test_no_prompt_in_several_steps_tells_no_budget() -> None:
    assert chunk_tokens([Beside(1, 50, ((500, 0),), (10**9,))], COST) is None


def test_a_newcomer_that_may_have_waited_for_a_slot_is_left_out() -> None:
    long, short = timeline(0.0, [0.1] * 20), timeline(0.0, [0.1] * 3)
    assert seen_beside([long, short], [newcomer(1.45, 2.41)]) == []
    assert len(seen_beside([long], [newcomer(1.45, 2.41)])) == 1


def test_those_who_came_together_are_seen_only_if_one_step_computed_them_all() -> None:
    crowd = [timeline(0.0, [0.5, 0.1, 0.1, 0.1])]
    both = [newcomer(0.0, 1.5, 40), newcomer(0.0, 1.5, 60)]
    (seen,) = seen_beside(crowd, both, together=True)
    assert seen.prompts == ((40, 0), (60, 0))
    apart = [newcomer(0.0, 1.5, 40), newcomer(0.0, 1.6, 60)]
    assert seen_beside(crowd, apart, together=True) == []
