"""Runs a plan on OpenVINO: one forward pass over prefill chunks and decodes alike.

    plan.chunks --lists, then one array each--> tensors --infer--> logits of the sampling rows --> tokens

Knows block tables and tensors; why a chunk was chosen, or who waits, it does not. Keys and values
are written by the pass itself into the blocks that a chunk's work names, so a block that two works
share is computed once and nothing is ever copied. Block 0 belongs to nobody.
"""

import time
from functools import partial

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from headrace.core.errors import ModelUnusable
from headrace.core.plan import Plan, Work
from headrace.core.ports import StepResult
from headrace.executor.forms import FEW_TOKENS, few_tokens
from headrace.executor.graph import KvCacheDtype, PagedModel, load, plugin_properties
from headrace.executor.prompt_logprobs import Pass, PromptLogprobs, positions
from headrace.executor.sampler import Sampler

EVEN_FROM_TOKENS = 128
EVEN_TOKENS = 8
"""Above so many tokens a step is filled up to a multiple of the other. OpenVINO's matrix kernels cut the
tokens into equal blocks; 131, 149 or 158, without fit divisors, take 1.3 times as long as those around."""

TIMED_STEPS = 3

__all__ = ["KvCacheDtype", "PagedExecutor", "PagedModel", "load", "plugin_properties"]


class _Runner:
    """A compiled model that can be run, and where its inputs are."""

    def __init__(self, compiled: ov.CompiledModel) -> None:
        self.request = compiled.create_infer_request()
        self.place = {port.any_name: place for place, port in enumerate(compiled.inputs)}


