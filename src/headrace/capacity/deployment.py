"""A model on GPUs under vLLM's settings: what memory and time are worked out of."""

from dataclasses import dataclass

from headrace.capacity.accounting import Accounting, accounting_of
from headrace.capacity.gpus import Dtype, Gpu
from headrace.capacity.models import ModelShape
from headrace.core.errors import BadInput
from headrace.core.versions import VLLM_VERSION


@dataclass(frozen=True, slots=True)
class Deployment:
    """One replica, under vLLM's own names; `data_parallel_size` of them share the experts' weights."""

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
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    enable_expert_parallel: bool = False
    enable_prefix_caching: bool = True
    vllm_version: str = VLLM_VERSION

    def __post_init__(self) -> None:
        heads, size = self.model.num_heads, self.tensor_parallel_size
        if size < 1 or heads % size:
            raise BadInput(
                f"tensor_parallel_size is {size}; it must divide the {heads} attention heads of "
                f"{self.model.name}",
                f"one of {', '.join(map(str, self.possible_sizes(heads)))}",
            )
        if not 1 <= self.pipeline_parallel_size <= self.model.num_layers or self.data_parallel_size < 1:
            raise BadInput(
                f"pipeline_parallel_size is {self.pipeline_parallel_size} and data_parallel_size "
                f"{self.data_parallel_size}; there are {self.model.num_layers} layers to share, and at least "
                "one replica"
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

    @staticmethod
    def possible_sizes(heads: int) -> list[int]:
        """Of a tensor-parallel group in one server."""
        return [size for size in (1, 2, 4, 8, 16) if heads % size == 0]

    @property
    def devices(self) -> str:
        """For people: `h100`, `h100x4`."""
        return self.gpu.name + (f"x{self.num_gpus}" if self.num_gpus > 1 else "")

    @property
    def num_gpus(self) -> int:
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size

    @property
    def expert_ranks(self) -> int:
        """Among how many a layer's experts are divided."""
        shared = self.data_parallel_size if self.enable_expert_parallel else 1
        return self.tensor_parallel_size * shared

    @property
    def attention_dtype(self) -> Dtype:
        """Of attention and states."""
        return self.model.attention_dtype or self.weight_dtype

    @property
    def plain_bytes(self) -> float:
        """Of what is never quantised: the vocabulary, encoders, activations."""
        return Dtype.FP32.bytes if self.weight_dtype is Dtype.FP32 else Dtype.BF16.bytes

    @property
    def accounting(self) -> Accounting:
        return accounting_of(self.vllm_version)

    @property
    def steps_under_way(self) -> int:
        """As vLLM 0.32 plans ahead: one for each stage, and one more where scheduling runs ahead."""
        return self.pipeline_parallel_size + (1 if self.async_scheduling else 0)

    @property
    def stage_layers(self) -> tuple[int, ...]:
        """Layers of each pipeline stage: alike, and what is left over to those before the last."""
        stages, layers = self.pipeline_parallel_size, self.model.num_layers
        each, left = divmod(layers, stages)
        more = range(stages - 1 - left, stages - 1)
        return tuple(each + (1 if stage in more else 0) for stage in range(stages))
