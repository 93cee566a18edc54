"""How long a step takes on a GPU, from first principles: a `core.cost.CostModel` without a GPU.

    model + GPUs + dtypes --Roofline--> StepShape -> nanoseconds

A step is a sum of parts that run one after the other, each bound by arithmetic or by memory:

    matrices    max(bytes of weights / bandwidth, 2 FLOPs a weight and token / arithmetic)
                once for what every token uses, once for the experts: n tokens touch E (1 - (1 - k/E)^n)
                of E experts in a layer, and multiply with k
    projection  the same for the vocabulary, over the rows that are sampled
    activations bytes that move between kernels, by token
    decode      KV bytes of the context / bandwidth (MLA: or the FLOPs of its absorbed form)
    prefill     4 * heads * head size FLOPs for each pair of a token and one it attends to
                (MLA: 2 * heads * (key size + value size)), or the KV bytes of earlier chunks
    all-reduce  twice a layer on more than one GPU: latency + 2 (tp - 1) / tp * bytes / link
    overhead    gaps between kernels, by layer; sampling and copies, by step

all with the card's efficiencies. Pure decode steps run as one CUDA graph, captured for certain sizes:
matrices compute the next larger one. Other steps, and all with `enforce_eager`, are launched
kernel by kernel, and never take less than their launches. The scheduler's time on the CPU, by request, is
added; with `async_scheduling` it runs beside the GPU, and only the larger counts.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from math import isfinite

from headrace.capacity.deployment import Deployment
from headrace.capacity.gpus import Certainty, Dtype
from headrace.capacity.memory import (
    always_used_bytes,
    graph_sizes,
    kv_bytes_per_token,
    kv_bytes_per_token_and_layer,
    kv_cache_bytes,
    vocabulary_bytes,
)
from headrace.core.cost import Machine, Residual, StepShape
from headrace.core.errors import BadInput

_GRAPH_GAP_S = 10e-6
"""Between the kernels of a layer inside a CUDA graph: about eight of them, a microsecond each. A guess."""
_LAUNCH_S = 70e-6
"""Launching a layer from Python: what CUDA graphs save on Llama-3-8B at batch 1, 2.2 ms over 32 layers
(github.com/sgl-project/sglang/pull/1401, the card is not named)."""
_STEP_S = 0.4e-3
"""Sampling, copying tokens back, starting the next graph. A guess; what calibration mends first."""
_SCHEDULER_S = 0.3e-3
_SCHEDULER_SEQ_S = 12.7e-6
"""vLLM 0.27's scheduler, by running request, pure decode, on a server's CPU
(github.com/openfabric-systems/simllm/pull/204); what a step costs beside that is a guess."""


@dataclass(frozen=True, slots=True)
class Multipliers:
    """Times by which calibration found parts slower than the formulas say; all 1 before it."""

    compute: float = 1.0
    """Arithmetic, of matrices and of attention over prompts."""
    weights: float = 1.0
    """Reading weights and activations."""
    context: float = 1.0
    """Reading the KV cache."""
    overhead: float = 1.0
    """Gaps, sampling, launches and the scheduler."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not (isfinite(value) and value > 0):
                raise BadInput(f"the multiplier {name} is {value}; it must be a number above 0")

    @staticmethod
    def names() -> tuple[str, ...]:
        return tuple(field.name for field in fields(Multipliers))


class _Table(dict[int, float]):
    """Values of a function of a whole number, computed when first asked for."""

    def __init__(self, function: Callable[[int], float]) -> None:
        super().__init__()
        self._function = function

    def __missing__(self, key: int) -> float:
        value = self[key] = self._function(key)
        return value


