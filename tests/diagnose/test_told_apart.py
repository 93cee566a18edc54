"""Two causes that look alike, and the one fact that tells them apart: each was once taken for the other."""

from pathlib import Path

import pytest

from headrace.diagnose.finding import Label, Severity
from tests.diagnose import samples
from tests.diagnose.samples import incident, of_log, stats

FREE = (
    "ValueError: Free memory on device cuda:0 ({free}/{total} GiB) on startup is less than desired GPU "
    "memory utilization ({share}, {budget} GiB). Decrease GPU memory utilization or reduce GPU memory used "
    "by other processes."
)
NO_BLOCKS = (
    "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
    "initializing the engine."
)
STALLED = "No available shared memory broadcast block found in 60 seconds."


def first(**parts: object) -> Label | None:
    return samples.first(incident(**parts))


def test_memory_that_the_host_uses_too_has_no_neighbour_on_the_card() -> None:
    log = [FREE.format(free="102.2", total="121.69", share="0.87", budget="105.87")]
    assert first(log=log, hardware={"gpu": "GB10 (DGX Spark)"}) is Label.BAD_FLAGS
    assert first(log=log, hardware={"gpu": "B200"}) is Label.NEIGHBOUR
    told = {"other_instance": "a second server on the same card"}
    assert first(log=log, hardware={"gpu": "GB10 (DGX Spark)"}, workload=told) is Label.NEIGHBOUR


def test_what_a_context_takes_of_a_small_card_is_no_neighbour() -> None:
    assert first(log=[FREE.format(free="3.22", total="4.0", share="0.9", budget="3.6")]) is Label.BAD_FLAGS
    assert first(log=[FREE.format(free="1.22", total="4.0", share="0.9", budget="3.6")]) is Label.NEIGHBOUR


def test_weights_that_fill_the_card_leave_no_blocks_and_other_models_that_were_tried_hold_nothing() -> None:
    large, small = "Qwen3-Coder-30B-A3B-Instruct-FP8", "Qwen3-8B-FP8"
    tried = {"other_models_tried": ["Qwen3.5-35B-A3B"]}
    card, flags = {"gpu": "RTX 5090", "gpu_mem_gb": 32}, {"gpu-memory-utilization": 0.95}
    assert first(log=[NO_BLOCKS], flags=flags, hardware=card, workload={"model": large} | tried) is (
        Label.OOM_WEIGHTS
    )
    assert first(log=[NO_BLOCKS], flags=flags, hardware=card, workload={"model": small}) is Label.OOM_KV


def test_what_starts_in_eager_mode_lacks_memory_for_graphs() -> None:
    parts = {
        "log": ["torch.OutOfMemoryError: CUDA out of memory"],
        "hardware": {"gpu": "A10", "gpu_count": 4},
    }
    model = {"model": "Qwen/Qwen3-30B-A3B"}
    assert first(**parts, workload=model | {"starts_with_enforce_eager": True}) is Label.OOM_PEAK
    assert first(**parts, workload=model | {"starts_with_enforce_eager": False}) is Label.OOM_WEIGHTS


def test_kernels_that_are_tried_out_keep_a_step_away_without_a_stall() -> None:
    tuner = "[AutoTuner]: Tuning flashinfer::trtllm_fp4_block_scale_moe:  50%|#####     | 11/22 [06:15<07:51]"
    assert first(log=[STALLED]) is Label.STALL
    assert first(log=[tuner, STALLED]) is not Label.STALL


def test_a_step_that_came_back_is_no_engine_that_stands(tmp_path: Path) -> None:
    """One such line anywhere, an hour of tokens behind it, was "restart the engine"."""
    busy = [stats(minute, 8, 0, 20.0, generated=512.0) for minute in range(3)]
    begins, ready = "INFO Starting to load model M...", "INFO: Application startup complete."
    ended = samples.first(of_log(tmp_path, begins, ready, busy[0], STALLED, *busy[1:]))
    in_the_start = samples.first(of_log(tmp_path, begins, STALLED, ready, *busy))
    quiet = [stats(minute, 8, 0, 20.0, prompt=0.0, generated=0.0) for minute in range(3, 6)]
    jit = "INFO flashinfer.jit: [Autotuner]: Autotuning process starts"
    stands = samples.diagnose(of_log(tmp_path, begins, jit, ready, *busy, *quiet, STALLED, STALLED))
    assert in_the_start is None
    assert ended is Label.STALL
    assert stands.severity is Severity.CRITICAL
    note = samples.diagnose(of_log(tmp_path, begins, ready, busy[0], STALLED, *busy[1:]))
    assert note.severity is Severity.NOTE


@pytest.mark.parametrize(
    "asked",
    [
        "Why do I get torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB?",
        "CUDA error: an illegal memory access was encountered; EngineDeadError",
        "No space left on device",
    ],
)
def test_what_users_ask_is_no_line_of_the_server(tmp_path: Path, asked: str) -> None:
    """A prompt in a request log was a critical out-of-memory."""
    line = f"INFO [logger.py:40] Received request chatcmpl-1: prompt: '{asked}', params: SamplingParams(n=1)"
    busy = [stats(minute, 8, 0, 20.0, generated=512.0) for minute in range(3)]
    assert samples.first(of_log(tmp_path, *busy, line)) is None


