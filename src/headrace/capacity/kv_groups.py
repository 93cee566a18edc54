"""How vLLM lays out the KV cache of layers that keep different things, and what a request takes of it.

    KvLayers of each kind --kv_layout--> KvLayout --bytes--> blocks, concurrency, tokens, the longest request

One pool of equal blocks serves all. Layers that keep the same form groups of equally many layers; a block
belongs to one group at a time and holds one page of each of its layers, so every request draws blocks for
every group:

    full attention    ceil(L / b)                              grows with the request
    sliding window    ceil(min(W - 1 + in flight, L) / b) + 1  W: the window
    chunked           ceil(min(C + in flight, L) / b)          C: the chunk
    state             1, or 2 where prefixes of states are cached

    concurrency = blocks / sum over the groups        tokens printed = concurrency * max_model_len

"In flight" is `max_num_batched_tokens` for each step under way. Rules, and since when: vLLM 0.32's
`v1/core/kv_cache_utils.py` and `v1/kv_cache_interface.py`; docs/planning.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

_NEAR = 1.5
"""Kinds with fewer than so many times the layers of the smallest are padded to one group each."""


@dataclass(frozen=True, slots=True)
class KvLayers:
    """Layers that keep the same of a request, on one rank."""

    layers: int
    bytes_per_token: float = 0.0
    """Of one layer; 0 for a state."""
    window: int | None = None
    """Tokens that are kept; None: all."""
    is_chunked: bool = False
    state_bytes: int = 0
    """Of one layer: kept once, whatever the length."""


@dataclass(frozen=True, slots=True)
class Sizing:
    """What the size of a request's share depends on, beside its length."""

    tokens_in_flight: int
    """Scheduled and not yet settled: `max_num_batched_tokens` times the steps under way."""
    state_blocks: int = 1


@dataclass(frozen=True, slots=True)
class KvGroup:
    """`count` groups of layers that keep the same."""

    kind: KvLayers
    count: int
    block_size: int

    def blocks(self, tokens: int, sizing: Sizing) -> int:
        """That a request of so many tokens holds at most, in all of the groups."""
        return self.count * self._blocks_of_one(tokens, sizing)

    def _blocks_of_one(self, tokens: int, sizing: Sizing) -> int:
        if self.kind.state_bytes:
            return sizing.state_blocks
        if self.kind.window is None:
            return ceil(tokens / self.block_size)
        if self.kind.is_chunked:
            return ceil(min(self.kind.window + sizing.tokens_in_flight, tokens) / self.block_size)
        kept = min(self.kind.window - 1 + sizing.tokens_in_flight, tokens)
        return ceil(kept / self.block_size) + 1  # the window need not begin where a block does


@dataclass(frozen=True, slots=True)
class KvLayout:
    """The pool of one rank."""

    groups: tuple[KvGroup, ...]
    bytes_per_block: int

    @property
    def block_size(self) -> int:
        """Tokens of a block, of the group whose blocks hold fewest."""
        return min(group.block_size for group in self.groups)

    @property
    def num_groups(self) -> int:
        return sum(group.count for group in self.groups)

    @property
    def bytes_per_token(self) -> float:
        """By which a request grows once its windows are full and its states are there.

        Where every layer slides, by which it grows until then.
        """
        growing = [group for group in self.groups if group.kind.window is None and not group.kind.state_bytes]
        return sum(self.bytes_per_block * g.count / g.block_size for g in growing or self.groups)

    def num_blocks(self, kv_cache_bytes: int) -> int:
        return max(0, kv_cache_bytes) // self.bytes_per_block

    def blocks_per_request(self, tokens: int, sizing: Sizing) -> int:
        return sum(group.blocks(tokens, sizing) for group in self.groups)

    def max_concurrency(self, num_blocks: int, max_model_len: int, sizing: Sizing) -> float:
        """Requests of full length at once: vLLM's figure, null block and all."""
        return num_blocks / self.blocks_per_request(max_model_len, sizing)

    def longest(self, num_blocks: int, at_most: int, sizing: Sizing) -> int:
        """The longest request that fits into so many blocks, up to `at_most` tokens; 0 if none does."""
        fits, too_long = 0, at_most + 1
        while too_long - fits > 1:
            tried = (fits + too_long) // 2
            if self.blocks_per_request(tried, sizing) <= num_blocks:
                fits = tried
            else:
                too_long = tried
        return fits


def printed_tokens(
    layout: KvLayout, num_blocks: int, max_model_len: int, sizing: Sizing, *, by_groups: bool
) -> int:
    """What the line "KV cache size: N tokens" says.

    `by_groups`: the line of before 0.21, which shares the blocks evenly among the groups and counts in the
    smallest block size; for models with one group both say about the same, for others it is too low.
    """
    if by_groups:
        return num_blocks // layout.num_groups * layout.block_size
    return int(layout.max_concurrency(num_blocks, max_model_len, sizing) * max_model_len)


def kv_layout(kinds: Sequence[KvLayers], block_size: int) -> KvLayout:
    """`block_size` as asked for; layers with a state inflate it until a page of keys holds a state."""
    kinds = [kind for kind in kinds if kind.layers]
    assert kinds, "a model keeps something of a request"
    block_size = _inflated(kinds, block_size)
    pages = [kind.state_bytes or ceil(block_size * kind.bytes_per_token) for kind in kinds]
    largest = max(pages)
    size = _group_size([kind.layers for kind in kinds])
    groups = tuple(
        KvGroup(kind, ceil(kind.layers / size), _stretched(block_size, page, largest))
        for kind, page in zip(kinds, pages, strict=True)
    )
    return KvLayout(groups, size * largest)


def _inflated(kinds: Sequence[KvLayers], block_size: int) -> int:
    state = max(kind.state_bytes for kind in kinds)
    smallest = min((k.bytes_per_token for k in kinds if k.bytes_per_token), default=0.0)
    if not (state and smallest):
        return block_size
    return block_size * ceil(state / (block_size * smallest))


def _stretched(block_size: int, page: int, largest: int) -> int:
    """All pages are of one size: smaller ones hold more tokens where they divide it, or are padded."""
    return block_size * (largest // page) if largest % page == 0 else block_size


def _group_size(counts: Sequence[int]) -> int:
    fewest, most = min(counts), max(counts)
    return most if most < fewest * _NEAR else fewest


def share_of(kinds: Sequence[KvLayers], layers: int, of_layers: int) -> tuple[KvLayers, ...]:
    """Of a pipeline stage with so many of the layers: of each kind alike, rounded up."""
    return tuple(replace(kind, layers=ceil(kind.layers * layers / of_layers)) for kind in kinds)
