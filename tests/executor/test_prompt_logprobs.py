"""How likely prompts were: in passes that fit, against a model that was not paged, and without a leak."""

from dataclasses import replace

import numpy as np
import openvino as ov
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.output import Output
from headrace.core.plan import Chunk, Plan, Status, Work
from headrace.core.ports import StepResult
from headrace.core.request import SamplingParams
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.executor.graph import KvCacheDtype, plugin_properties
from headrace.executor.models import ModelFiles
from headrace.executor.paged import PagedExecutor
from headrace.executor.prompt_logprobs import MOST_LOGIT_BYTES, Pass, PromptLogprobs, positions
from headrace.executor.sampler import logprobs_of
from headrace.executor.scripted import ScriptedExecutor
from headrace.executor.tokenizer import OpenVinoTokenizer
from tests.executor.driving import chunks_of, greedy, request, serve, work
from tests.executor.prompts import PROMPTS

ASKS = SamplingParams(1, temperature=0.0, num_prompt_logprobs=2)
MOST_ROWS = 8


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    chunks: list[Chunk] = []
    for name in range(draw(st.integers(1, 5))):
        length = draw(st.integers(1, 40))
        start = draw(st.integers(0, length - 1))
        end = draw(st.integers(start + 1, length))
        made = work(f"r{name}", range(length), draw(st.sampled_from([ASKS, ASKS, greedy(1)])), ())
        made.status = draw(st.sampled_from([Status.RUNNING, Status.RUNNING, Status.FINISHED]))
        chunks.append(Chunk(made, start, end - start, samples=end == length))
    return Plan(chunks=chunks)


@given(plans())
def test_passes_cover_every_chunk_in_order_and_none_has_too_many_rows(plan: Plan) -> None:
    passes = list(PromptLogprobs(1, 4 * MOST_ROWS).passes(plan))
    reached = [chunk.start for chunk in plan.chunks]
    for part in passes:
        assert len(part.chunks) == len(part.places) == len(set(part.places)) > 0
        assert sum(len(positions(chunk)) for chunk in part.chunks) <= MOST_ROWS
        assert [*part.asking] == [index for index, chunk in enumerate(part.chunks) if positions(chunk)]
        for place, chunk in zip(part.places, part.chunks, strict=True):
            whole = plan.chunks[place]
            assert (chunk.work, chunk.start) == (whole.work, reached[place])
            assert not chunk.samples or (whole.samples and part is passes[-1])
            reached[place] += chunk.tokens
    assert reached == [chunk.start + chunk.tokens for chunk in plan.chunks]
    sampling = [
        place for part in passes for place, c in zip(part.places, part.chunks, strict=True) if c.samples
    ]
    assert sampling == [place for place, chunk in enumerate(plan.chunks) if chunk.samples]


def test_a_plan_in_which_nobody_asks_runs_as_it_is() -> None:
    plan = Plan(chunks=[Chunk(work("a", range(900), greedy(1), ()), 0, 900, samples=True)])
    assert list(PromptLogprobs(1, 4).passes(plan)) == [Pass(plan.chunks, range(1))]


def test_what_was_known_of_a_cancelled_request_is_forgotten() -> None:
    prompts = PromptLogprobs(4)
    half: Work = work("a", (1, 2, 3), ASKS, ())
    prompts.take(Chunk(half, 0, 2, samples=False), np.zeros((2, 4), np.float32))
    assert prompts.num_remembered == 1
    prompts.forget(half)
    assert prompts.num_remembered == 0
    half.status = Status.FINISHED  # while the step ran
    result = StepResult([None])
    prompts.give(Plan(chunks=[Chunk(half, 2, 1, samples=True)]), result)
    assert (result.prompt_logprobs, prompts.num_remembered) == (None, 0)


class Listening(Engine):
    """Notes of which prompts it told what."""

    def __init__(self, settings: Settings, told: dict[str, list[int]]) -> None:
        super().__init__(settings)
        self._told = told

    def finish(self, plan: Plan, result: StepResult, now_ns: int) -> list[Output]:
        outputs = super().finish(plan, result, now_ns)
        for output in outputs:
            if output.prompt_logprobs is not None:
                assert output.request_id not in self._told, "told twice"
                self._told[output.request_id] = [each.token_id for each in output.prompt_logprobs]
        return outputs


@given(st.integers(3, 12), st.integers(5, 64), st.booleans())
def test_whatever_is_preempted_and_cached_every_prompt_is_told_of_whole(
    blocks: int, budget: int, shared: bool
) -> None:
    """Such a request takes no prefix from the cache, so that no position is missing."""
    settings = Settings(max_model_len=64, num_gpu_blocks=blocks + 1, block_size=16)
    settings = replace(settings, max_num_batched_tokens=budget, max_num_seqs=4)
    longest = min(40, 16 * blocks - 8)
    prompts = [[(0 if shared else 40 * name) + place for place in range(longest)] for name in range(6)]
    asks = replace(ASKS, max_tokens=6)
    requests = [
        request(f"r{name}", prompt, asks if name % 2 else greedy(6)) for name, prompt in enumerate(prompts)
    ]
    told: dict[str, list[int]] = {}
    executor = ScriptedExecutor(blocks + 1, 16)

    serve(executor, settings, requests, Listening(settings, told))
    assert told == {f"r{name}": prompts[name][1:] for name in (1, 3, 5)}
    assert executor.num_remembered == 0


@pytest.mark.slow
@pytest.mark.model
def test_they_are_those_of_the_model_without_pages(
    files: ModelFiles, paged: PagedExecutor, tokenizer: OpenVinoTokenizer
) -> None:
    """400 tokens, in three chunks, of which each takes two passes or one: as the whole model says at once."""
    tokens = tokenizer.encode(" ".join(PROMPTS))[:400]
    expected = unpaged_logits(files, tokens)
    asks = SamplingParams(2, temperature=0.0, num_prompt_logprobs=5)
    asking = work("asks", tokens, asks, range(1, 14))
    chunks = chunks_of(asking, 250, 60, 90)
    for chunk in chunks[:-1]:
        paged.run(Plan(chunks=[chunk]))
        assert paged.logits().nbytes <= MOST_LOGIT_BYTES
    result = paged.run(Plan(chunks=[chunks[-1]]))
    assert result.prompt_logprobs is not None
    found = result.prompt_logprobs[0]
    assert len(found) == 399
    for place, each in enumerate(found):
        exact = logprobs_of(expected[place], tokens[place + 1], 5)
        assert each.token_id == exact.token_id
        assert abs(each.logprob - exact.logprob) < 1e-3
        np.testing.assert_allclose([p for _, p in each.top], [p for _, p in exact.top], atol=1e-3)
        ties = np.abs(expected[place] - expected[place][tokens[place + 1]]) < 1e-3
        assert abs(each.rank - exact.rank) < ties.sum()
    paged.forget(asking)


def unpaged_logits(files: ModelFiles, tokens: list[int]) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Of every position, from the same file as it is: attention with a state of its own, no blocks."""
    model = ov.Core().compile_model(
        files.folder / "openvino_model.xml", "CPU", plugin_properties(KvCacheDtype.F32)
    )
    inputs = {
        "input_ids": np.array([tokens], np.int64),
        "attention_mask": np.ones((1, len(tokens)), np.int64),
        "position_ids": np.arange(len(tokens), dtype=np.int64)[None],
        "beam_idx": np.zeros(1, np.int32),
    }
    return model.create_infer_request().infer(inputs)[0][0]
