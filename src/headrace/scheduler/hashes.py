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
        while len(hashes) < count:
            known = len(hashes)
            parent = hashes[-1] if known else b""
            assert isinstance(parent, bytes), "one request, one kind of hash"
            salt = b"" if known else work.request.cache_salt.encode()
            tokens = array("q", work.token_ids[known * size : (known + 1) * size])
            # The parent has a fixed width and the salt comes last: no two inputs run together alike.
            hashes.append(blake2b(parent + tokens.tobytes() + salt, digest_size=16).digest())
