"""What stands for one server in a simulation: its settings and its cost model, made to fit each other.

options + cost model (+ the workload, where neither says a context length) --twin_of--> Twin
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from headrace.capacity.gpus import GIB
from headrace.capacity.roofline import Roofline
from headrace.cli.budgets import BudgetOptions, Limits, flags_of
from headrace.cli.costs import LoadedCost
from headrace.cli.recipe import Flags
from headrace.core.cost import FrontEnd, Machine
from headrace.core.errors import BadInput
from headrace.core.settings import SchedulingPolicy, Settings
from headrace.core.versions import VLLM_VERSION
from headrace.executor.cost import FittedCost
from headrace.sim.run import Simulated
from headrace.workload.trace import TraceRequest

BLOCK_SIZE = 16
UNKNOWN_DEVICE = Limits(batched_tokens=2048, num_seqs=256)
"""vLLM's defaults for a device that it has none for."""


class TwinOptions(BudgetOptions):
    """The budgets, and what only a GPU's server has. None: to be decided."""

    async_scheduling: bool | None


def options_of(settings: Mapping[str, int | float | bool | str | None]) -> TwinOptions:
    """VLLM's defaults but for `settings`; those that no twin has are left out."""
    options = {
        "max_model_len": None,
        "max_num_batched_tokens": None,
        "max_num_seqs": None,
        "long_prefill_token_threshold": 0,
        "enable_chunked_prefill": True,
        "enable_prefix_caching": True,
        "scheduling_policy": SchedulingPolicy.FCFS.value,
        "slo": (),
        "scheduler_reserve_full_isl": True,
        "watermark": 0.0,
        "kv_cache_memory_bytes": None,
        "block_size": None,
        "num_gpu_blocks_override": None,
        "vllm_version": VLLM_VERSION,
        "async_scheduling": None,
    }
    known = {name: value for name, value in settings.items() if name in options}
    return cast("TwinOptions", options | known)


@dataclass(frozen=True, slots=True)
class Twin:
    """What stands for one server."""

    settings: Settings
    cost: LoadedCost


def twin_of(cost: LoadedCost, options: TwinOptions, requests: Sequence[TraceRequest]) -> Twin:
    """Fill in what the machine says. Raises `BadInput` for settings that vLLM would refuse on it."""
    machine = cost.machine
    longest = max(traced.prompt_tokens + traced.output_tokens for traced in requests)
    model_max_len = longest if machine is None else machine.max_model_len
    limits, usual_block_size = UNKNOWN_DEVICE, BLOCK_SIZE
    if machine is not None:
        limits = Limits(machine.max_num_batched_tokens, machine.max_num_seqs)
        usual_block_size = machine.block_size
    if isinstance(cost, Roofline):
        limits = Limits(cost.deployment.max_num_batched_tokens, cost.deployment.max_num_seqs)
    flags = flags_of(options, model_max_len, limits)
    ahead = options["async_scheduling"]
    if ahead is None:
        ahead = machine is not None and machine.async_scheduling
    if isinstance(cost, Roofline):
        # Its memory and its CUDA graphs depend on the step's budgets.
        deployment = replace(
            cost.deployment,
            max_num_batched_tokens=flags.max_num_batched_tokens,
            max_num_seqs=flags.max_num_seqs,
            async_scheduling=ahead,
        )
        cost = Roofline(deployment, cost.multipliers, cost.residual, cost.provenance)
    block_size = usual_block_size if flags.block_size is None else flags.block_size
    blocks = _num_blocks(flags, cost.machine, block_size)
    if flags.shrink_max_model_len:
        flags = replace(flags, max_model_len=min(flags.max_model_len, (blocks - 1) * block_size))
    settings = flags.settings(blocks, block_size)
    return Twin(replace(settings, async_scheduling=ahead), cost)


def front_end_of(cost: LoadedCost) -> FrontEnd | None:
    """None where nobody measured what lies between client and engine."""
    return cost.front_end if isinstance(cost, FittedCost) else None


def refuse_what_fits_nowhere(simulated: Simulated) -> None:
    """Raises `BadInput` where not one request could be served: how many, the largest, and why."""
    lives = simulated.lives
    if not all(life.refused for life in lives):
        return
    largest = max(lives, key=lambda life: life.traced.prompt_tokens + life.traced.output_tokens)
    raise BadInput(
        f"none of the {len(lives):,} requests fits. The largest has {largest.traced.prompt_tokens:,} prompt "
        f"and {largest.traced.output_tokens:,} output tokens: {largest.refused}",
        "more KV cache, a larger --max-model-len, or another workload",
    )


def _num_blocks(flags: Flags, machine: Machine | None, block_size: int) -> int:
    """Raises `BadInput` when one request of full length would not fit, as vLLM does."""
    if flags.num_gpu_blocks_override is not None:
        return flags.num_gpu_blocks_override
    if machine is None:
        raise BadInput(
            "the cost model does not say how much KV cache its machine has",
            "--num-gpu-blocks-override N, the number of KV blocks",
        )
    if block_size < 1:
        raise BadInput(f"--block-size is {block_size}; it must be at least 1")
    if flags.kv_cache_memory_bytes is not None:
        machine = replace(machine, kv_cache_bytes=flags.kv_cache_memory_bytes)
    blocks = machine.num_gpu_blocks(block_size)
    fits = max(0, blocks - 1) * block_size
    if fits < flags.max_model_len and not (flags.shrink_max_model_len and fits > 1):
        raise BadInput(
            f"one request of {flags.max_model_len:,} tokens does not fit into the KV cache of "
            f"{machine.name}: {machine.kv_cache_bytes / GIB:.2f} GiB, {fits:,} tokens",
            f"--max-model-len {fits}" if fits else "a larger machine, or fewer --max-num-batched-tokens",
        )
    return blocks
