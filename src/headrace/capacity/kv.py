"""How much KV cache there is and what it holds: bytes, blocks, tokens, requests.

Pure arithmetic. What a block costs is the executor's to say, how much memory the machine has the
caller's to look up.
"""

from dataclasses import dataclass

from headrace.core.errors import BadInput

GIB = 1 << 30
_MOST_BY_DEFAULT = 4 * GIB


@dataclass(frozen=True, slots=True)
class KvBudget:
    """One replica's KV cache."""

    num_blocks: int
    """The null block included: this is `Settings.num_gpu_blocks`."""
    block_size: int
    bytes_per_block: int

    @property
    def total_bytes(self) -> int:
        return self.num_blocks * self.bytes_per_block

    @property
    def bytes_per_token(self) -> float:
        return self.bytes_per_block / self.block_size

    @property
    def usable_tokens(self) -> int:
        return (self.num_blocks - 1) * self.block_size

    def max_concurrency(self, max_model_len: int) -> float:
        return max_concurrency(self.num_blocks, self.block_size, max_model_len)


def max_concurrency(num_blocks: int, block_size: int, max_model_len: int) -> float:
    """How many requests of full length fit at once; vLLM's figure, null block and all."""
    return num_blocks / blocks_for_tokens(max_model_len, block_size)


def budget_for_bytes(kv_cache_memory_bytes: int, bytes_per_block: int, block_size: int) -> KvBudget:
    """As many whole blocks as fit. Raises `BadInput` if not even two do."""
    num_blocks = kv_cache_memory_bytes // bytes_per_block
    if num_blocks < 2:
        raise BadInput(
            f"kv_cache_memory_bytes is {kv_cache_memory_bytes}; two blocks, the least there can be, "
            f"take {2 * bytes_per_block} bytes ({bytes_per_block} for {block_size} tokens)",
            f"give at least {2 * bytes_per_block} bytes",
        )
    return KvBudget(num_blocks, block_size, bytes_per_block)


def bytes_per_token(num_layers: int, num_kv_heads: int, head_size: int, bytes_per_number: float) -> float:
    """Keys and values of all layers."""
    return 2 * num_layers * num_kv_heads * head_size * bytes_per_number


def blocks_for_tokens(tokens: int, block_size: int) -> int:
    return -(-tokens // block_size)


def default_kv_cache_memory_bytes(available_ram_bytes: int) -> int:
    """Half of the memory that is free once the weights are loaded, and at most 4 GiB.

    Half, because the rest has other users: activations, the HTTP process, the person's own programs;
    and a cache that makes the machine swap is slower than none. 4 GiB is what vLLM takes on CPUs
    unless told otherwise: beyond that a CPU has not the arithmetic to keep so many requests going.
    """
    return min(available_ram_bytes // 2, _MOST_BY_DEFAULT)


def kv_bytes_of_share(share: float, total_bytes: int, available_bytes: int, weights_bytes: int) -> int:
    """What `gpu_memory_utilization` leaves for the KV cache, as vLLM reads it: of all memory, for all uses.

    Raises `BadInput` when so much is not free, or the weights leave nothing.
    """
    if not 0.0 < share <= 1.0:
        raise BadInput(f"gpu_memory_utilization is {share}; it is a share of all memory, in (0, 1]")
    wanted = int(total_bytes * share)
    if wanted > available_bytes:
        raise BadInput(
            f"{share:g} of the memory is {wanted:,} bytes; {available_bytes:,} of {total_bytes:,} are free",
            f"give at most {available_bytes / total_bytes - 0.005:.2f}, or end what takes the memory",
        )
    if wanted <= weights_bytes:
        raise BadInput(
            f"{share:g} of the memory is {wanted:,} bytes, and the weights alone take {weights_bytes:,}",
            f"give more than {weights_bytes / total_bytes + 0.005:.2f}",
        )
    return wanted - weights_bytes
