"""The scripted executor notices what a real one would only answer nonsense to."""

import pickle
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.plan import Chunk
from headrace.core.request import SamplingParams
from headrace.core.settings import Settings
from headrace.executor.scripted import ScriptedExecutor, ScriptedTokenizer, WrongPlan
from tests.executor.driving import answer, greedy, request, serve, step, work

PROMPT = tuple(range(40, 90))


def run_prompt() -> ScriptedExecutor:
    executor = ScriptedExecutor(num_blocks=16, block_size=16)
    step(executor, Chunk(work("a", PROMPT, greedy(8), (1, 2, 3, 4)), 0, 50, samples=True))
    return executor


def test_a_block_that_was_never_written_is_noticed() -> None:
    executor = ScriptedExecutor(num_blocks=16, block_size=16)
    with pytest.raises(WrongPlan, match="does not hold token 0"):
        step(executor, Chunk(work("a", PROMPT, greedy(8), (1, 2, 3, 4)), 32, 18, samples=True))


def test_blocks_in_the_wrong_order_are_noticed() -> None:
    with pytest.raises(WrongPlan, match="does not hold token 0"):
        step(run_prompt(), Chunk(work("b", PROMPT, greedy(8), (2, 1, 3, 5)), 48, 2, samples=True))


def test_a_block_with_the_right_tokens_after_another_beginning_is_noticed() -> None:
    other_beginning = (1, *PROMPT[1:])
    executor = run_prompt()
    step(executor, Chunk(work("b", other_beginning, greedy(8), (5, 6, 7, 8)), 0, 50, samples=True))
    with pytest.raises(WrongPlan, match="block 6 does not hold token 16"):
        step(executor, Chunk(work("c", PROMPT, greedy(8), (1, 6, 3, 9)), 48, 2, samples=True))


def test_two_chunks_that_write_over_each_other_are_noticed() -> None:
    first, second = (
        work("a", PROMPT, greedy(8), (1, 2, 3, 4)),
        work("b", PROMPT[::-1], greedy(8), (4, 5, 6, 7)),
    )
    with pytest.raises(WrongPlan, match="does not hold"):
        step(ScriptedExecutor(16, 16), Chunk(first, 0, 50, samples=True), Chunk(second, 0, 50, samples=True))


@pytest.mark.parametrize(
    ("block_ids", "start", "tokens", "samples", "complaint"),
    [
        ((0, 1, 2, 3), 0, 50, True, "outside 1 to 15"),
        ((1, 2, 3, 16), 0, 50, True, "outside 1 to 15"),
        ((1, 2, 2, 3), 0, 50, True, "twice"),
        ((1, 2, 3), 0, 50, True, "3 blocks of 16 for 50 tokens"),
        ((1, 2, 3, 4), 0, 51, True, "which has 50"),
        ((1, 2, 3, 4), 0, 0, False, "tokens 0 to 0"),
        ((1, 2, 3, 4), 0, 50, False, "samples: False"),
        ((1, 2, 3, 4), 0, 49, True, "samples: True"),
    ],
)
def test_a_malformed_chunk_is_noticed(
    block_ids: tuple[int, ...], start: int, tokens: int, samples: bool, complaint: str
) -> None:
    executor = ScriptedExecutor(num_blocks=16, block_size=16)
    with pytest.raises(WrongPlan, match=complaint):
        step(executor, Chunk(work("a", PROMPT, greedy(8), block_ids), start, tokens, samples))


def test_a_work_that_is_twice_in_a_plan_is_noticed() -> None:
    chunk = Chunk(work("a", PROMPT, greedy(8), (1, 2, 3, 4)), 0, 50, samples=True)
    with pytest.raises(WrongPlan, match="twice in one plan"):
        step(ScriptedExecutor(16, 16), chunk, chunk)


def test_it_can_be_made_in_another_process() -> None:
    recipe = pickle.loads(pickle.dumps(partial(ScriptedExecutor, 16, eos_after=2)))
    sampling = SamplingParams(8, eos_token_id=256)
    assert answer(recipe(), work("a", PROMPT, sampling, (1, 2)), 3)[2] == 256


requests = st.lists(
    st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 12), st.integers(0, 3)),
    min_size=1,
    max_size=12,
)


@given(requests, st.integers(5, 24), st.integers(4, 40), st.booleans())
def test_the_engine_answers_alike_whatever_its_budgets(
    asked: list[tuple[list[int], int, int]], num_blocks: int, batched_tokens: int, caching: bool
) -> None:
    """Real scheduler, real block tables, and prompts over four tokens, so that prefixes are shared."""
    made = [
        request(f"r{place}", prompt, SamplingParams(outputs, seed=seed))
        for place, (prompt, outputs, seed) in enumerate(asked)
    ]
    roomy = Settings(max_model_len=72, num_gpu_blocks=200, block_size=4)
    tight = Settings(
        max_model_len=72,
        num_gpu_blocks=num_blocks + 19,  # the largest request alone needs 18
        block_size=4,
        max_num_batched_tokens=batched_tokens,
        max_num_seqs=4,
        enable_prefix_caching=caching,
    )
    executor = ScriptedExecutor(tight.num_gpu_blocks, 4)
    assert serve(executor, tight, made).answers == serve(ScriptedExecutor(200, 4), roomy, made).answers
    assert executor.num_remembered == 0


@given(st.text())
def test_the_scripted_tokenizer_gives_text_back(text: str) -> None:
    tokenizer = ScriptedTokenizer()
    tokens = tokenizer.encode(text)
    sound = text.encode("utf-8", "replace").decode()
    assert tokenizer.decode(tokens, skip_special_tokens=False) == sound