class Roofline:
    """A `CostModel`. Fast: what depends on whole numbers of requests and tokens is kept in tables."""

    def __init__(
        self,
        deployment: Deployment,
        multipliers: Multipliers | None = None,
        residual: Residual | None = None,
        provenance: Mapping[str, str] | None = None,
    ) -> None:
        """`residual` and `provenance` are of the calibration that found the multipliers.

        Raises `BadInput` where the model does not fit on the GPUs, or is spread over pipeline stages.
        """
        if deployment.pipeline_parallel_size > 1:
            raise BadInput(
                f"pipeline_parallel_size is {deployment.pipeline_parallel_size}; steps in stages are not "
                "modelled in time, only in memory",
                "more tensor parallelism, or `headrace plan` for memory alone",
            )
        self.deployment = deployment
        self.multipliers = multipliers or Multipliers()
        self.residual = residual
        self.provenance = dict(provenance or {"efficiencies": deployment.gpu.evidence})
        model = deployment.model
        self.machine = Machine(
            name=deployment.devices,
            model=model.name,
            max_model_len=model.max_model_len,
            kv_cache_bytes=kv_cache_bytes(deployment),
            kv_bytes_per_token=kv_bytes_per_token(deployment),
            async_scheduling=deployment.async_scheduling,
        )
        self._parts = _Parts(deployment, self.multipliers)
        self._graphs = () if deployment.enforce_eager else graph_sizes(deployment.max_num_seqs)
        self._decode_ns = _Table(self._decode)
        self._decode_floor_ns = _Table(self._decode_floor)
        self._mixed_ns = _Table(self._mixed)
        self._projection_ns = _Table(lambda rows: 1e9 * self._parts.projection_s(rows))
        self._floor_ns = _Table(self._mixed_floor)
        full, sliding = self._parts.layers
        self._context_ns = 1e9 * full * self._parts.context_s
        self._window_context_ns = 1e9 * sliding * self._parts.context_s
        self._pair_ns = 1e9 * full * self._parts.pair_s
        self._window_pair_ns = 1e9 * sliding * self._parts.pair_s
        self._window_tokens = model.window.tokens if model.window else 0

    def __reduce__(self) -> tuple[type["Roofline"], tuple[object, ...]]:
        """To another process goes what it was made of: tables fill again in no time."""
        return Roofline, (self.deployment, self.multipliers, self.residual, self.provenance)

    @property
    def certainty(self) -> Certainty:
        return self.deployment.gpu.certainty

    def step_ns(self, shape: StepShape) -> int:
        seqs = shape.decode_seqs
        context = shape.decode_context_tokens
        if shape.prefill_seqs:
            return self._step_with_prefill_ns(shape)
        ns = self._decode_ns[seqs] + context * self._context_ns
        if self._window_tokens:
            ns += min(context, seqs * self._window_tokens) * self._window_context_ns
        floor = self._decode_floor_ns[seqs]
        return int(max(ns, floor))

    def _step_with_prefill_ns(self, shape: StepShape) -> int:
        seqs, tokens = shape.decode_seqs, shape.prefill_tokens
        window = self._window_tokens
        ns = self._mixed_ns[seqs + tokens] + self._projection_ns[shape.sampled_seqs]
        ns += shape.decode_context_tokens * self._context_ns
        ns += max(
            shape.prefill_attention_pairs * self._pair_ns, shape.prefill_context_tokens * self._context_ns
        )
        if window:
            ns += min(shape.decode_context_tokens, seqs * window) * self._window_context_ns
            ns += min(shape.prefill_attention_pairs, tokens * window) * self._window_pair_ns
        running = seqs + shape.prefill_seqs
        ns += 1e9 * running * self._parts.state_s
        floor = self._floor_ns[running]
        if not self.deployment.async_scheduling:
            ns += self._parts.scheduler_ns(running)
        return int(max(ns, floor))

    def _decode(self, seqs: int) -> float:
        """A pure decode step but for the context it reads."""
        parts = self._parts
        padded = next((size for size in self._graphs if size >= seqs), seqs)
        seconds = parts.matrices_s(padded) + parts.projection_s(seqs) + seqs * parts.state_s
        ns = 1e9 * (seconds + parts.overhead_s)
        return ns if self.deployment.async_scheduling else ns + parts.scheduler_ns(seqs)

    def _decode_floor(self, seqs: int) -> float:
        in_a_graph = bool(self._graphs) and seqs <= self._graphs[-1]
        return self._parts.scheduler_ns(seqs) if in_a_graph else self._mixed_floor(seqs)

    def _mixed(self, tokens: int) -> float:
        return 1e9 * (self._parts.matrices_s(tokens) + self._parts.overhead_s)

    def _mixed_floor(self, seqs: int) -> float:
        """The scheduler has a process of its own, and with async scheduling its own time."""
        parts = self._parts
        if self.deployment.async_scheduling:
            return max(parts.launch_ns, parts.scheduler_ns(seqs))
        return parts.launch_ns + parts.scheduler_ns(seqs)