def test_a_card_that_waits_for_a_full_cpu_does_not_stand_still() -> None:
    waits = {"host:cpu_utilization_perc": 100, "gpu:utilization_perc": 0}
    assert first(log=[STALLED], metrics=waits, workload={"video_frames": 300}) is Label.CPU


def test_a_queue_behind_nobody_is_a_stall_even_after_requests_that_were_served() -> None:
    line = (
        "INFO 09-18 16:10:{s:02} metrics.py:351] Avg prompt throughput: {p} tokens/s, Avg generation "
        "throughput: {g} tokens/s, Running: {r} reqs, Swapped: 0 reqs, Pending: {w} reqs, GPU KV cache "
        "usage: 0.1%, CPU KV cache usage: 0.0%."
    )
    served = line.format(s=0, p=67.0, g=5.4, r=2, w=0)
    rows = [served, line.format(s=5, p=70.6, g=5.6, r=0, w=12), line.format(s=10, p=0.0, g=0.0, r=0, w=22)]
    assert first(log=rows) is Label.STALL
    busy = line.format(s=10, p=9000.0, g=50.0, r=9, w=22)
    assert first(log=[*rows[:2], busy]) is not Label.STALL


def test_the_page_cache_is_no_leak() -> None:
    files = {"host:rss_gb": [4, 4], "host:page_cache_gb": [28, 100], "host:pod_memory_limit_gb": [32, 116]}
    assert first(metrics=files) is Label.MEASUREMENT
    assert first(metrics={"host:rss_gb": [4, 90], "host:page_cache_gb": [28, 28]}) is Label.HOST_MEMORY


@pytest.mark.parametrize(
    ("tokens", "printed", "label"),
    [(290_864, 33.04, Label.MEASUREMENT), (1_082_654, 33.04, Label.UNDETERMINED)],
)
def test_start_up_lines_that_count_two_ways(tokens: int, printed: float, label: Label) -> None:
    log = [
        f"GPU KV cache size: {tokens:,} tokens",
        f"Maximum concurrency for 32,768 tokens per request: {printed}x",
    ]
    assert first(log=log, flags={"max-model-len": 32768}) is label


@pytest.mark.parametrize(("cap", "label"), [(4, Label.QUEUEING), (48, Label.EXPECTED)])
def test_a_cap_below_one_that_makes_many_times_the_tokens_is_what_holds_it(cap: int, label: Label) -> None:
    tried = {"sweep:max_num_seqs": [2, 48], "sweep:output_tok_s": [33, 267], "sweep:tpot_ms": [60, 110]}
    assert first(flags={"max-num-seqs": cap}, metrics=tried) is label


def test_bytes_a_second_near_the_data_sheet_are_memory_bandwidth() -> None:
    card = {"gpu": "GB10"}
    assert first(metrics={"gpu:read_bandwidth_gb_s": 232}, hardware=card) is Label.MEMORY_BANDWIDTH
    assert first(metrics={"gpu:read_bandwidth_gb_s": 23}, hardware=card) is not Label.MEMORY_BANDWIDTH


def test_memory_of_a_card_that_is_in_use_is_not_its_traffic() -> None:
    npu = {"gpu:npu_utilization_perc": 19, "gpu:hbm_usage_perc": 80.9}
    assert first(metrics=npu) is not Label.MEMORY_BANDWIDTH
    assert first(metrics={"gpu:sm_active_perc": 19, "gpu:dram_active_perc": 80.9}) is Label.MEMORY_BANDWIDTH


def test_the_same_load_without_a_grammar_tells_what_the_grammar_costs() -> None:
    rates = {"client:req_s": 3.06, "client:req_s_unguided": 4.32}
    assert first(metrics=rates, workload={"structured_output": True}) is Label.CPU


def test_workers_that_poll_without_a_request_are_no_shortage_of_cpu() -> None:
    idle = {"vllm:num_requests_running": 0, "host:cpu_core_utilization_perc": 100}
    assert first(metrics=idle, workload={"requests": "none"}) is Label.EXPECTED


def test_one_slot_for_many_requests_is_their_queue() -> None:
    many = {"metrics": {"client:ttft_s": 69}, "workload": {"requests": 32}}
    assert first(flags={"max-num-seqs": 1}, **many) is Label.QUEUEING
    assert first(flags={"max-num-seqs": 64}, **many) is not Label.QUEUEING


def test_by_turns_faster_than_by_cache_is_an_imbalance() -> None:
    ttft = {"client:ttft_ms": 1617, "client:ttft_ms_round_robin": 627}
    assert first(metrics=ttft, workload={"router": "cache_aware", "workers": 2}) is Label.DP_IMBALANCE
