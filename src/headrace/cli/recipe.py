"""Builds the embedded engine, inside the engine's own process.

Imported there too, so it imports no command line and no web stack. What the flags left open
is decided here, where the model is known: how many blocks the memory gives, and whether one
request of full length fits into them.
"""

import threading
from dataclasses import dataclass, replace

from headrace.capacity.kv import (
    KvBudget,
    blocks_for_tokens,
    budget_for_bytes,
    default_kv_cache_memory_bytes,
)
from headrace.cli.memory import available_bytes
from headrace.core.errors import BadInput
from headrace.core.ports import Executor
from headrace.core.request import Request, SamplingParams
from headrace.core.settings import SchedulingPolicy, Settings
from headrace.core.versions import VLLM_VERSION
from headrace.engine.engine import Engine
from headrace.executor.graph import KvCacheDtype
from headrace.executor.models import ModelFiles
from headrace.executor.paged import PagedExecutor, PagedModel, load
from headrace.net.engine_process import Built
from headrace.net.messages import Budget

WARM_UP_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Flags:
    """The budgets as they were given. None: to be decided from the model and the memory."""

    max_model_len: int
    max_num_batched_tokens: int
    max_num_seqs: int
    long_prefill_token_threshold: int
    enable_chunked_prefill: bool
    enable_prefix_caching: bool
    scheduling_policy: SchedulingPolicy
    scheduler_reserve_full_isl: bool
    watermark: float
    block_size: int | None
    kv_cache_memory_bytes: int | None
    num_gpu_blocks_override: int | None
    slo: str = ""
    vllm_version: str = VLLM_VERSION
    shrink_max_model_len: bool = False
    """Whether less than `max_model_len` will do where it does not fit (`auto`)."""
    warmup: bool = True
    kv_cache_dtype: str = KvCacheDtype.AUTO.value
    expand_weights: bool = False
    block_sample: float = 0.0
    """Share of the KV blocks whose lives are measured."""

    def settings(self, num_gpu_blocks: int, block_size: int) -> Settings:
        """Raises `BadInput` where the budgets contradict each other."""
        return Settings(
            max_model_len=self.max_model_len,
            num_gpu_blocks=num_gpu_blocks,
            block_size=block_size,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_num_seqs=self.max_num_seqs,
            enable_chunked_prefill=self.enable_chunked_prefill,
            enable_prefix_caching=self.enable_prefix_caching,
            long_prefill_token_threshold=self.long_prefill_token_threshold,
            scheduling_policy=self.scheduling_policy,
            slo=self.slo,
            scheduler_reserve_full_isl=self.scheduler_reserve_full_isl,
            watermark=self.watermark,
            vllm_version=self.vllm_version,
        )


@dataclass(frozen=True, slots=True)
class EngineRecipe:
    """Picklable; called once, in the engine's process."""

    files: ModelFiles
    flags: Flags

    def __call__(self) -> Built:
        model = load(self.files, self.flags.kv_cache_dtype, expand_weights=self.flags.expand_weights)
        # The first request with a grammar would wait a second for it, and everybody else with it.
        vocabulary = threading.Thread(target=model.grammars.prepare, name="vocabulary", daemon=True)
        vocabulary.start()
        kv = _kv_budget(self.flags, model)
        flags = self.flags
        if flags.shrink_max_model_len:
            flags = replace(flags, max_model_len=min(flags.max_model_len, kv.usable_tokens))
        settings = flags.settings(kv.num_blocks, model.block_size)
        executor = PagedExecutor(model, kv.num_blocks)
        if flags.warmup:
            warm_up(executor, settings)
            executor.choose_form()
            vocabulary.join()  # done by now as a rule; else it would take its time from the first request
        kept_as = KvCacheDtype.F32 if model.kv_cache_dtype is KvCacheDtype.AUTO else model.kv_cache_dtype
        budget = Budget(model.weights_bytes, kv.total_bytes, kept_as.value)
        engine = Engine(settings)
        if flags.block_sample:
            engine.watch_blocks(flags.block_sample)
        return Built(engine, executor, budget)


def warm_up(executor: Executor, settings: Settings) -> None:
    """Run one short request through an engine of its own.

    The first pass over a prompt and the first over single tokens cost most of a second each: weights are
    laid out for them. No further length does (docs/log.md). It draws, because the first draw makes the
    table that all others use.
    """
    engine = Engine(settings)
    room = min(settings.max_model_len, settings.usable_blocks * settings.block_size)
    prompt = tuple(range(min(WARM_UP_TOKENS, room - 1)))
    engine.submit(Request("warm-up", prompt, SamplingParams(max_tokens=2, temperature=1.0), 0, 0), 0)
    while (plan := engine.plan(0)) is not None:
        engine.finish(plan, executor.run(plan), 0)
    for work in engine.take_ended():
        executor.forget(work)


def _kv_budget(flags: Flags, model: PagedModel) -> KvBudget:
    """Raises `BadInput` when one request of full length would not fit, as vLLM does."""
    if flags.block_size not in {None, model.block_size}:
        raise BadInput(
            f"--block-size is {flags.block_size}; this device keeps {model.block_size} tokens in a KV block",
            f"leave --block-size out, or give {model.block_size}",
        )
    if flags.num_gpu_blocks_override is not None:
        return KvBudget(flags.num_gpu_blocks_override, model.block_size, model.kv_bytes_per_block)
    given = flags.kv_cache_memory_bytes
    if given is None:
        given = default_kv_cache_memory_bytes(available_bytes())
    kv = budget_for_bytes(given, model.kv_bytes_per_block, model.block_size)
    if kv.usable_tokens < flags.max_model_len and not flags.shrink_max_model_len:
        blocks = blocks_for_tokens(flags.max_model_len, model.block_size) + 1  # one is the null block
        needed = blocks * model.kv_bytes_per_block
        raise BadInput(
            f"one request of {flags.max_model_len} tokens needs {needed:,} bytes of KV cache; there are "
            f"{given:,}, enough for {kv.usable_tokens} tokens",
            f"--kv-cache-memory-bytes {-(-needed >> 20)}M, or --max-model-len {kv.usable_tokens} (or auto)",
        )
    return kv