class _Parts:
    """The parts of a step in seconds, for one rank."""

    def __init__(self, deployment: Deployment, multipliers: Multipliers) -> None:
        model, gpu = deployment.model, deployment.gpu
        self._deployment = deployment
        self._multipliers = multipliers
        self._size = deployment.tensor_parallel_size
        self._byte_s = multipliers.weights / (gpu.bytes_per_s * gpu.bandwidth_efficiency)
        self._attention_flop_s = self._flop_s(deployment.attention_dtype)
        self._mlp_flop_s = self._flop_s(deployment.weight_dtype)
        self._always_bytes = always_used_bytes(deployment)
        self.layers = (model.num_full_layers, model.num_window_layers)
        """With full and with sliding attention."""
        self.overhead_s = multipliers.overhead * (_STEP_S + model.num_layers * _GRAPH_GAP_S)
        self.launch_ns = 1e9 * multipliers.overhead * model.num_layers * _LAUNCH_S
        self.context_s = self._context_s()
        self.pair_s = self._pair_s()
        self.state_s = self._state_s()

    def _state_s(self) -> float:
        """To read and write the states of one request, of all layers that keep one."""
        if (recurrent := self._deployment.model.recurrent) is None:
            return 0.0
        numbers = recurrent.layers * recurrent.state_numbers * recurrent.state_bytes
        return 2 * numbers / self._size * self._byte_s

    def _flop_s(self, dtype: Dtype) -> float:
        gpu = self._deployment.gpu
        return self._multipliers.compute / (gpu.peak_flops_per_s(dtype) * gpu.compute_efficiency)

    def _context_s(self) -> float:
        """To attend to one token of context, in one layer, when decoding."""
        gpu, model = self._deployment.gpu, self._deployment.model
        per_byte = self._multipliers.context / (gpu.bytes_per_s * gpu.bandwidth_efficiency)
        memory_s = kv_bytes_per_token_and_layer(self._deployment) * per_byte
        heads = model.num_heads / self._size
        if (latent := model.latent) is None:
            flops = 4 * heads * model.head_size
        else:  # absorbed: every head multiplies with the cached vector itself, once for keys, once for values
            flops = 2 * heads * (2 * latent.kv_lora_rank + latent.qk_rope_head_size)
        return max(memory_s, flops * self._flop_s(Dtype.BF16))

    def _pair_s(self) -> float:
        """For one pair of a prompt token and one it attends to, in one layer."""
        model = self._deployment.model
        heads = model.num_heads / self._size
        if (latent := model.latent) is None:
            flops = 4 * heads * model.head_size
        else:
            flops = 2 * heads * (latent.qk_nope_head_size + latent.qk_rope_head_size + latent.v_head_size)
        return flops * self._flop_s(Dtype.BF16)

    def matrices_s(self, tokens: int) -> float:
        """All layers' matrices, what moves between them, and the all-reduces."""
        model, size = self._deployment.model, self._size
        mixing, used = model.mixing_parameters, model.always_used_parameters
        multiplied = mixing * self._attention_flop_s + (used - mixing) * self._mlp_flop_s
        seconds = max(self._always_bytes * self._byte_s, 2 * tokens / size * multiplied)
        if (experts := model.experts) is not None:
            one = model.num_expert_layers * model.expert_parameters / size
            read = experts.expected_distinct(tokens) * one * self._deployment.weight_dtype.bytes
            flops = 2 * tokens * experts.per_token * one
            seconds += max(read * self._byte_s, flops * self._mlp_flop_s)
        return seconds + tokens * self._activation_bytes() * self._byte_s + self._all_reduces_s(tokens)

    def projection_s(self, rows: int) -> float:
        flops = 2 * rows * self._deployment.model.vocabulary_parameters / self._size
        return max(vocabulary_bytes(self._deployment) * self._byte_s, flops * self._flop_s(Dtype.BF16))

    def scheduler_ns(self, seqs: int) -> float:
        return 1e9 * self._multipliers.overhead * (_SCHEDULER_S + seqs * _SCHEDULER_SEQ_S)

    def _activation_bytes(self) -> float:
        """Read and written between the kernels of all layers for one token, in bf16.

        Two norms with their residuals move 8 hidden sizes, attention its queries, keys, values and result
        twice, the MLP its two inner products, their activation and its reading: 4 inner sizes.
        """
        model = self._deployment.model
        inner = model.intermediate_size
        if (experts := model.experts) is not None:
            inner = (experts.per_token + experts.shared) * experts.intermediate_size
        attention = 2 * (2 * model.num_heads + 2 * model.num_kv_heads) * model.head_size
        return model.num_layers * 2 * (8 * model.hidden_size + (attention + 4 * inner) / self._size)

    def _all_reduces_s(self, tokens: int) -> float:
        size, link = self._size, self._deployment.gpu.link
        if size == 1:
            return 0.0
        moved = 2 * (size - 1) / size * tokens * self._deployment.model.hidden_size * 2
        return 2 * self._deployment.model.num_layers * (link.latency_s + moved / link.bytes_per_s)
