"""What shows nothing is not made into something: healthy servers, and reports that hold too little."""

from dataclasses import replace

import pytest

from headrace.diagnose.doctor import diagnose
from headrace.diagnose.evidence import Flag
from headrace.diagnose.finding import Label, Severity
from headrace.diagnose.readers.metrics import read_page
from tests.diagnose.samples import incident

HEALTHY = {
    "a busy server without a queue": {
        "metrics": {
            "vllm:num_requests_running": [30, 44, 38, 41],
            "vllm:num_requests_waiting": [0, 0, 0, 0],
            "vllm:kv_cache_usage_perc": [0.3, 0.42, 0.4, 0.41],
            "client:ttft_p50_ms": 180,
            "client:itl_p50_ms": 22,
        },
        "flags": {"max-num-seqs": 256},
    },
    "a card that is busy because there is work": {
        "metrics": {
            "gpu:utilization_perc": 99,
            "vllm:num_requests_running": [50, 52],
            "vllm:num_requests_waiting": [0, 0],
            "vllm:kv_cache_usage_perc": 0.5,
        }
    },
    "one stream, as fast as it was": {
        "metrics": {"vllm:num_requests_running": [1, 1], "vllm:num_requests_waiting": [0, 0]},
        "workload": {"requests": 4},
    },
    "a hit rate as one would wish": {
        "metrics": {
            "vllm:prefix_cache_queries_total": 100_000,
            "vllm:prefix_cache_hits_total": 72_000,
            "vllm:num_requests_running": [8, 9],
            "vllm:num_requests_waiting": [0, 0],
            "vllm:kv_cache_usage_perc": [0.2, 0.2],
        }
    },
    "an ordinary start": {
        "log": [
            "INFO 01-01 10:00:00 [gpu_model_runner.py:1] Starting to load model m...",
            "INFO 01-01 10:00:09 [gpu_model_runner.py:1] Model loading took 15.2 GiB memory and 9.1 seconds",
            "INFO 01-01 10:00:29 [kv_cache_utils.py:1] GPU KV cache size: 100,000 tokens",
            "INFO 01-01 10:00:40 [core.py] init engine (profile, create kv cache, warmup model) took 9 s",
            "INFO:     Application startup complete.",
        ]
    },
}
TOO_LITTLE = {
    "flags alone": {"flags": {"max-num-seqs": 64, "gpu-memory-utilization": 0.9, "max-model-len": 8192}},
    "a latency alone": {"metrics": {"client:ttft_p99_ms": 900, "client:ttft_p50_ms": 80}},
    "a throughput alone": {"metrics": {"client:output_tok_s": 1200}, "workload": {"model": "a 7B model"}},
    "slower than the last version": {
        "metrics": {"client:tok_s_v0_10": 1200, "client:tok_s_v0_11": 900},
        "version": "0.11.0",
    },
    "slower after some hours": {"workload": {"symptom": "gradually slower after several hours of uptime"}},
    "now and then slow": {"workload": {"symptom": "sometimes slow"}, "metrics": {"client:e2e_s": 9}},
    "nothing but a name": {"workload": {"model": "Qwen/Qwen3-8B"}, "hardware": {"gpu": "H100"}},
}  # fmt: skip


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_server_gets_a_clean_bill(name: str) -> None:
    diagnosis = diagnose(incident(**HEALTHY[name]))

    assert diagnosis.severity is Severity.NOTE
    assert {f.label for f in diagnosis.findings} <= {Label.UNDETERMINED, Label.EXPECTED}


@pytest.mark.parametrize("name", TOO_LITTLE)
def test_too_little_is_said_to_be_too_little(name: str) -> None:
    diagnosis = diagnose(incident(**TOO_LITTLE[name]))

    assert [f.label for f in diagnosis.findings] == [Label.UNDETERMINED]


PREFIX_PAGE = """\
vllm:cache_config_info{block_size="16",num_gpu_blocks="5000",enable_prefix_caching="True"} 1
vllm:prefix_cache_queries_total 20000
vllm:prefix_cache_hits_total 0
vllm:num_requests_running 4
vllm:num_requests_waiting 0
"""


def test_no_hits_are_no_fault_where_caching_is_merely_the_default() -> None:
    page = read_page(PREFIX_PAGE.splitlines(), "m")
    asked = replace(page, flags={**page.flags, "enable-prefix-caching": Flag(True, "command")})

    assert Label.PREFIX_MISS not in {f.label for f in diagnose(page).findings}
    assert Label.PREFIX_MISS in {f.label for f in diagnose(asked).findings}
