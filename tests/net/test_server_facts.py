"""What servers tell of themselves is taken as it stands; what they do not tell stays unknown."""

import asyncio
import json

import pytest

from headrace.net.server_facts import ServerFacts, facts_of, server_facts
from tests.net.serving import RunningServer

MODELS = json.dumps({"data": [{"id": "m", "max_model_len": 4096}]}).encode()
METRICS = b"""\
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="128",e="0",kv_cache_memory_bytes="1073741824",num_gpu_blocks="182"} 1.0
vllm:num_requests_running 0.0
"""
INFO = json.dumps(
    {
        "vllm_config": {
            "scheduler_config": {
                "max_num_batched_tokens": 512,
                "max_num_seqs": 16,
                "async_scheduling": False,
            },
            "cache_config": {"block_size": 128, "num_gpu_blocks": 182},
            "model_config": {"max_model_len": 2048},
        }
    }
).encode()


def test_a_vllm_in_developer_mode_tells_everything() -> None:
    facts = facts_of(MODELS, METRICS, INFO)
    assert (facts.num_gpu_blocks, facts.block_size, facts.kv_cache_memory_bytes) == (182, 128, 1 << 30)
    assert (facts.max_num_batched_tokens, facts.max_num_seqs) == (512, 16)
    assert facts.async_scheduling is False
    assert facts.max_model_len == 2048


def test_without_developer_mode_the_budgets_of_a_step_stay_unknown() -> None:
    facts = facts_of(MODELS, METRICS, b'{"detail":"Not Found"}')
    assert (facts.max_model_len, facts.num_gpu_blocks) == (4096, 182)
    assert facts.max_num_batched_tokens is None
    assert facts.max_num_seqs is None


@pytest.mark.parametrize(
    "nonsense", [b"", b"\xff\xfe", b"[]", b'{"data": 3}', b'{"vllm_config": []}', b"null"]
)
def test_nonsense_tells_nothing(nonsense: bytes) -> None:
    assert facts_of(nonsense, nonsense, nonsense) == ServerFacts()


def test_our_own_server_tells_its_kv_cache(server: RunningServer) -> None:
    facts = asyncio.run(server_facts(server.url))
    assert facts.num_gpu_blocks is not None
    assert facts.block_size is not None
    assert facts.max_model_len is not None


def test_a_server_that_is_not_there_tells_nothing() -> None:
    assert asyncio.run(server_facts("http://127.0.0.1:9")) == ServerFacts()
