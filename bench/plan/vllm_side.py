"""vLLM 0.32's own KV cache arithmetic, run by the Python of vLLM's environment.

    a question a line on stdin -> {"groups", "blocks", "blocks_per_request", ...} a line on stdout

No model, no GPU: its functions are handed specs of layers and a configuration that has only what they look
at.
"""

import json
import math
import sys
from types import SimpleNamespace
from typing import Any

import torch
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from vllm.v1.kv_cache_layout import KVCacheLayout

BYTES = torch.uint8


def configuration(asked: dict[str, Any]) -> SimpleNamespace:
    cache = SimpleNamespace(
        mamba_cache_mode="align" if asked["state_blocks"] == 2 else "none",
        num_gpu_blocks_override=None,
        prefix_cache_retention_interval=0,
        block_size=asked["block_size"],
        get_resolved_kv_cache_layout=lambda: KVCacheLayout.LBHNC,
    )
    return SimpleNamespace(
        cache_config=cache,
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
        attention_config=SimpleNamespace(hisparse_config=None),
        speculative_config=None,
        max_in_flight_tokens=asked["tokens_in_flight"],
        model_config=SimpleNamespace(max_model_len=asked["max_model_len"]),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1, prefill_context_parallel_size=1),
    )


def spec_of(layer: dict[str, Any], block_size: int, page: int) -> Any:
    """One byte a number, so that a head's size is what its keys take."""
    if layer["state_bytes"]:
        return MambaSpec(
            block_size=block_size,
            shapes=((layer["state_bytes"],),),
            dtypes=(BYTES,),
            page_size_padded=page if page > layer["state_bytes"] else None,
            mamba_cache_mode=layer["mamba_cache_mode"],
        )
    size = int(layer["bytes_per_token"])
    shape: dict[str, Any] = {"block_size": block_size, "num_kv_heads": 1, "dtype": BYTES}
    if layer["is_latent"]:
        return MLAAttentionSpec(head_size=size, **shape)
    if layer["window"] is None:
        return FullAttentionSpec(head_size=size // 2, **shape)
    if layer["is_chunked"]:
        return ChunkedLocalAttentionSpec(head_size=size // 2, attention_chunk_size=layer["window"], **shape)
    return SlidingWindowSpec(head_size=size // 2, sliding_window=layer["window"], **shape)


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    config = configuration(asked)
    block_size = asked["block_size"]
    pages = [int(each["bytes_per_token"]) * block_size for each in asked["kinds"]]
    specs = {
        f"{kind}.{layer}": spec_of(
            each | {"mamba_cache_mode": config.cache_config.mamba_cache_mode}, block_size, max(pages)
        )
        for kind, each in enumerate(asked["kinds"])
        for layer in range(each["layers"])
    }
    groups = kv_cache_utils.get_kv_cache_groups(config, specs)
    found = kv_cache_utils.get_kv_cache_config_from_groups(config, groups, asked["bytes"])
    concurrency = kv_cache_utils.get_max_concurrency_for_kv_cache_config(config, found)
    return {
        "groups": len(groups),
        "blocks": found.num_blocks,
        "blocks_per_request": round(found.num_blocks / concurrency) if concurrency else math.inf,
        "concurrency": concurrency,
        "longest": longest(config, found),
    }


def longest(config: SimpleNamespace, found: Any) -> int:
    """The largest max_model_len of which at least one fits, up to the one that was asked for."""
    fits, too_long = 0, config.model_config.max_model_len + 1
    while too_long - fits > 1:
        config.model_config.max_model_len = (fits + too_long) // 2
        if kv_cache_utils.get_max_concurrency_for_kv_cache_config(config, found) >= 1:
            fits = config.model_config.max_model_len
        else:
            too_long = config.model_config.max_model_len
    return fits


def main() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
