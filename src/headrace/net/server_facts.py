"""What a running server tells of its own settings, for whoever predicts it.

    GET /v1/models      context length                      vLLM, headrace
    GET /metrics        KV blocks and their size            vLLM, headrace (`vllm:cache_config_info`)
    GET /server_info    budgets of a step, and the rest     vLLM started with VLLM_SERVER_DEV_MODE=1

Whatever a server does not tell is None: nothing here is guessed.
"""

import asyncio
import re
from dataclasses import dataclass, fields
from typing import Any

import msgspec

from headrace.net.client import base_url
from headrace.net.fetch import fetch
from headrace.net.transcript import StreamBroke

_CACHE_CONFIG = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_TIMEOUT_S = 30.0
"""vLLM looks through the whole machine before it answers /server_info."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Settings under vLLM's names."""

    max_model_len: int | None = None
    num_gpu_blocks: int | None = None
    block_size: int | None = None
    kv_cache_memory_bytes: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    long_prefill_token_threshold: int | None = None
    enable_prefix_caching: bool | None = None
    async_scheduling: bool | None = None
    watermark: float | None = None


_NAMES = tuple(field.name for field in fields(ServerFacts))
_CONFIGS = ("cache_config", "scheduler_config", "model_config")


async def server_facts(url: str, *, api_key: str | None = None) -> ServerFacts:
    """Asks in all places; one that does not answer tells nothing."""
    base = base_url(url)
    models, metrics, info = await asyncio.gather(
        _get(f"{base}/v1/models", api_key),
        _get(f"{base}/metrics", api_key),
        _get(f"{base}/server_info?config_format=json", api_key),
    )
    return facts_of(models, metrics, info)


def facts_of(models: bytes, metrics: bytes, info: bytes) -> ServerFacts:
    """From the three answers; the most detailed one wins."""
    said = _from_models(models) | _from_metrics(metrics) | _from_info(info)
    return ServerFacts(**{name: said[name] for name in _NAMES if said.get(name) is not None})


def _from_models(body: bytes) -> dict[str, Any]:
    models = _decoded(body).get("data")
    first = models[0] if isinstance(models, list) and models else None
    return {"max_model_len": _number(first.get("max_model_len"))} if isinstance(first, dict) else {}


def _from_metrics(body: bytes) -> dict[str, Any]:
    found = _CACHE_CONFIG.search(body.decode(errors="replace"))
    labels = dict(_LABEL.findall(found[1])) if found else {}
    whole = ("num_gpu_blocks", "block_size", "kv_cache_memory_bytes")
    said: dict[str, Any] = {name: _number(labels.get(name)) for name in whole}
    caching = {"True": True, "False": False}.get(labels.get("enable_prefix_caching", ""))
    return said | {"enable_prefix_caching": caching}


def _from_info(body: bytes) -> dict[str, Any]:
    config = _decoded(body).get("vllm_config")
    if not isinstance(config, dict):
        return {}
    parts = [part for name in _CONFIGS if isinstance(part := config.get(name), dict)]
    said = {name: value for part in parts for name, value in part.items() if name in _NAMES}
    return {name: value for name, value in said.items() if isinstance(value, int | float)}


def _decoded(body: bytes) -> dict[str, Any]:
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    return decoded if isinstance(decoded, dict) else {}


def _number(value: object) -> int | None:
    return int(str(value)) if str(value).isdecimal() else None


async def _get(address: str, api_key: str | None) -> bytes:
    try:
        return await fetch(address, timeout_s=_TIMEOUT_S, api_key=api_key)
    except StreamBroke:
        return b""
