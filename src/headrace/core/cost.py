"""What one step costs: the seam between decisions and timings.

    Plan -> StepShape -> CostModel -> nanoseconds

A shape says everything about a step that its duration depends on, and nothing about who is in it.
"""

from dataclasses import dataclass
from typing import Protocol

from headrace.core.plan import Plan


@dataclass(slots=True)
class StepShape:
    """One forward pass in numbers. Made once a step, so plain and slotted."""

    decode_seqs: int = 0
    """Requests that compute one token."""
    decode_context_tokens: int = 0
    """Tokens their attention reads, summed."""
    prefill_seqs: int = 0
    """Requests that compute more than one token."""
    prefill_tokens: int = 0
    prefill_context_tokens: int = 0
    """Tokens of earlier chunks and prefix hits that prefill attention reads, summed over chunks."""
    prefill_attention_pairs: int = 0
    """Pairs of a new token and a token it attends to: the quadratic part of prefill."""
    sampled_seqs: int = 0
    """Rows that go through the vocabulary projection."""
    resized: bool = False
    """It has another number of tokens than the step before it, so kernels prepare anew. Nothing in a plan
    tells: it is set by whoever knows the step before."""

    @property
    def tokens(self) -> int:
        return self.decode_seqs + self.prefill_tokens


@dataclass(frozen=True, slots=True)
class Residual:
    """How far a fitted model is off on what it was fitted to: shares of the measured durations."""

    observations: int
    median: float
    p95: float


@dataclass(frozen=True, slots=True)
class Machine:
    """What a cost model knows of the replica it speaks for, so that `Settings` can be made for it."""

    name: str
    """The device, and how many of them: `rtx-pro-6000`, `h100x4`."""
    model: str
    max_model_len: int
    kv_cache_bytes: int
    """Of one device, as is `kv_bytes_per_token`."""
    kv_bytes_per_token: float
    async_scheduling: bool
    block_size: int = 16
    """From here on: what its server takes unless told otherwise; vLLM's, where nothing else is known."""
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256

    def num_gpu_blocks(self, block_size: int) -> int:
        """Blocks of its KV cache, the null block included."""
        return int(self.kv_cache_bytes // (block_size * self.kv_bytes_per_token))


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """What a request takes outside the engine, on its way in and back, served to a client nearby."""

    fixed_ns: int
    """From being sent to being handed to the engine, whatever its length. One after another."""
    ns_per_prompt_token: float
    answer_ns: int
    """From the end of a step to the client's having its token."""

    def inward_ns(self, prompt_tokens: int) -> int:
        return self.fixed_ns + round(self.ns_per_prompt_token * prompt_tokens)


class CostModel(Protocol):
    """How long a step takes on some machine."""

    def step_ns(self, shape: StepShape) -> int:
        """Nanoseconds from handing over the plan to having the tokens; at least 1."""
        ...


@dataclass(frozen=True, slots=True)
class Pace:
    """How many times as long as a cost model says steps take on the machine as it was found."""

    prefill: float = 1.0
    """Steps that compute prompts."""
    decode: float = 1.0
    """Steps that only decode."""


@dataclass(frozen=True, slots=True)
class PacedCost:
    """A `CostModel` corrected by a pace."""

    cost: CostModel
    pace: Pace

    def step_ns(self, shape: StepShape) -> int:
        factor = self.pace.prefill if shape.prefill_seqs else self.pace.decode
        return round(self.cost.step_ns(shape) * factor) or 1


def shape_of(plan: Plan) -> StepShape:
    shape = StepShape()
    for chunk in plan.chunks:
        tokens, end = chunk.tokens, chunk.start + chunk.tokens
        if chunk.samples:
            shape.sampled_seqs += 1
        if tokens == 1:
            shape.decode_seqs += 1
            shape.decode_context_tokens += end
        else:
            shape.prefill_seqs += 1
            shape.prefill_tokens += tokens
            shape.prefill_context_tokens += chunk.start
            shape.prefill_attention_pairs += tokens * chunk.start + tokens * (tokens + 1) // 2
    return shape