class PagedExecutor:
    """A model with a KV cache of `num_blocks` blocks (the null block included). One step at a time."""

    def __init__(self, model: PagedModel, num_blocks: int) -> None:
        self.model = model
        self.num_blocks = num_blocks
        self.sampler = Sampler(model.vocab_size, model.grammars)
        self.prompts = PromptLogprobs(model.vocab_size)
        self._block_size = model.block_size
        self._for_few = _Runner(model.compiled)
        self._for_many = self._for_few if model.expanded is None else _Runner(model.expanded)
        self._runner = self._for_few
        self._few_tokens = FEW_TOKENS
        try:
            for cache in model.caches:
                tensor = ov.Tensor(cache.element_type, ov.Shape([num_blocks, *cache.block_shape]))
                for runner in (self._for_few, self._for_many):  # they share the blocks
                    runner.request.set_tensor(cache.name, tensor)  # pages are only taken as they are written
        except (RuntimeError, MemoryError) as error:
            size = num_blocks * model.kv_bytes_per_block
            raise ModelUnusable(
                f"no memory for {num_blocks} KV blocks ({size / 2**30:.2f} GiB)",
                "lower kv_cache_memory_bytes",
            ) from error

    def run(self, plan: Plan) -> StepResult:
        """Compute every chunk and draw a token for each that samples."""
        start_ns = time.monotonic_ns()
        result = StepResult([None] * len(plan.chunks))
        if not plan.chunks:
            return result
        sampling: list[int] = []
        for part in self.prompts.passes(plan):
            began_ns = time.monotonic_ns()
            sampling = self._feed(part)
            request = self._runner.request
            request.start_async()  # `infer` would copy the logits into a dictionary
            self.sampler.expect(plan)
            request.wait()
            result.forward_ns += time.monotonic_ns() - began_ns
            self._take_prompts(part, len(sampling))
        if sampling:
            self.sampler.draw(self.logits()[: len(sampling)], plan, sampling, result)
            self.prompts.give(plan, result)
        result.sample_ns = time.monotonic_ns() - start_ns - result.forward_ns
        return result

    def choose_form(self) -> None:
        """Time both forms of the weights for steps of some tokens, and keep to the faster: half a second."""
        if self._for_many is not self._for_few:
            self._few_tokens = few_tokens(
                partial(self._seconds, self._for_few), partial(self._seconds, self._for_many)
            )

    def _seconds(self, runner: _Runner, tokens: int) -> float:
        """Of a step of so many sequences of one token each, all nobody's, in the null block."""
        self._runner = runner
        ones, zeros = np.arange(tokens + 1, dtype=np.int32), np.zeros(tokens, np.int32)
        self._set("input_ids", zeros.astype(np.int64))
        self._set("past_lens", zeros)
        self._set("subsequence_begins", ones)
        self._set("position_ids", zeros.astype(np.int64))
        self._set("block_indices", zeros)
        self._set("block_indices_begins", ones)
        self._set("max_context_len", np.array(1, np.int32))
        self._set("sample_positions", ones[:-1].astype(np.int64))
        times_s: list[float] = []
        for _ in range(1 + TIMED_STEPS):
            began_s = time.monotonic()
            runner.request.start_async()
            runner.request.wait()
            times_s.append(time.monotonic() - began_s)
        return min(times_s[1:])  # the first lays out memory; whoever disturbs only adds

    def forget(self, work: Work) -> None:
        self.sampler.forget(work)
        self.prompts.forget(work)

    def logits(self) -> NDArray[np.float32]:
        """Of the last pass, a row for each chunk that sampled, then those of prompts that were asked for.

        A view: the next pass overwrites it.
        """
        logits: NDArray[np.float32] = self._runner.request.get_output_tensor(0).data
        return logits.reshape(-1, self.model.vocab_size)

    def _take_prompts(self, part: Pass, row: int) -> None:
        """`row`: the first that was asked for."""
        for index in part.asking:
            chunk = part.chunks[index]
            end = row + len(positions(chunk))
            self.prompts.take(chunk, self.logits()[row:end])
            row = end

    def _feed(self, part: Pass) -> list[int]:
        """Set the inputs; returns which chunks sample. Plain lists: a token must cost nanoseconds."""
        tokens: list[int] = []
        past: list[int] = []
        begins = [0]
        blocks: list[int] = []
        block_begins = [0]
        sampling: list[int] = []
        rows: list[int] = []
        longest = 0
        block_size = self._block_size
        for place, chunk in zip(part.places, part.chunks, strict=True):
            work, start, length = chunk.work, chunk.start, chunk.tokens
            end = start + length
            if length == 1:
                tokens.append(work.token_ids[start])
            else:
                tokens += work.token_ids[start:end]
            past.append(start)
            begins.append(len(tokens))
            blocks += work.block_ids[: -(-end // block_size)]
            missing = -(-end // block_size) - (len(blocks) - block_begins[-1])
            if missing > 0:  # cancelled since it was planned: it computes into the null block, for nobody
                blocks += [0] * missing
            block_begins.append(len(blocks))
            longest = max(longest, end)
            if chunk.samples:
                sampling.append(place)
                rows.append(len(tokens) - 1)
        for index in part.asking:
            rows += range(begins[index], begins[index] + len(positions(part.chunks[index])))
        if padding := _padding(len(tokens)):  # a sequence of nobody's, in the null block
            tokens += [0] * padding
            past.append(0)
            begins.append(len(tokens))
            blocks.append(0)
            block_begins.append(len(blocks))
        self._runner = self._for_few if len(tokens) <= self._few_tokens else self._for_many
        self._set("input_ids", np.array(tokens, np.int64))
        self._set("past_lens", np.array(past, np.int32))
        ends = np.array(begins, np.int32)
        self._set("subsequence_begins", ends)
        self._set("position_ids", _positions(past, ends))
        self._set("block_indices", np.array(blocks, np.int32))
        self._set("block_indices_begins", np.array(block_begins, np.int32))
        self._set("max_context_len", np.array(longest, np.int32))
        self._set("sample_positions", np.array(rows, np.int64))
        return sampling

    def _set(self, name: str, values: NDArray[np.int32] | NDArray[np.int64]) -> None:
        self._runner.request.set_input_tensor(self._runner.place[name], ov.Tensor(values))


def _padding(tokens: int) -> int:
    return -tokens % EVEN_TOKENS if tokens > EVEN_FROM_TOKENS else 0


def _positions(past: list[int], ends: NDArray[np.int32]) -> NDArray[np.int64]:
    """Each token's place in its own text: past, past + 1, ... chunk after chunk."""
    lengths = np.diff(ends)
    offsets = np.array(past, np.int64) - ends[:-1]
    return np.arange(ends[-1], dtype=np.int64) + np.repeat(offsets, lengths)
