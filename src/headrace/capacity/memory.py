"""Where a GPU's memory goes, and how many KV blocks that leaves: vLLM's accounting before a start.

    total * gpu_memory_utilization = weights + activations of the largest step + fixed + KV cache

Per device, as vLLM counts: the ranks of a tensor-parallel group are alike. Weights and KV bytes are
exact to the norms; activations and what the driver takes are estimates, together 1 to 4 GiB.
"""

from dataclasses import dataclass

from headrace.capacity.gpus import GIB, Dtype, Gpu
from headrace.capacity.kv import KvBudget, budget_for_bytes
from headrace.capacity.models import ModelShape
from headrace.core.errors import BadInput

_FIXED_BYTES = 1 * GIB
"""CUDA context, kernels' workspaces and CUDA graphs. 0.5 GiB without graphs is what
github.com/ai-dynamo/aiconfigurator states for its systems (`other_mem`); the graphs are a guess."""
_NCCL_BYTES = 358_612_992
"""Buffers of a tensor-parallel group, from the same place (`nccl_mem`)."""
_LOGIT_BYTES = 10
"""Of one sampled row and word: the projection in bf16, its copy in float32, and the probabilities."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """A model on one tensor-parallel group of GPUs, under vLLM's own names."""

    model: ModelShape
    gpu: Gpu
    tensor_parallel_size: int = 1
    weight_dtype: Dtype = Dtype.BF16
    kv_cache_dtype: Dtype = Dtype.BF16
    gpu_memory_utilization: float = 0.92
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256
    enforce_eager: bool = False
    async_scheduling: bool = True

    def __post_init__(self) -> None:
        heads, size = self.model.num_heads, self.tensor_parallel_size
        if size < 1 or heads % size:
            raise BadInput(
                f"tensor_parallel_size is {size}; it must divide the {heads} attention heads of "
                f"{self.model.name}"
            )
        if not 0.0 < self.gpu_memory_utilization <= 1.0:
            raise BadInput(
                f"gpu_memory_utilization is {self.gpu_memory_utilization}; it is a share, in (0, 1]"
            )
        if min(self.max_num_batched_tokens, self.max_num_seqs) < 1:
            raise BadInput(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) and max_num_seqs "
                f"({self.max_num_seqs}) must be at least 1"
            )

    @property
    def devices(self) -> str:
        return self.gpu.name + (f"x{self.tensor_parallel_size}" if self.tensor_parallel_size > 1 else "")

    @property
    def dense_bytes(self) -> float:
        """Of one number of attention and dense layers."""
        return (Dtype.BF16 if self.model.only_experts_quantised else self.weight_dtype).bytes


def attention_parameters_per_rank(model: ModelShape, tensor_parallel_size: int) -> float:
    """Of one layer. KV heads are split until there is one a rank, then copied; MLA's are counted as split."""
    if model.latent is not None:
        return model.attention_parameters / tensor_parallel_size
    heads = model.num_heads // tensor_parallel_size
    return model.hidden_size * model.head_size * 2 * (heads + kv_heads_per_rank(model, tensor_parallel_size))


def kv_heads_per_rank(model: ModelShape, tensor_parallel_size: int) -> int:
    return max(1, model.num_kv_heads // tensor_parallel_size)


def always_used_bytes(deployment: Deployment) -> float:
    """Weights of one rank that every step reads: all but routed experts and the vocabulary."""
    model, size = deployment.model, deployment.tensor_parallel_size
    attention = model.num_layers * attention_parameters_per_rank(model, size)
    others = (model.always_used_parameters - model.num_layers * model.attention_parameters) / size
    return (attention + others) * deployment.dense_bytes


def vocabulary_bytes(deployment: Deployment) -> float:
    """One vocabulary matrix of one rank; these stay in bf16 whatever the rest is in."""
    return deployment.model.vocabulary_parameters * Dtype.BF16.bytes / deployment.tensor_parallel_size


def weights_bytes(deployment: Deployment) -> float:
    """All weights of one rank."""
    model = deployment.model
    routed = model.routed_parameters * deployment.weight_dtype.bytes / deployment.tensor_parallel_size
    matrices = 1 if model.tied_embeddings else 2
    return always_used_bytes(deployment) + routed + matrices * vocabulary_bytes(deployment)


def kv_bytes_per_token_and_layer(deployment: Deployment) -> float:
    """Of one rank: keys and values of its heads, or MLA's one vector, which every rank keeps whole."""
    model = deployment.model
    if (latent := model.latent) is not None:
        numbers = latent.kv_lora_rank + latent.qk_rope_head_size
    else:
        numbers = 2 * kv_heads_per_rank(model, deployment.tensor_parallel_size) * model.head_size
    return numbers * deployment.kv_cache_dtype.bytes


def kv_bytes_per_token(deployment: Deployment) -> float:
    """Of one rank, over the layers that share a block.

    vLLM splits a model with sliding layers into groups of equally many layers, each taking blocks of its own
    from one pool, so a block holds one group. What the sliding groups take, a constant number of blocks a
    request, is not counted here.
    """
    layers = deployment.model.num_layers
    if (window := deployment.model.window) is not None and window.layers < layers:
        layers = max(window.layers, layers - window.layers)
    return layers * kv_bytes_per_token_and_layer(deployment)


def activation_bytes(deployment: Deployment) -> float:
    """The peak of a step of `max_num_batched_tokens`, an estimate.

    The widest place is the MLP: the residual and its norm, the two inner products and their
    activation, in bf16; and after the last layer a row of logits for each of `max_num_seqs`.
    """
    model, size = deployment.model, deployment.tensor_parallel_size
    inner = model.intermediate_size
    if (experts := model.experts) is not None:
        inner = max(inner if experts.dense_layers else 0, experts.per_token * experts.intermediate_size)
    numbers = 2 * model.hidden_size + 3 * inner / size
    rows = min(deployment.max_num_seqs, deployment.max_num_batched_tokens)
    return (
        deployment.max_num_batched_tokens * numbers * Dtype.BF16.bytes
        + rows * model.vocab_size * _LOGIT_BYTES
    )


def kv_cache_bytes(deployment: Deployment) -> int:
    """What is left for KV cache on each device. Raises `BadInput` with the sum where nothing is."""
    gpu = deployment.gpu
    allowed = gpu.memory_bytes * deployment.gpu_memory_utilization
    weights, activations = weights_bytes(deployment), activation_bytes(deployment)
    fixed = _FIXED_BYTES + (_NCCL_BYTES if deployment.tensor_parallel_size > 1 else 0)
    left = allowed - weights - activations - fixed
    if left <= 0:
        raise BadInput(
            f"{deployment.model.name} does not fit on {deployment.devices}: of the {allowed / GIB:.1f} GiB "
            f"that may be used on each, weights take {weights / GIB:.1f}, activations "
            f"{activations / GIB:.1f} and the rest {fixed / GIB:.1f}, which leaves nothing for KV cache",
            "more or larger GPUs (h100x2, h200), or smaller weights (@fp8, @int4)",
        )
    return int(left)


def kv_budget(deployment: Deployment, block_size: int = 16) -> KvBudget:
    """The KV cache of a replica in blocks. Raises `BadInput` if not even two fit."""
    return budget_for_bytes(
        kv_cache_bytes(deployment), int(block_size * kv_bytes_per_token(deployment)), block_size
    )
