"""Log probabilities by their definition, beside requests that ask for other things."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.plan import Chunk, Plan, Status
from headrace.core.ports import StepResult
from headrace.core.request import SamplingParams
from headrace.executor.grammars import Grammars, Vocabulary
from headrace.executor.sampler import Sampler, logprobs_of
from tests.executor.driving import work

VOCABULARY = 700


def no_vocabulary() -> Vocabulary:
    raise AssertionError("nobody asks for a grammar")


def make_sampler() -> Sampler:
    return Sampler(VOCABULARY, Grammars(no_vocabulary))


def plan_of(*params: SamplingParams) -> Plan:
    works = [work(f"r{place}", (1, 2), each, ()) for place, each in enumerate(params)]
    return Plan(chunks=[Chunk(each, 0, 2, samples=True) for each in works])


def rows_of(count: int, seed: int = 1) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    return np.random.default_rng(seed).standard_normal((count, VOCABULARY)).astype(np.float32) * 3


@given(
    st.integers(0, 1000), st.integers(0, VOCABULARY - 1), st.sampled_from([0, 1, 2, 3, 5, 20, 699, 700, 900])
)
def test_log_probabilities_are_those_of_a_softmax(seed: int, token: int, count: int) -> None:
    row = np.round(rows_of(1, seed)[0], 1)  # so that some are equal
    exact = row.astype(np.float64) - np.logaddexp.reduce(row.astype(np.float64))
    order = np.argsort(-row, kind="stable")[:count]
    found = logprobs_of(row, token, count)
    assert found.token_id == token
    np.testing.assert_allclose(found.logprob, exact[token], atol=1e-5)
    assert found.rank == (row >= row[token]).sum()
    assert [token for token, _ in found.top] == order.tolist()
    np.testing.assert_allclose([logprob for _, logprob in found.top], exact[order], atol=1e-5)


def test_they_are_of_the_logits_before_any_change() -> None:
    biased = SamplingParams(5, temperature=0.0, logit_bias=((3, 100.0),), num_logprobs=1)
    rows = rows_of(3)
    expected = logprobs_of(rows[1].copy(), 3, 1)
    result = StepResult([None] * 3)
    make_sampler().draw(rows, plan_of(SamplingParams(5), biased, SamplingParams(5)), [0, 1, 2], result)
    assert result.token_ids[1] == 3
    assert result.logprobs == {1: expected}


def test_who_asks_for_nothing_gets_no_record_of_it() -> None:
    result = StepResult([None] * 2)
    make_sampler().draw(rows_of(2), plan_of(SamplingParams(5), SamplingParams(5)), [0, 1], result)
    assert (result.logprobs, result.failed) == (None, None)


def test_neighbours_that_change_their_logits_change_no_other_draw() -> None:
    mine = SamplingParams(5, temperature=0.9, min_p=0.01, top_k=50, seed=3)
    alone, crowded = StepResult([None]), StepResult([None] * 3)
    make_sampler().draw(rows_of(3)[:1], plan_of(mine), [0], alone)
    other = SamplingParams(5, presence_penalty=1.0, bad_words=((7,),), min_tokens=3, eos_token_id=5)
    make_sampler().draw(rows_of(3), plan_of(mine, other, other), [0, 1, 2], crowded)
    assert crowded.token_ids[0] == alone.token_ids[0]


def test_nothing_is_kept_for_a_request_that_ended_while_the_step_ran() -> None:
    sampler = make_sampler()
    plan = plan_of(SamplingParams(5, presence_penalty=1.0), SamplingParams(5))
    for chunk in plan.chunks:
        chunk.work.status = Status.FINISHED
    sampler.draw(rows_of(2), plan, [0, 1], StepResult([None] * 2))
    assert sampler.num_remembered == 0
