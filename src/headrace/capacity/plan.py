"""Will it fit, and what does it hold: everything about a deployment's memory in one record.

Deployment + max_model_len --plan_of--> Plan: memory, blocks, concurrency, the longest request, obstacles
"""

from dataclasses import dataclass, replace

from headrace.capacity.deployment import Deployment
from headrace.capacity.kv_groups import KvLayout, Sizing, printed_tokens
from headrace.capacity.memory import MemoryUse, layout_of, memory_use, sizing_of
from headrace.capacity.obstacles import Obstacle, obstacles

_NULL_BLOCKS = 1
"""Of the pool, handed to nobody."""
_WEIGHTS_OFF, _ACTIVATIONS_OFF, _NON_TORCH_OFF_BYTES = 0.02, 0.3, 0.35 * (1 << 30)
_GRAPHS_OFF = (0.2, 1.5)
"""How far off the estimates were on logged start-ups: docs/planning.md."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a person wants to know it for."""

    max_model_len: int
    block_size: int = 16
    kv_cache_memory_bytes: int | None = None
    """None: what `gpu_memory_utilization` leaves."""
    weights_bytes: int | None = None
    """Of the whole model, where the file says; None: worked out from the shape."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One replica on its GPUs. Bytes and blocks are of one device, requests and tokens of the replica."""

    deployment: Deployment
    asked: Asked
    memory: MemoryUse
    layout: KvLayout
    sizing: Sizing
    kv_cache_bytes: int
    obstacles: tuple[Obstacle, ...]

    @property
    def num_blocks(self) -> int:
        """The null block included, as vLLM counts."""
        return self.layout.num_blocks(self.kv_cache_bytes)

    @property
    def max_concurrency(self) -> float:
        """Requests of `max_model_len` at once."""
        return self.layout.max_concurrency(self.num_blocks, self.asked.max_model_len, self.sizing)

    @property
    def tokens(self) -> int:
        """What vLLM of this version prints as the KV cache's size."""
        by_groups = self.deployment.accounting.prints_by_groups
        return printed_tokens(
            self.layout, self.num_blocks, self.asked.max_model_len, self.sizing, by_groups=by_groups
        )

    @property
    def longest(self) -> int:
        """The largest `max_model_len` that fits, up to the model's own; 0 where none does."""
        usable = self.num_blocks - _NULL_BLOCKS
        return self.layout.longest(usable, self.deployment.model.max_model_len, self.sizing)

    @property
    def bytes_per_request(self) -> int:
        """Of KV cache for one request of `max_model_len`: vLLM's "X GiB KV cache is needed"."""
        return self.layout.bytes_per_block * self.layout.blocks_per_request(
            self.asked.max_model_len, self.sizing
        )

    @property
    def fatal(self) -> tuple[Obstacle, ...]:
        return tuple(each for each in self.obstacles if each.is_fatal)

    @property
    def has_room(self) -> bool:
        """Whether one request of `max_model_len` fits; vLLM refuses to start otherwise."""
        return self.kv_cache_bytes > 0 and self.bytes_per_request <= self.kv_cache_bytes

    @property
    def overdrawn_bytes(self) -> int:
        """What the device lacks for a KV cache whose size was given: no share of the device bounds that."""
        use = self.memory
        taken = use.weights + use.activations + use.non_torch + use.cuda_graphs + self.kv_cache_bytes
        return 0 if self.is_estimated else max(0, taken - use.total)

    @property
    def fits(self) -> bool:
        return self.has_room and not self.overdrawn_bytes and not self.fatal

    @property
    def is_estimated(self) -> bool:
        """Whether the size of the KV cache is, and not given."""
        return self.asked.kv_cache_memory_bytes is None

    @property
    def kv_cache_between(self) -> tuple[int, int]:
        """Bytes that the KV cache may have in the end, by how far off the estimates were elsewhere."""
        if not self.is_estimated:
            return self.kv_cache_bytes, self.kv_cache_bytes
        use = self.memory
        off = use.weights * _WEIGHTS_OFF + use.activations * _ACTIVATIONS_OFF + _NON_TORCH_OFF_BYTES
        fewer = int(self.kv_cache_bytes - off - use.counted_graphs * (_GRAPHS_OFF[1] - 1))
        more = int(self.kv_cache_bytes + off + use.counted_graphs * (1 - _GRAPHS_OFF[0]))
        return max(0, fewer), max(0, more)


def plan_of(deployment: Deployment, asked: Asked) -> Plan:
    """Raises nothing: what does not fit is in the plan."""
    memory = memory_use(deployment)
    if asked.weights_bytes is not None:
        shards = deployment.tensor_parallel_size * deployment.pipeline_parallel_size
        memory = replace(memory, weights=-(-asked.weights_bytes // shards))
    given = asked.kv_cache_memory_bytes
    return Plan(
        deployment,
        asked,
        memory,
        layout_of(deployment, asked.block_size),
        sizing_of(deployment),
        memory.kv_cache if given is None else given,
        obstacles(deployment, asked.max_model_len),
    )
