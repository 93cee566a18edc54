"""What makes two KV blocks the same: a hash over everything before them.

Where tokens are known the chain is computed from them. Where they are not (a simulated workload
knows lengths and which prompts share a beginning), whoever knows that says it in their place.
"""

from array import array
from collections.abc import Hashable
from hashlib import blake2b
from typing import Protocol

from headrace.core.plan import Work

BlockHash = Hashable


class PrefixHashes(Protocol):
    """Equal hashes mean: the same tokens, from the very beginning to the end of that block."""

    def extend(self, work: Work, count: int) -> None:
        """Append to `work.block_hashes` until it has `count`, one for each full block of its tokens."""
        ...

    def sharable_blocks(self, work: Work) -> int:
        """How many of its first blocks another request could ask for."""
        ...


class TokenHashes:
    """A chain of hashes over token ids, the request's salt in its first link."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size

    def sharable_blocks(self, work: Work) -> int:
        return work.token_limit // self._block_size

    def extend(self, work: Work, count: int) -> None:
        hashes, size = work.block_hashes, self._block_size
        known = len(hashes)
        if known >= count:
            return
        parent = hashes[-1] if known else blake2b(work.request.cache_salt.encode(), digest_size=16).digest()
        assert isinstance(parent, bytes), "one request, one kind of hash"
        tokens = array("I", work.token_ids[known * size : count * size])
        data, width = tokens.tobytes(), size * tokens.itemsize
        for begin in range(0, len(data), width):
            parent = blake2b(parent + data[begin : begin + width], digest_size=16).digest()
            hashes.append(parent)
