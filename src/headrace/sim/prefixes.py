"""Which KV blocks of a trace are the same, where no token is known.

A trace names prefixes by ids, each for a run of tokens from the very beginning (512 in Mooncake's,
64 or 16 elsewhere). A KV block is shared when it lies wholly under the ids two prompts have in common.
"""

from headrace.core.plan import Work
from headrace.workload.trace import TraceRequest

_OWN_BLOCKS = 1 << 24  # more blocks than any request has


class TracePrefixes:
    """Hashes for `scheduler.hashes.PrefixHashes`: the trace's ids where it has some, else nobody else's."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._traced: dict[str, TraceRequest] = {}

    def know(self, request_id: str, traced: TraceRequest) -> None:
        """`request_id` is about to be submitted."""
        if traced.prefix_ids:
            self._traced[request_id] = traced

    def forget(self, request_id: str) -> None:
        self._traced.pop(request_id, None)

    def sharable_blocks(self, work: Work) -> int:
        traced = self._traced.get(work.request.request_id)
        return 0 if traced is None else self._covered_blocks(traced)

    def extend(self, work: Work, count: int) -> None:
        hashes = work.block_hashes
        traced = self._traced.get(work.request.request_id)
        if traced is not None:
            size, span = self._block_size, traced.prefix_block_tokens
            for index in range(len(hashes), min(count, self._covered_blocks(traced))):
                hashes.append((traced.prefix_ids[((index + 1) * size - 1) // span], index))
        own = work.arrival * _OWN_BLOCKS
        hashes.extend(range(own + len(hashes), own + count))

    def _covered_blocks(self, traced: TraceRequest) -> int:
        named_tokens = len(traced.prefix_ids) * traced.prefix_block_tokens
        return min(traced.prompt_tokens, named_tokens) // self._block_size
