"""The other side of the lockstep: vLLM 0.32's own scheduler, run by the Python of vLLM's environment.

    a trace a line on stdin  ->  a line of digests on stdout, or the decisions in full when asked

Started once and fed many traces, because vLLM takes 10 to 40 seconds to import. Nothing of
headrace runs here but the trace's data and the record that is compared.
"""

import os
import sys
from collections import deque
from collections.abc import Iterable
from dataclasses import fields
from functools import cache
from typing import Any

import msgspec
import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from bench.parity.decisions import MOST_STEPS, Decisions
from headrace.core.settings import Settings
from tests.traces import Planned, Trace

InFlight = tuple[SchedulerOutput, ModelRunnerOutput]
block_hasher = cache(lambda block_size: get_request_block_hasher(block_size, sha256))


@cache
def model_config(max_model_len: int) -> ModelConfig:
    """Slow to build and the same for all traces of one length; only the folder's config.json is read."""
    return ModelConfig(
        model=os.environ["HEADRACE_VLLM_MODEL"],
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=max_model_len,
        seed=0,
    )


def make_scheduler(settings: Settings) -> Scheduler:
    later: dict[str, Any] = {
        "watermark": settings.watermark,
        "scheduler_reserve_full_isl": settings.scheduler_reserve_full_isl,
    }
    known = {field.name for field in fields(SchedulerConfig)}
    config = VllmConfig(
        model_config=model_config(settings.max_model_len),
        scheduler_config=SchedulerConfig(
            max_model_len=settings.max_model_len,
            is_encoder_decoder=False,
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            enable_chunked_prefill=settings.enable_chunked_prefill,
            policy=settings.scheduling_policy.value,
            long_prefill_token_threshold=settings.long_prefill_token_threshold,
            **{name: value for name, value in later.items() if name in known},
        ),
        cache_config=CacheConfig(
            block_size=settings.block_size, enable_prefix_caching=settings.enable_prefix_caching
        ),
        parallel_config=ParallelConfig(),
        device_config=DeviceConfig("cpu"),
    )
    config.cache_config.num_gpu_blocks = settings.num_gpu_blocks
    config.scheduler_config.async_scheduling = settings.async_scheduling  # the CPU platform forced it off
    group = FullAttentionSpec(
        block_size=settings.block_size, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    blocks = KVCacheConfig(
        num_blocks=settings.num_gpu_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], group)],
    )
    kind = AsyncScheduler if settings.async_scheduling else Scheduler
    return kind(
        config, blocks, StructuredOutputManager(config), block_size=settings.block_size, log_stats=True
    )


def make_request(planned: Planned, settings: Settings) -> Request:
    request, sampling = planned.request, planned.request.sampling
    params = SamplingParams(
        max_tokens=sampling.max_tokens,
        ignore_eos=sampling.eos_token_id is None,
        stop_token_ids=sorted(sampling.stop_token_ids),
    )
    if sampling.eos_token_id is not None:
        params._eos_token_id = sampling.eos_token_id  # noqa: SLF001 - set by vLLM's front end, which is not here
    return Request(
        request_id=request.request_id,
        prompt_token_ids=list(request.prompt_token_ids),
        sampling_params=params,
        pooling_params=None,
        arrival_time=float(request.arrived_ns),
        priority=request.priority,
        block_hasher=block_hasher(settings.block_size) if settings.enable_prefix_caching else None,
    )


def vllm_decisions(trace: Trace) -> list[Decisions]:
    """Play `trace` on vLLM's scheduler."""
    scheduler = make_scheduler(trace.settings)
    in_flight: deque[InFlight] = deque()
    steps: list[Decisions] = []
    while len(steps) < MOST_STEPS and (len(steps) <= trace.last_step or scheduler.has_unfinished_requests()):
        number = len(steps)
        for planned in trace.requests:
            if planned.at_step == number:
                scheduler.add_request(make_request(planned, trace.settings))
        for request_id in trace.cancels(number):
            scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)
        steps.append(one_step(scheduler, trace, in_flight, trace.cancels_while_it_runs(number)))
    return steps


def one_step(
    scheduler: Scheduler, trace: Trace, in_flight: deque[InFlight], cancels: Iterable[str]
) -> Decisions:
    output = scheduler.schedule()
    scheduled = list(output.num_scheduled_tokens.items())
    in_flight.append((output, model_output(scheduler, output, trace)))
    admitted = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
    cached = output.scheduled_cached_reqs
    computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    admitted |= {request_id: computed[request_id] for request_id in cached.resumed_req_ids}
    running = [request.request_id for request in scheduler.running]
    waiting = [request.request_id for request in scheduler.waiting]
    block_ids = [list(scheduler.kv_cache_manager.get_block_ids(name)[0]) for name in running]
    free_blocks = free_order(scheduler)
    for request_id in cancels:
        scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)
    finished: list[tuple[str, str]] = []
    if len(in_flight) == trace.settings.steps_in_flight or not scheduled:
        for engine in scheduler.update_from_output(*in_flight.popleft()).values():
            finished += [
                (item.request_id, str(item.finish_reason))
                for item in engine.outputs
                if item.finish_reason is not None
            ]
    return Decisions(
        scheduled=scheduled,
        admitted=[(name, admitted[name]) for name, _ in scheduled if name in admitted],
        preempted=sorted(output.preempted_req_ids or ()),
        running=running,
        waiting=waiting,
        block_ids=block_ids,
        free_blocks=free_blocks,
        finished=finished,
        free_blocks_after=free_order(scheduler),
    )


def model_output(scheduler: Scheduler, output: SchedulerOutput, trace: Trace) -> ModelRunnerOutput:
    names = list(output.num_scheduled_tokens)
    return ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: index for index, name in enumerate(names)},
        sampled_token_ids=[answer(scheduler.requests[name], trace) for name in names],
    )


def answer(request: Request, trace: Trace) -> list[int]:
    if request.is_prefill_chunk:
        return []
    return [trace.token(request.request_id, request.num_computed_tokens)]


def free_order(scheduler: Scheduler) -> list[int]:
    queue = scheduler.kv_cache_manager.block_pool.free_block_queue
    return [block.block_id for block in queue.get_all_free_blocks()]


def main() -> None:
    in_full = sys.argv[1:] == ["--in-full"]
    answers = sys.stdout
    sys.stdout = sys.stderr  # whatever vLLM prints must not mix with the answers
    init_none_hash(sha256)
    for line in sys.stdin:
        decisions = vllm_decisions(msgspec.json.decode(line, type=Trace))
        said = decisions if in_full else [step.digest() for step in decisions]
        answers.write(msgspec.json.encode(said).decode() + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
