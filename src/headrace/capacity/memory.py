"""Where a GPU's memory goes, and how many KV blocks that leaves: vLLM's accounting before a start.

    ceil(total * gpu_memory_utilization) = weights + activations + outside torch + CUDA graphs + KV cache

Of one device: ranks of a tensor-parallel group are alike, and of pipeline stages each is counted. Weights
and KV bytes are exact to the norms. Activations, graphs and what the driver takes are estimates, held against
start-ups that logged them: `python -m bench.plan`, docs/planning.md.
"""

from dataclasses import dataclass
from math import ceil

from headrace.capacity.deployment import Deployment
from headrace.capacity.gpus import GIB
from headrace.capacity.kv import KvBudget, budget_for_bytes
from headrace.capacity.kv_groups import KvLayers, KvLayout, Sizing, kv_layout, share_of
from headrace.capacity.models import ModelShape, Recurrent
from headrace.core.errors import BadInput

_NON_TORCH_BYTES = int(0.25 * GIB)
"""What CUDA and its libraries take while the model loads: 0.16 to 0.35 GiB in logged start-ups on one GPU."""
_NCCL_BYTES = 358_612_992
"""Buffers of a group of GPUs: `nccl_mem` of github.com/ai-dynamo/aiconfigurator; 0.6 GiB in all on four H100
(github.com/vllm-project/vllm/pull/48601)."""
_GRAPH_BYTES = 350_000
"""Of one captured size and layer, as vLLM estimates it beforehand: 286,000 for LFM2 in 0.26 (0.58 GiB, 16
layers, 136 graphs), 377,000 on two GPUs in 0.27 (github.com/gpustack/runner/pull/251).
Capture takes 80,000 to 340,000."""
_LOGIT_BYTES = 6
"""Of one sampled row and word: the projection in bf16, and its copy in float32. 1.5 GiB of peak for 1,024
rows of 248,320 words (github.com/vllm-project/vllm/pull/48601)."""
_LARGEST_GRAPH = 512


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """One device's memory in bytes, of the pipeline stage that has the least left."""

    total: int
    requested: int
    """What `gpu_memory_utilization` allows."""
    weights: int
    activations: int
    """The peak of the largest step beyond what stays."""
    non_torch: int
    cuda_graphs: int
    graphs_are_counted: bool
    """False for versions that capture them out of what `gpu_memory_utilization` leaves over."""

    @property
    def counted_graphs(self) -> int:
        return self.cuda_graphs if self.graphs_are_counted else 0

    @property
    def taken(self) -> int:
        """Of what is requested, by all but the KV cache."""
        return self.weights + self.activations + self.non_torch + self.counted_graphs

    @property
    def kv_cache(self) -> int:
        """What is left; negative where the rest is too large."""
        return self.requested - self.taken


