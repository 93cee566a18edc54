"""Our engine and OpenVINO GenAI's continuous batching in one process.

    submit what is due, step, note who got tokens, again     -> Timelines, the same loop for both

The same model files (our conversion, so both with exact weights: `executor/exact_weights.py`), precision,
threads and budgets; each makes its steps one at a time. The two alternate and change who is first, so that
a noisy neighbour hits both.
"""

import time
from random import Random
from typing import Any, Protocol

import numpy as np

from bench.engine.load import Point, Timetable
from bench.engine.record import OURS, Record, Shares, When, visit_of
from headrace.core.request import Request, SamplingParams
from headrace.core.settings import Settings
from headrace.core.timeline import Timeline
from headrace.engine.engine import Engine
from headrace.executor.graph import KvCacheDtype, plugin_properties
from headrace.executor.models import ModelFiles, locate
from headrace.executor.paged import PagedExecutor, load
from headrace.measure.neighbours import Neighbours

# After headrace.executor, which keeps OpenVINO from reporting its import.
import openvino as ov  # isort: skip
import openvino_genai  # isort: skip

THEIRS = "openvino_genai"
PROMPT_TOKENS = 128
NUM_BLOCKS = 640
MAX_NUM_BATCHED_TOKENS = 512
MAX_NUM_SEQS = 64
WARM_UP_SEED = -1


class Steps(Protocol):
    """An engine that is driven from outside. Requests are numbered from 0 in each run."""

    def submit(self, number: int, prompt: list[int], max_tokens: int) -> None: ...

    def step(self) -> list[tuple[int, int]] | None:
        """(request, new tokens) of those that got some; None when there is nothing to do."""
        ...


class Ours:
    """Engine and executor in this process, as `headrace serve` runs them in its own."""

    def __init__(self, files: ModelFiles) -> None:
        model = load(files)
        self._executor = PagedExecutor(model, NUM_BLOCKS)
        self._executor.choose_form()
        self._engine = Engine(
            Settings(
                max_model_len=files.max_model_len,
                num_gpu_blocks=NUM_BLOCKS,
                block_size=model.block_size,
                max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
                max_num_seqs=MAX_NUM_SEQS,
            )
        )
        self.shares = Shares()

    def submit(self, number: int, prompt: list[int], max_tokens: int) -> None:
        now = time.monotonic_ns()
        sampling = SamplingParams(max_tokens, temperature=0.0)
        self._engine.submit(Request(str(number), tuple(prompt), sampling, now, now), now)

    def step(self) -> list[tuple[int, int]] | None:
        start = time.monotonic_ns()
        plan = self._engine.plan(start)
        planned = time.monotonic_ns()
        if plan is None:
            return None
        result = self._executor.run(plan)
        computed = time.monotonic_ns()
        outputs = self._engine.finish(plan, result, computed)
        for work in self._engine.take_ended():
            self._executor.forget(work)
        end = time.monotonic_ns()
        schedule_ns = planned - start + end - computed
        self.shares = self.shares.plus(
            Shares(schedule_ns, result.forward_ns, result.sample_ns, end - start, steps=1)
        )
        return [(int(output.request_id), len(output.token_ids)) for output in outputs]


class Theirs:
    """OpenVINO GenAI's ContinuousBatchingPipeline under the same budgets."""

    def __init__(self, files: ModelFiles) -> None:
        config = openvino_genai.SchedulerConfig()
        config.num_kv_blocks = NUM_BLOCKS
        config.max_num_batched_tokens = MAX_NUM_BATCHED_TOKENS
        config.max_num_seqs = MAX_NUM_SEQS
        config.dynamic_split_fuse = True
        config.enable_prefix_caching = True
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            str(files.folder), config, "CPU", plugin_properties(KvCacheDtype.AUTO)
        )
        self._handles: dict[int, Any] = {}
        self._requests = 0

    def submit(self, number: int, prompt: list[int], max_tokens: int) -> None:
        generation = openvino_genai.GenerationConfig(
            max_new_tokens=max_tokens, ignore_eos=True, do_sample=False
        )
        self._requests += 1
        tokens = ov.Tensor(np.array([prompt], np.int64))
        self._handles[number] = self._pipeline.add_request(self._requests, tokens, generation)

    def step(self) -> list[tuple[int, int]] | None:
        if not self._pipeline.has_non_finished_requests():
            self._handles.clear()
            return None
        self._pipeline.step()
        got: list[tuple[int, int]] = []
        for number, handle in list(self._handles.items()):
            if not handle.can_read():
                continue
            (output,) = handle.read().values()
            got.append((number, len(output.generated_ids)))
            if output.finish_reason != openvino_genai.GenerationFinishReason.NONE:
                del self._handles[number]
        return got


def drive(engine: Steps, arrivals: Timetable) -> list[Timeline]:
    """Run a timetable to its end. Prompts are random tokens, as many as the ask has words."""
    prompts = [_tokens(arrival.ask.prompt) for arrival in arrivals]
    began_at, sent_at = time.monotonic(), list[float]()
    token_at: list[list[float]] = [[] for _ in arrivals]
    while True:
        now = time.monotonic() - began_at
        while len(sent_at) < len(arrivals) and arrivals[len(sent_at)].due_at <= now:
            number = len(sent_at)
            engine.submit(number, prompts[number], arrivals[number].ask.max_tokens)
            sent_at.append(time.monotonic() - began_at)
        got = engine.step()
        if got is None:
            if len(sent_at) == len(arrivals):
                break
            time.sleep(max(0.0, arrivals[len(sent_at)].due_at - (time.monotonic() - began_at)))
            continue
        now = time.monotonic() - began_at
        for number, tokens in got:
            token_at[number] += [now] * tokens
    return [
        Timeline(
            request_id=arrival.ask.request_id,
            request_class=arrival.ask.request_class,
            prompt_tokens=len(prompts[number]),
            due_at=arrival.due_at,
            sent_at=sent_at[number],
            token_at=tuple(token_at[number]),
            finish_reason="length",
        )
        for number, arrival in enumerate(arrivals)
    ]


class InProcess:
    """Both engines, loaded once."""

    def __init__(self) -> None:
        files = locate("smollm2")
        self._ours, self._theirs = Ours(files), Theirs(files)

    def warm_up(self, point: Point) -> None:
        """The first pass of each compiles kernels."""
        for engine in (self._ours, self._theirs):
            drive(engine, point.timetables(WARM_UP_SEED, PROMPT_TOKENS, 1.0)[0])

    def round(self, point: Point, when: When, mixed_s: float, record: Record) -> None:
        """One burst, or one run of the mix, for each."""
        arrivals = point.timetables(when.seed, PROMPT_TOKENS, mixed_s)[0]
        names = (OURS, THEIRS) if when.seed % 2 == 0 else (THEIRS, OURS)
        for name in names:
            self._ours.shares = Shares()
            neighbours = Neighbours()
            lives = drive(self._ours if name == OURS else self._theirs, arrivals)
            shares = self._ours.shares if name == OURS else None
            record.add(visit_of(when, name, point.name, [lives], neighbours.cores(), shares))


def _tokens(prompt: str) -> list[int]:
    """The same for the same words."""
    chance = Random(prompt)
    return [chance.randrange(1000, 40000) for _ in prompt.split()]
