"""For each mechanism the evidence that shows it, and the nearest that does not."""

from collections.abc import Mapping

import pytest

from headrace.diagnose.finding import Label
from tests.diagnose.samples import first, incident

Parts = Mapping[str, object]
RUNS = {"vllm:num_requests_running": [3, 3], "vllm:num_requests_waiting": [0, 0]}
PAIRS: dict[str, tuple[Label, Parts, Parts]] = {
    "no token between two scrapes while requests run": (
        Label.STALL,
        {"metrics": RUNS | {"vllm:generation_tokens_total": [900, 900]}},
        {"metrics": RUNS | {"vllm:generation_tokens_total": [900, 1900]}},
    ),
    "requests open at the client of which the engine knows nothing": (
        Label.STALL,
        {"metrics": {"sglang:num_running_reqs": 0, "sglang:num_queue_reqs": 0, "client:unfinished": 12}},
        {"metrics": {"sglang:num_running_reqs": 12, "sglang:num_queue_reqs": 0, "client:unfinished": 12}},
    ),
    "skipped requests that hold the admission limit": (
        Label.STALL,
        {
            "metrics": {
                "vllm:num_requests_running": [29, 3],
                "vllm:num_requests_waiting": [90, 220],
                "vllm:num_requests_waiting_by_reason{reason=deferred}": [90, 220],
                "vllm:kv_cache_usage_perc": [0.6, 0.2],
            }
        },
        {
            "metrics": {
                "vllm:num_requests_running": [29, 29],
                "vllm:num_requests_waiting": [90, 90],
                "vllm:num_requests_waiting_by_reason{reason=deferred}": [90, 90],
                "vllm:kv_cache_usage_perc": [0.6, 0.6],
            }
        },
    ),
    "shared memory of the host is full": (
        Label.HOST_MEMORY,
        {
            "metrics": {"host:dev_shm_used_perc": 100},
            "log": ["RuntimeError: NCCL error: unhandled system error"],
        },
        {
            "metrics": {"host:dev_shm_used_perc": 12},
            "log": ["RuntimeError: NCCL error: unhandled system error"],
        },
    ),
    "swap space for every rank": (
        Label.HOST_MEMORY,
        {
            "flags": {"swap-space": 16, "tensor-parallel-size": 8},
            "hardware": {"ram_gib": 128},
            "version": "0.6.0",
        },
        {
            "flags": {"swap-space": 4, "tensor-parallel-size": 2},
            "hardware": {"ram_gib": 128},
            "version": "0.6.0",
        },
    ),
    "an out-of-memory in the sampler": (
        Label.OOM_PEAK,
        {"log": ["File sampler.py, line 86, in forward", "torch.OutOfMemoryError: CUDA out of memory."]},
        {"log": ["in load_weights", "torch.OutOfMemoryError: CUDA out of memory."]},
    ),
    "shards that are still being read": (
        Label.OOM_WEIGHTS,
        {"log": ["Loading safetensors checkpoint shards:  40% Completed | 2/5", "CUDA out of memory."]},
        {"log": ["Loading safetensors checkpoint shards: 100% Completed | 5/5", "CUDA out of memory."]},
    ),
    "a first token that comes with the last": (
        Label.CLIENT,
        {"metrics": {"client:ttft_p50_s": 4.1, "client:e2e_p50_s": 4.2}, "workload": {"output_tokens": 300}},
        {"metrics": {"client:ttft_p50_s": 0.4, "client:e2e_p50_s": 4.2}, "workload": {"output_tokens": 300}},
    ),
    "a client that waits for each answer": (
        Label.CLIENT,
        {"metrics": RUNS | {"vllm:num_requests_running": [1, 1]}, "workload": {"batch_size": 64}},
        {"metrics": RUNS | {"vllm:num_requests_running": [64, 64]}, "workload": {"batch_size": 64}},
    ),
    "synthetic prompts that hit the cache": (
        Label.MEASUREMENT,
        {"metrics": RUNS | {"log:prefix_hit_rate": 0.8}, "workload": {"dataset": "synthetic"}},
        {"metrics": RUNS | {"log:prefix_hit_rate": 0.8}, "workload": {"dataset": "chats of users"}},
    ),
    "prompt tokens of which most were cached": (
        Label.MEASUREMENT,
        {"metrics": {"promql:prompt_tok_s": 50_000, "log:prompt_tok_s": 8000, "log:prefix_hit_rate": 0.84}},
        {"metrics": {"promql:prompt_tok_s": 8100, "log:prompt_tok_s": 8000, "log:prefix_hit_rate": 0.84}},
    ),
    "metrics whose updates are off": (
        Label.MEASUREMENT,
        {"flags": {"disable-log-stats": True}, "metrics": {"vllm:num_requests_running": 0}},
        {"flags": {"disable-log-stats": True}, "metrics": {"vllm:num_requests_running": 4}},
    ),
    "a prompt beyond a pool that was overridden": (
        Label.BAD_FLAGS,
        {"flags": {"num-gpu-blocks-override": 50}, "workload": {"prompt_tokens": 1002}},
        {"flags": {"num-gpu-blocks-override": 500}, "workload": {"prompt_tokens": 1002}},
    ),
    "a setting for debugging": (
        Label.BAD_FLAGS,
        {"workload": {"env": {"VLLM_TRACE_FUNCTION": 1}}, "metrics": {"startup:total_s": 3600}},
        {"workload": {"env": {"VLLM_LOGGING_LEVEL": "INFO"}}, "metrics": {"startup:total_s": 3600}},
    ),
    "peer access turned off": (
        Label.INTERCONNECT,
        {"flags": {"tensor-parallel-size": 4}, "workload": {"env": {"NCCL_P2P_DISABLE": 1}}},
        {"flags": {"tensor-parallel-size": 1}, "workload": {"env": {"NCCL_P2P_DISABLE": 1}}},
    ),
    "a probe that ends the start": (
        Label.COLD_START,
        {"log": ["Starting to load model m", "Container vllm failed liveness probe, will be restarted"]},
        {"log": ["INFO: Application startup complete.", "Container vllm failed liveness probe"]},
    ),
    "a probe that fails because there is work": (
        Label.BAD_FLAGS,
        {
            "log": [
                "INFO: Application startup complete.",
                "Liveness probe failed: context deadline exceeded",
            ],
            "metrics": {"vllm:num_requests_running": [60, 64], "vllm:num_requests_waiting": [9, 30]},
        },
        {
            "log": [
                "INFO: Application startup complete.",
                "Liveness probe failed: context deadline exceeded",
            ],
            "metrics": {"vllm:num_requests_running": [0, 0], "vllm:num_requests_waiting": [9, 30]},
        },
    ),
    "requests that come again": (
        Label.CLIENT,
        {"metrics": {"client:requests": 300, "vllm:request_success_total": 900}},
        {"metrics": {"client:requests": 900, "vllm:request_success_total": 900}},
    ),
    "a clock that falls at the power limit": (
        Label.COMPUTE,
        {"metrics": {"gpu:sm_clock_mhz": [1980, 1200], "gpu:power_w": 300, "gpu:power_limit_w": 300}},
        {"metrics": {"gpu:sm_clock_mhz": [1980, 1200], "gpu:power_w": 90, "gpu:power_limit_w": 300}},
    ),
    "steps that more users share": (
        Label.EXPECTED,
        {
            "metrics": {
                "client:tok_s_per_user_c1": 95,
                "client:tok_s_per_user_c32": 48,
                "client:total_tok_s_c1": 95,
                "client:total_tok_s_c32": 1536,
            }
        },
        {
            "metrics": {
                "client:tok_s_per_user_c1": 95,
                "client:tok_s_per_user_c32": 3,
                "client:total_tok_s_c1": 95,
                "client:total_tok_s_c32": 96,
            }
        },
    ),
    "a slow tokenizer": (
        Label.CPU,
        {
            "log": [
                "WARNING tokenizer.py:66] Using a slow tokenizer. This might cause a significant slowdown."
            ]
        },
        {"log": ["INFO tokenizer.py:66] Using a fast tokenizer."]},
    ),
    "one stream far below what its weights allow": (
        Label.CPU,
        {
            "metrics": {"client:decode_tok_s": 38},
            "hardware": {"bandwidth_gb_s": 936},
            "workload": {"weights_gb": 4.4, "client_concurrency": 1},
        },
        {
            "metrics": {"client:decode_tok_s": 150},
            "hardware": {"bandwidth_gb_s": 936},
            "workload": {"weights_gb": 4.4, "client_concurrency": 1},
        },
    ),
    "a pool that start-up gives away": (
        Label.KV_CAPACITY,
        {"log": ["WARNING Hybrid KV cache manager is disabled for this hybrid model, This means"]},
        {"log": ["WARNING Add 2 padding layers, may waste at most 6.67% KV cache memory"]},
    ),
    "a cap that was lowered at start": (
        Label.QUEUEING,
        {"log": ["max_running_requests was reduced from requested 128 to 50"], "engine": "sglang"},
        {"log": ["max_running_requests is 128"], "engine": "sglang"},
    ),
    "an answer without an end": (
        Label.STALL,
        {"log": ["slot 0: context shift - n_keep = 1, n_left = 9, n_discard = 4"] * 3, "engine": "llama.cpp"},
        {"log": ["slot 0: context shift - n_keep = 1, n_left = 9, n_discard = 4"], "engine": "llama.cpp"},
    ),
    "requests that their client gives up": (
        Label.CLIENT,
        {"log": ["INFO engine.py:298] Aborted request chatcmpl-9"], "metrics": RUNS},
        {"log": ["INFO engine.py:280] Added request chatcmpl-9"], "metrics": RUNS},
    ),
    "weights of fewer bytes that are slower": (
        Label.BAD_FLAGS,
        {"metrics": {"client:ttft_p50_ms_bf16": 547, "client:ttft_p50_ms_fp8": 1010}},
        {"metrics": {"client:ttft_p50_ms_bf16": 547, "client:ttft_p50_ms_fp8": 410}},
    ),
    "one pod that makes all tokens": (
        Label.DP_IMBALANCE,
        {"metrics": {"vllm:generation_tokens_total{pod=a}": 1845, "vllm:generation_tokens_total{pod=b}": 19}},
        {
            "metrics": {
                "vllm:generation_tokens_total{pod=a}": 1845,
                "vllm:generation_tokens_total{pod=b}": 1519,
            }
        },
    ),
    "storage that is slower than a start can wait for": (
        Label.COLD_START,
        {
            "metrics": {"startup:load_s": 90},
            "hardware": {"disk_mb_s": 20},
            "log": ["Starting to load model m"],
        },
        {"metrics": {"gpu:utilization_perc": 90}, "hardware": {"disk_mb_s": 20}},
    ),
    "garbage collection between steps": (
        Label.CPU,
        {"metrics": {"host:gc_gen2_ms": 150, "client:itl_p99_ms": 210}},
        {"metrics": {"host:gc_gen2_ms": 2, "client:itl_p99_ms": 210}},
    ),
    "more sent at once than may run": (
        Label.QUEUEING,
        {"metrics": {"client:ttft_mean_s": 120}, "workload": {"requests": 9000, "arrival": "all at once"}},
        {"metrics": {"client:ttft_mean_s": 120}, "workload": {"requests": 90, "arrival": "all at once"}},
    ),
    "a pool that is less than a start needs": (
        Label.OOM_KV,
        {"metrics": {"startup:kv_gib_needed": 12.1, "startup:kv_gib": 10.5}},
        {"metrics": {"startup:kv_gib_needed": 12.1, "startup:kv_gib": 12.5}},
    ),
    "a context that is divided among slots": (
        Label.BAD_FLAGS,
        {
            "engine": "llama.cpp",
            "flags": {"ctx-size": 8192, "parallel": 2},
            "metrics": {"startup:n_ctx_slot": 4096},
        },
        {
            "engine": "llama.cpp",
            "flags": {"ctx-size": 8192, "parallel": 1},
            "metrics": {"startup:n_ctx_slot": 8192},
        },
    ),
    "a histogram below its first edge": (
        Label.MEASUREMENT,
        {
            "metrics": {
                'vllm:time_to_first_token_seconds_bucket{le="0.001"}': 208,
                'vllm:time_to_first_token_seconds_bucket{le="0.08"}': 208,
            }
        },
        {
            "metrics": {
                'vllm:time_to_first_token_seconds_bucket{le="0.001"}': 2,
                'vllm:time_to_first_token_seconds_bucket{le="0.08"}': 208,
            }
        },
    ),
    "a difference of quantiles below zero": (
        Label.MEASUREMENT,
        {"metrics": {"client:ttft_p50_s_router_minus_engine": -0.12}},
        {"metrics": {"client:ttft_p50_s_router_minus_engine": 0.12}},
    ),
    "a card that does nothing but read": (
        Label.COMPUTE,
        {"metrics": {"gpu:busy_perc": 99.7}, "workload": {"prompt_tokens": 200_000, "max_tokens": 1}},
        {"metrics": {"gpu:busy_perc": 99.7}, "workload": {"prompt_tokens": 200_000, "max_tokens": 4000}},
    ),
    "a feature that the better run lacks": (
        Label.BAD_FLAGS,
        {"metrics": {"client:decode_tok_s": 5, "client:decode_tok_s_without_lora": 27}},
        {"metrics": {"client:decode_tok_s": 26, "client:decode_tok_s_without_lora": 27}},
    ),
    "a ratio beside what it is compared with": (
        Label.BAD_FLAGS,
        {"metrics": {"client:slowdown_x": 4}, "workload": {"compared_with": "no LoRA"}},
        {"metrics": {"client:slowdown_x": 1.05}, "workload": {"compared_with": "no LoRA"}},
    ),
    "a flag that is named as the difference": (
        Label.QUEUEING,
        {
            "metrics": {"client:ttft_mean_ms": 720, "client:ttft_mean_ms_limit_8": 470},
            "workload": {"setting": "max-num-partial-prefills"},
        },
        {
            "metrics": {"client:ttft_mean_ms": 720, "client:ttft_mean_ms_limit_8": 700},
            "workload": {"setting": "max-num-partial-prefills"},
        },
    ),
    "a start of minutes, whatever its name": (
        Label.COLD_START,
        {"metrics": {"startup:minutes": 60, "startup:minutes_prefetch": 12}},
        {"metrics": {"startup:seconds": 20, "startup:seconds_prefetch": 12}},
    ),
    "few are late, behind prompts of many steps": (
        Label.QUEUEING,
        {
            "flags": {"max-num-batched-tokens": 8192},
            "metrics": {"client:share_ttft_above_60s": 0.1},
            "workload": {"prompt_tokens": 642_000},
        },
        {
            "flags": {"max-num-batched-tokens": 8192},
            "metrics": {"client:share_ttft_above_60s": 0.9},
            "workload": {"prompt_tokens": 642_000},
        },
    ),
    "an allocation that failed while turns were served": (
        Label.OOM_PEAK,
        {
            "log": ["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 50.00 MiB."],
            "hardware": {"gpu": "RTX 3090"},
            "workload": {"model": "Qwen3.6-27B", "accumulated_context": 26_000},
        },
        {
            "log": ["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 50.00 MiB."],
            "hardware": {"gpu": "RTX 3090"},
            "workload": {"model": "Qwen3.6-27B"},
        },
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_mechanism_is_seen_where_it_shows_and_not_beside(name: str) -> None:
    label, shows, beside = PAIRS[name]

    assert first(incident(**shows)) is label
    assert first(incident(**beside)) is not label