def kv_heads_per_rank(kv_heads: int, tensor_parallel_size: int) -> int:
    """KV heads are split until there is one a rank, then copied."""
    return max(1, kv_heads // tensor_parallel_size)


def attention_parameters_per_rank(model: ModelShape, tensor_parallel_size: int) -> float:
    """Of one layer with full attention."""
    size = tensor_parallel_size
    if (latent := model.latent) is not None:  # projections down to the latent vectors are whole on every rank
        whole = model.hidden_size * (latent.q_lora_rank + latent.cached_numbers)
        return whole + (model.attention_parameters - whole) / size
    return _grouped_per_rank(model.attention_parameters, model, model.num_kv_heads, model.head_size, size)


def _window_parameters_per_rank(model: ModelShape, size: int) -> float:
    assert model.window is not None, "asked for what it has"
    heads, head_size = model.window.num_kv_heads, model.window.head_size
    return _grouped_per_rank(
        model.window_attention_parameters,
        model,
        heads or model.num_kv_heads,
        head_size or model.head_size,
        size,
    )


def _grouped_per_rank(whole: int, model: ModelShape, kv_heads: int, head_size: int, size: int) -> float:
    keys_and_values = 2 * model.hidden_size * head_size
    mine = keys_and_values * kv_heads_per_rank(kv_heads, size)
    return (whole - keys_and_values * kv_heads) / size + mine


def always_used_bytes(deployment: Deployment) -> float:
    """Weights of one rank and all stages that every step reads: all but routed experts and the vocabulary."""
    model, size = deployment.model, deployment.tensor_parallel_size
    mixing = model.num_full_layers * attention_parameters_per_rank(model, size)
    if model.num_window_layers:
        mixing += model.num_window_layers * _window_parameters_per_rank(model, size)
    if (recurrent := model.recurrent) is not None:
        mixing += recurrent.layers * recurrent.parameters / size
    others = (model.always_used_parameters - model.mixing_parameters) / size
    return mixing * deployment.attention_dtype.bytes + others * deployment.weight_dtype.bytes


def vocabulary_bytes(deployment: Deployment) -> float:
    """One vocabulary matrix of one rank; these stay as they were whatever the rest is in."""
    model = deployment.model
    return model.vocabulary_parameters * deployment.plain_bytes / deployment.tensor_parallel_size


def weights_bytes(deployment: Deployment) -> float:
    """All weights of one rank, of the pipeline stage that has most."""
    return max(stage_weights_bytes(deployment))


def stage_weights_bytes(deployment: Deployment) -> tuple[float, ...]:
    """Of one rank of each stage; embeddings are with the first, the projection onto words with the last."""
    model = deployment.model
    routed = model.routed_parameters * deployment.weight_dtype.bytes / deployment.expert_ranks
    layers = always_used_bytes(deployment) + routed
    encoder = model.encoder_parameters * deployment.plain_bytes / deployment.tensor_parallel_size
    vocabulary, stages = vocabulary_bytes(deployment), deployment.stage_layers
    last = len(stages) - 1
    matrices = [0] * len(stages)
    matrices[0] += 1
    matrices[last] += 1 if not model.tied_embeddings or last > 0 else 0
    return tuple(
        layers * share / model.num_layers + matrices[stage] * vocabulary + (encoder if stage == 0 else 0)
        for stage, share in enumerate(stages)
    )


def kv_bytes_per_token_and_layer(deployment: Deployment) -> float:
    """Of one rank and layer with full attention: keys and values of its heads, or MLA's one vector, which
    every rank keeps whole.
    """
    model = deployment.model
    if (latent := model.latent) is not None:
        return latent.cached_numbers * deployment.kv_cache_dtype.bytes + latent.indexer_bytes
    heads = kv_heads_per_rank(model.num_kv_heads, deployment.tensor_parallel_size)
    return 2 * heads * model.head_size * deployment.kv_cache_dtype.bytes


def kv_layers(deployment: Deployment) -> tuple[KvLayers, ...]:
    """What the layers of one rank keep, all stages together."""
    model, size = deployment.model, deployment.tensor_parallel_size
    full = kv_bytes_per_token_and_layer(deployment)
    kinds = [KvLayers(model.num_full_layers, full)]
    if (window := model.window) is not None:
        heads = kv_heads_per_rank(window.num_kv_heads or model.num_kv_heads, size)
        own = 2 * heads * (window.head_size or model.head_size) * deployment.kv_cache_dtype.bytes
        per_token = full if model.latent else own
        kinds.append(KvLayers(window.layers, per_token, window.tokens, window.is_chunked))
    if (recurrent := model.recurrent) is not None:
        kinds.append(KvLayers(recurrent.layers, state_bytes=_state_bytes(recurrent, deployment)))
    return tuple(kind for kind in kinds if kind.layers)


def _state_bytes(recurrent: Recurrent, deployment: Deployment) -> int:
    """Of one rank and layer."""
    conv = recurrent.conv_numbers * deployment.plain_bytes
    return ceil((conv + recurrent.state_numbers * recurrent.state_bytes) / deployment.tensor_parallel_size)


def layout_of(deployment: Deployment, block_size: int = 16) -> KvLayout:
    """The KV cache's groups and blocks, of the stage with most layers."""
    kinds = kv_layers(deployment)
    if deployment.pipeline_parallel_size > 1:
        kinds = share_of(kinds, max(deployment.stage_layers), deployment.model.num_layers)
    return kv_layout(kinds, block_size)


def sizing_of(deployment: Deployment) -> Sizing:
    rules = deployment.accounting
    steps = deployment.steps_under_way if rules.counts_every_step else 1
    states = 2 if rules.caches_states and deployment.enable_prefix_caching else 1
    return Sizing(steps * deployment.max_num_batched_tokens, states)


def kv_bytes_per_token(deployment: Deployment) -> float:
    """Of one rank: what a request grows by, without windows and states, a constant for each request."""
    return layout_of(deployment).bytes_per_token


def activation_bytes(deployment: Deployment) -> float:
    """The peak of a step of `max_num_batched_tokens`, an estimate.

    The widest place is an MLP: the residual, its norm and the result, the two inner products and
    their activation; with experts, these for each expert of a token. 2.99 GiB logged for Llama-3.1-8B and
    29,000 tokens (github.com/vllm-project/vllm/issues/10517), 2.99 by this. After the last layer come the
    logits, with a row for each of `max_num_seqs`; the larger of the two is the peak.
    """
    model, size = deployment.model, deployment.tensor_parallel_size
    inner = 3 * model.intermediate_size / size if model.num_dense_layers else 0.0
    if (experts := model.experts) is not None:
        one = experts.intermediate_size / size
        inner = max(inner, experts.per_token * (max(2 * one, model.hidden_size) + one))
    tokens = deployment.max_num_batched_tokens
    rows = min(deployment.max_num_seqs, tokens)
    layer = tokens * (3 * model.hidden_size + inner) * deployment.plain_bytes
    sampling = tokens * model.hidden_size * deployment.plain_bytes + rows * model.vocab_size * _LOGIT_BYTES
    return max(layer, sampling)


def graph_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """The batch sizes that vLLM captures for pure decode steps."""
    largest = min(2 * max_num_seqs, _LARGEST_GRAPH)
    sizes = {1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16), max_num_seqs}
    return tuple(sorted(size for size in sizes if size <= largest))


