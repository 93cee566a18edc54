"""Real vLLM on this machine's CPU, started under several settings, and what it exports of its KV cache.

settings --VllmServer--> /metrics: vllm:cache_config_info{...} --> Start
"""

import re
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench.plan.starts import Start
from headrace.capacity.catalogue import model_named
from headrace.capacity.gpus import GIB, Dtype
from headrace.core.errors import TargetFailed
from headrace.core.versions import VLLM_VERSION
from headrace.net.ports import reserved_port
from headrace.targets.vllm import VllmInstallation, VllmServer

MODEL = "smollm2-135m"
"""What `make vllm` puts beside it."""
SETTINGS: tuple[Mapping[str, int], ...] = (
    {"max_model_len": 4096, "max_num_seqs": 64},
    {"max_model_len": 1000, "block_size": 64},
    {"max_model_len": 8192, "block_size": 32, "max_num_batched_tokens": 512, "max_num_seqs": 8},
)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def started(installation: Path) -> Iterator[Start]:
    """One start after the other. Raises `TargetFailed` where there is no vLLM, or it does not start."""
    found = VllmInstallation(installation)
    if not found.exists:
        raise TargetFailed(f"there is no vLLM in {installation}", "make vllm")
    for settings in SETTINGS:
        name = "live: " + ", ".join(f"{key} {value}" for key, value in settings.items())
        with reserved_port() as port, VllmServer(found, dict(settings), port=port) as server:
            yield start_of_metrics(name, _metrics(server.url), settings["max_model_len"])


def _metrics(url: str) -> str:
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as page:
        return page.read().decode()


def start_of_metrics(name: str, text: str, max_model_len: int) -> Start:
    """The page does not say its `max_model_len`. Raises `TargetFailed` for a page of another version."""
    line = next((each for each in text.splitlines() if each.startswith("vllm:cache_config_info{")), "")
    labels = dict(_LABEL.findall(line))
    if "kv_cache_max_concurrency" not in labels:
        raise TargetFailed("the page of metrics has no vllm:cache_config_info of vLLM 0.32")
    said = {
        "available_gib": float(labels["kv_cache_memory_bytes"]) / GIB,
        "blocks": float(labels["num_gpu_blocks"]),
        "tokens": float(labels["kv_cache_size_tokens"]),
        "concurrency": float(labels["kv_cache_max_concurrency"]),
        "concurrency_tokens": float(max_model_len),
    }
    flags = {"block-size": int(labels["block_size"]), "max-model-len": max_model_len}
    return Start(name, "", VLLM_VERSION, model_named(MODEL), Dtype.FP32, Dtype.FP32, None, flags, said, {})
