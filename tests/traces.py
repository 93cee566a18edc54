"""Random traces for whatever schedules: settings, requests, cancels, and what a model would say.

Every trace comes from one seed, so a failure is told in one number. `scheduler/stored/digests.json`
holds what vLLM's scheduler decided for the first of them: whoever changes the generator renews
that file against vLLM (`python -m bench.parity --store`).
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from zlib import crc32

import msgspec

from headrace.core.plan import Plan
from headrace.core.request import Request, SamplingParams
from headrace.core.settings import SchedulingPolicy, Settings
from headrace.core.versions import rules_of

VLLM_POLICIES = (SchedulingPolicy.FCFS, SchedulingPolicy.PRIORITY)


@dataclass(frozen=True, slots=True)
class Planned:
    """One request of a trace: it comes before step `at_step` and is cancelled before `cancel_at_step`."""

    request: Request
    at_step: int
    cancel_at_step: int | None
    cancelled_while_it_runs: bool = False
    """The cancel comes when that step is planned and not booked yet."""


@dataclass(frozen=True, slots=True)
class Trace:
    settings: Settings
    requests: tuple[Planned, ...]
    vocabulary: int
    seed: int

    def token(self, request_id: str, position: int) -> int:
        """What the model says after `position` tokens. A tiny vocabulary makes stops and repeats frequent."""
        return crc32(f"{self.seed}/{request_id}/{position}".encode()) % self.vocabulary

    def answers(self, plan: Plan) -> list[int | None]:
        """A token for each chunk that samples, whatever the step it comes in."""
        return [
            self.token(chunk.work.request.request_id, chunk.start + chunk.tokens) if chunk.samples else None
            for chunk in plan.chunks
        ]

    def arrivals(self, step: int) -> Iterator[Request]:
        return (planned.request for planned in self.requests if planned.at_step == step)

    def cancels(self, step: int) -> Iterator[str]:
        """Before `step` is planned."""
        return self._cancels(step, while_it_runs=False)

    def cancels_while_it_runs(self, step: int) -> Iterator[str]:
        """When `step` is planned and not booked yet."""
        return self._cancels(step, while_it_runs=True)

    def _cancels(self, step: int, *, while_it_runs: bool) -> Iterator[str]:
        return (
            planned.request.request_id
            for planned in self.requests
            if planned.cancel_at_step == step and planned.cancelled_while_it_runs == while_it_runs
        )

    @property
    def last_step(self) -> int:
        return max(planned.at_step for planned in self.requests)


@dataclass(frozen=True, slots=True)
class StoredTrace:
    """A trace worth keeping, and what vLLM decided: the digest of all its steps."""

    trace: Trace
    vllm: str


def write_trace(path: Path, trace: Trace, vllm: str) -> None:
    path.write_bytes(msgspec.json.encode(StoredTrace(trace, vllm)) + b"\n")


def read_trace(path: Path) -> StoredTrace:
    return msgspec.json.decode(path.read_bytes(), type=StoredTrace)


def make_trace(seed: int) -> Trace:
    """Pools from starving to ample, all policies and limits, shared prefixes, ties, cancels."""
    rng = random.Random(seed)
    settings = _make_settings(rng)
    vocabulary = rng.choice([2, 3, 1000])
    prefixes = [_words(rng, vocabulary, settings.max_model_len - 2) for _ in range(3)]
    requests: list[Planned] = []
    for number in range(rng.randint(1, 25)):
        shared = (
            rng.choice(prefixes)[: rng.randrange(1, settings.max_model_len)] if rng.random() < 0.5 else []
        )
        prompt = [*shared, *_words(rng, vocabulary, settings.max_model_len - 2)]
        prompt = prompt[: rng.randrange(1, settings.max_model_len - 1)]
        arrival = rng.randrange(4)
        request = Request(
            request_id=f"r{number}",
            prompt_token_ids=tuple(prompt),
            sampling=SamplingParams(
                max_tokens=rng.randint(1, settings.max_model_len),
                eos_token_id=rng.choice([None, None, 1]),
                stop_token_ids=rng.choice([frozenset[int](), frozenset({0})]),
            ),
            arrived_ns=arrival,
            handed_ns=arrival,
            priority=rng.randrange(3),
        )
        at_step = rng.choice([0, rng.randrange(60)])
        cancel_at = rng.choice([None, None, None, at_step + rng.randrange(40)])
        requests.append(Planned(request, at_step, cancel_at))
    return Trace(settings, tuple(requests), vocabulary, seed)


def make_harder_trace(seed: int) -> Trace:
    """That of `make_trace`, half of the cancels while a step runs, some prompts a pattern that repeats."""
    rng = random.Random(f"harder {seed}")
    trace = make_trace(seed)
    requests: list[Planned] = []
    for planned in trace.requests:
        request = planned.request
        if rng.random() < 0.2:
            prompt = request.prompt_token_ids
            pattern = prompt[: rng.choice([1, 3, trace.settings.block_size])]
            repeated = (pattern * len(prompt))[: len(prompt)]
            request = replace(request, prompt_token_ids=repeated)
        while_it_runs = planned.cancel_at_step is not None and rng.random() < 0.5
        requests.append(replace(planned, request=request, cancelled_while_it_runs=while_it_runs))
    return replace(trace, requests=tuple(requests))


def as_of(version: str, trace: Trace) -> Trace:
    """The same for an earlier vLLM, without settings that it does not have."""
    watermark = trace.settings.watermark if rules_of(version).has_watermark else 0.0
    return replace(trace, settings=replace(trace.settings, vllm_version=version, watermark=watermark))


def make_ending_trace(seed: int) -> Trace:
    """A trace that surely ends.

    Without the full-prompt gate, requests that tie in priority and arrival can preempt one
    another for ever; vLLM's scheduler does the same (docs/log.md). The default is on.
    """
    trace = make_trace(seed)
    return replace(trace, settings=replace(trace.settings, scheduler_reserve_full_isl=True))


def _make_settings(rng: random.Random) -> Settings:
    block_size = rng.choice([1, 2, 4, 8, 16, 32])
    max_model_len = rng.choice([64, 128, 256])
    max_num_seqs = rng.choice([1, 2, 3, 8, 16])
    chunked = rng.random() < 0.8
    enough = -(-max_model_len // block_size)
    batched = rng.choice([1, 4, 16, 32, 64, 256]) if chunked else max_model_len * rng.choice([1, 2])
    return Settings(
        max_model_len=max_model_len,
        num_gpu_blocks=rng.choice([enough + 1, enough + 2, enough * 3 // 2 + 1, enough * 3, enough * 10]),
        block_size=block_size,
        max_num_batched_tokens=max(max_num_seqs, batched),
        max_num_seqs=max_num_seqs,
        enable_chunked_prefill=chunked,
        enable_prefix_caching=rng.random() < 0.7,
        long_prefill_token_threshold=rng.choice([0, 0, 1, 5, 16, 40]),
        scheduling_policy=rng.choice(VLLM_POLICIES),
        scheduler_reserve_full_isl=rng.random() < 0.7,
        watermark=rng.choice([0.0, 0.0, 0.05, 0.3]),
        async_scheduling=rng.random() < 0.5,
    )


def _words(rng: random.Random, vocabulary: int, most: int) -> list[int]:
    return [rng.randrange(vocabulary) for _ in range(rng.randrange(1, most))]