def cuda_graph_bytes(deployment: Deployment) -> int:
    """An estimate. Every size is captured twice: whole, and in pieces for steps with prompts."""
    if deployment.enforce_eager:
        return 0
    return 2 * len(graph_sizes(deployment.max_num_seqs)) * max(deployment.stage_layers) * _GRAPH_BYTES


def requested_bytes(deployment: Deployment) -> int:
    """Of one device, what `gpu_memory_utilization` is a share of all memory for."""
    return ceil(deployment.gpu.memory_bytes * deployment.gpu_memory_utilization)


def memory_use(deployment: Deployment) -> MemoryUse:
    """Of the stage with the most weights; never raises, whether it fits or not."""
    several = deployment.tensor_parallel_size * deployment.pipeline_parallel_size > 1
    return MemoryUse(
        total=deployment.gpu.memory_bytes,
        requested=requested_bytes(deployment),
        weights=ceil(weights_bytes(deployment)),
        activations=ceil(activation_bytes(deployment)),
        non_torch=_NON_TORCH_BYTES + (_NCCL_BYTES if several else 0),
        cuda_graphs=cuda_graph_bytes(deployment),
        graphs_are_counted=deployment.accounting.counts_graphs,
    )


def kv_cache_bytes(deployment: Deployment) -> int:
    """What is left for KV cache on each device. Raises `BadInput` with the sum where nothing is."""
    use = memory_use(deployment)
    if use.kv_cache <= 0:
        fixed = use.non_torch + use.counted_graphs
        raise BadInput(
            f"{deployment.model.name} does not fit on {deployment.devices}: of the "
            f"{use.requested / GIB:.1f} GiB that may be used on each, weights take {use.weights / GIB:.1f}, "
            f"activations {use.activations / GIB:.1f} and the rest {fixed / GIB:.1f}, which leaves nothing "
            "for KV cache",
            "more or larger GPUs (h100x2, h200), or smaller weights (@fp8, @int4)",
        )
    return use.kv_cache


def kv_budget(deployment: Deployment, block_size: int = 16) -> KvBudget:
    """The KV cache of a replica in blocks. Raises `BadInput` if not even two fit."""
    layout = layout_of(deployment, block_size)
    return budget_for_bytes(kv_cache_bytes(deployment), layout.bytes_per_block, layout.block_size)
