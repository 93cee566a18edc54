"""A plan for a program: one object, bytes as whole numbers, settings under vLLM's names."""

from dataclasses import asdict
from typing import Any

from headrace.capacity.crowd import Crowd
from headrace.capacity.memory import kv_bytes_per_token
from headrace.capacity.plan import Plan
from headrace.capacity.starting import StartingPoint
from headrace.report.plan import memory_json


def plan_json(
    plan: Plan, crowd: Crowd | None = None, points: tuple[StartingPoint, ...] = ()
) -> dict[str, Any]:
    """What `headrace plan --json` prints for one deployment."""
    deployment = plan.deployment
    fewer, more = plan.kv_cache_between
    return {
        "fits": plan.fits,
        "model": model_json(plan),
        "gpu": {"name": deployment.gpu.name, "count": deployment.num_gpus},
        "settings": {
            "tensor_parallel_size": deployment.tensor_parallel_size,
            "pipeline_parallel_size": deployment.pipeline_parallel_size,
            "data_parallel_size": deployment.data_parallel_size,
            "gpu_memory_utilization": deployment.gpu_memory_utilization,
            "max_model_len": plan.asked.max_model_len,
            "max_num_batched_tokens": deployment.max_num_batched_tokens,
            "max_num_seqs": deployment.max_num_seqs,
            "kv_cache_dtype": str(deployment.kv_cache_dtype),
            "block_size": plan.layout.block_size,
            "vllm_version": deployment.vllm_version,
        },
        "memory_bytes": memory_json(plan.memory) | {"kv_cache": plan.kv_cache_bytes},
        "kv_cache": {
            "num_gpu_blocks": plan.num_blocks,
            "bytes_per_block": plan.layout.bytes_per_block,
            "bytes_per_token": kv_bytes_per_token(deployment),
            "size_tokens": plan.tokens,
            "max_concurrency": round(plan.max_concurrency, 4),
            "largest_max_model_len": plan.longest,
            "bytes_between": [fewer, more],
        },
        "obstacles": [asdict(each) for each in plan.obstacles],
        "workload": None if crowd is None else asdict(crowd),
        "starting_points": {point.kind: {c.name: c.value for c in point.choices} for point in points},
    }


def model_json(plan: Plan) -> dict[str, Any]:
    model = plan.deployment.model
    return {
        "name": model.name,
        "parameters": model.parameters,
        "active_parameters": model.active_parameters,
        "weight_format": str(plan.deployment.weight_dtype),
        "source": model.source,
    }
