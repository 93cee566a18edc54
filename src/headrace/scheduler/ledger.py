"""Who holds which KV blocks. Every change of a block table happens here.

    find_prefix(work) -> blocks already computed     (reads)
    admit(work, hits, end) / extend(work, end) -> did it fit?     release(work)

A block becomes sharable the moment its last token is *scheduled*: whoever is admitted later in
the same step may read it, because the forward pass writes a layer's cache before it attends.
"""

from collections.abc import Sequence

from headrace.core.plan import Work
from headrace.core.settings import Settings
from headrace.scheduler.blocks import BlockPool
from headrace.scheduler.hashes import PrefixHashes


class KVLedger:
    """Block tables over one pool. A table grows at its end only and never changes in place."""

    def __init__(self, settings: Settings, hashes: PrefixHashes) -> None:
        self._hashes = hashes
        rules = settings.rules
        worthless_first = rules.unhashed_first if settings.enable_prefix_caching else rules.uncached_first
        self.pool = BlockPool(settings.num_gpu_blocks, worthless_first)
        self._block_size = settings.block_size
        self._shares_prefixes = settings.enable_prefix_caching
        self._whole_prompt_must_fit = settings.scheduler_reserve_full_isl and rules.has_full_isl_gate
        self._watermark_blocks = settings.watermark_blocks

    def sharable_blocks(self, work: Work) -> int:
        return self._hashes.sharable_blocks(work)

    def find_prefix(self, work: Work) -> list[int]:
        """Blocks that hold the longest known prefix of `work`, leaving at least one token to compute.

        The last token's logits are needed, so a prompt that is known whole computes its last block anew.
        """
        # The log probabilities of a prompt come only with computing all of it.
        if not self._shares_prefixes or work.request.sampling.num_prompt_logprobs is not None:
            return []
        most = (work.num_tokens - 1) // self._block_size
        if not work.num_preemptions and work.sharable_blocks < most:
            most = work.sharable_blocks
        self._hashes.extend(work, most)
        hits: list[int] = []
        find = self.pool.find
        for block_hash in work.block_hashes[:most]:
            block_id = find(block_hash)
            if block_id is None:
                break
            hits.append(block_id)
        return hits

    def admit(self, work: Work, hits: list[int], end: int, others_run: bool) -> bool:
        """Give `work` its `hits` and new blocks for its tokens up to `end`; False if they do not fit.

        With the full-prompt gate the whole of `work` must fit, although only `end` is allocated:
        half a prompt that can never be completed would only hold blocks. The watermark guards
        the running, so it does not apply where nobody runs.
        """
        pool = self.pool
        must_cover = max(end, work.num_tokens) if self._whole_prompt_must_fit else end
        wanted = self._blocks_for(must_cover) - len(hits) + pool.count_free(hits)
        if wanted + (self._watermark_blocks if others_run else 0) > pool.num_free:
            return False
        pool.touch(hits)
        work.block_ids = hits + pool.take(self._blocks_for(end) - len(hits))
        work.capacity_tokens = len(work.block_ids) * self._block_size
        work.num_cached_blocks = len(hits)
        self.register(work, end)
        return True

    def extend(self, work: Work, end: int) -> bool:
        """Let a running `work` hold its tokens up to `end`; False if the pool has too few blocks."""
        if end > work.capacity_tokens:
            wanted = self._blocks_for(end) - len(work.block_ids)
            if wanted > self.pool.num_free:
                return False
            work.block_ids += self.pool.take(wanted)
            work.capacity_tokens = len(work.block_ids) * self._block_size
        self.register(work, end)
        return True

    def hand_out(self, takers: Sequence[Work]) -> None:
        """One more block for each of these, in their order; the caller knows that there are enough."""
        for work, block_id in zip(takers, self.pool.take(len(takers)), strict=True):
            work.block_ids.append(block_id)
            work.capacity_tokens += self._block_size

    def release(self, work: Work) -> None:
        """Take all blocks back, the deepest first, so that the start of a prefix is forgotten last."""
        self.pool.give_back(reversed(work.block_ids))
        work.block_ids = []
        work.num_cached_blocks = 0
        work.capacity_tokens = 0

    def recall(self, work: Work) -> None:
        """Release the blocks of a request that will come back and ask for them."""
        first, full = work.sharable_blocks, work.num_cached_blocks
        if full > first:
            self._hashes.extend(work, full)
            self.pool.share(work.block_ids[first:full], work.block_hashes[first:full])
        self.release(work)

    def register(self, work: Work, end: int) -> None:
        """Keep the full blocks of `work` up to `end`, as far as its tokens are known, as prefixes.

        Those that nobody else could ask for are not looked up before `work` itself is preempted, if ever.
        """
        full = min(end, work.num_tokens) // self._block_size
        known = work.num_cached_blocks
        if not self._shares_prefixes or full <= known:
            return
        sharable = min(full, work.sharable_blocks)
        if known < sharable:
            self._hashes.extend(work, sharable)
            self.pool.remember(work.block_ids[known:sharable], work.block_hashes[known:sharable])
            known = sharable
        self.pool.remember_unshared(work.block_ids[known:full])
        work.num_cached_blocks = full

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self._block_size)
