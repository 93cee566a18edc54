"""The budgets of one replica, under vLLM's own names.

A `Settings` object is complete and consistent: whatever vLLM refuses at start is
refused here, so the scheduler never has to wonder.
"""

from dataclasses import dataclass
from enum import StrEnum

from headrace.core.errors import BadInput
from headrace.core.slo import parse_goals
from headrace.core.versions import VLLM_VERSION, VllmRules, rules_of


class SchedulingPolicy(StrEnum):
    """Who comes first. The first two are vLLM's and order the waiting queue only."""

    FCFS = "fcfs"
    PRIORITY = "priority"
    SHORTEST = "shortest"
    """Least prompt left to compute; running prompts pause for shorter ones."""
    SLO = "slo"
    """Least slack to the goal of its class; prompts leave room for the decodes' goal."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What one engine may spend. Raises `BadInput` when the budgets contradict each other."""

    max_model_len: int
    """Context length in tokens: prompt and output of one request together."""
    num_gpu_blocks: int
    """KV blocks in the pool, the null block included (vLLM's count, whatever the device)."""
    block_size: int = 32
    """Tokens a KV block holds."""
    max_num_batched_tokens: int = 2048
    """Tokens one step may compute, prefill chunks and decodes together."""
    max_num_seqs: int = 128
    """Requests that may run at once."""
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    long_prefill_token_threshold: int = 0
    """Most tokens of one prompt in one step; 0 means no cap. Not applied to a lone request."""
    scheduling_policy: SchedulingPolicy = SchedulingPolicy.FCFS
    slo: str = ""
    """Goals of classes of requests for the policy `slo`, as `core.slo.parse_goals` reads them."""
    scheduler_reserve_full_isl: bool = True
    """Admit only when the whole prompt fits into the free blocks, not just its first chunk."""
    async_scheduling: bool = False
    """Plan a step while the one before runs (vLLM's default on GPUs; its CPU platform forces it off)."""
    watermark: float = 0.0
    """Share of the pool that admissions leave free while others run, in [0, 1)."""
    vllm_version: str = VLLM_VERSION
    """Whose rules hold where they changed (core/versions.py)."""

    def __post_init__(self) -> None:
        _require_at_least_one(self)
        if self.num_gpu_blocks < 2:
            raise BadInput(
                f"num_gpu_blocks is {self.num_gpu_blocks}; one is the null block, so at least 2 are needed",
                "give the KV cache more memory (kv_cache_memory_bytes)",
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise BadInput(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least "
                f"max_num_seqs ({self.max_num_seqs}): every running request may want a token",
                f"lower max_num_seqs to {self.max_num_batched_tokens} or raise max_num_batched_tokens",
            )
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise BadInput(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) is smaller than max_model_len "
                f"({self.max_model_len}), and without chunked prefill a prompt must fit into one step",
                "enable chunked prefill, or raise max_num_batched_tokens",
            )
        if not 0 <= self.long_prefill_token_threshold <= self.max_model_len:
            raise BadInput(
                f"long_prefill_token_threshold ({self.long_prefill_token_threshold}) must lie between 0 "
                f"and max_model_len ({self.max_model_len})",
                "0 turns the cap off",
            )
        parse_goals(self.slo)
        if self.slo and self.scheduling_policy is not SchedulingPolicy.SLO:
            raise BadInput(
                f"slo is {self.slo!r}, and the scheduling policy {self.scheduling_policy.value} has no goals",
                "--scheduling-policy slo",
            )
        if not 0.0 <= self.watermark < 1.0:
            raise BadInput(f"watermark is {self.watermark}; it is a share of the pool, in [0, 1)")
        rules = rules_of(self.vllm_version)
        if self.watermark and not rules.has_watermark:
            raise BadInput(f"watermark is {self.watermark}; vLLM {self.vllm_version} has no such setting")

    @property
    def rules(self) -> VllmRules:
        return rules_of(self.vllm_version)

    @property
    def steps_in_flight(self) -> int:
        """Steps that may be planned before the oldest has come back."""
        return 2 if self.async_scheduling else 1

    @property
    def usable_blocks(self) -> int:
        """KV blocks that requests can hold: all but the null block."""
        return self.num_gpu_blocks - 1

    @property
    def watermark_blocks(self) -> int:
        """Blocks that an admission must leave free while others run."""
        return int(self.watermark * self.num_gpu_blocks)


def _require_at_least_one(settings: Settings) -> None:
    for name in ("max_model_len", "block_size", "max_num_batched_tokens", "max_num_seqs"):
        value = getattr(settings, name)
        if value < 1:
            raise BadInput(f"{name} is {value}; it must be at least 1")
