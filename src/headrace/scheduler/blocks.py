"""The pool of KV blocks: who may be handed out next, who still remembers a prefix.

It counts references and keeps order; it knows neither requests nor tokens.

    free queue   0 <-> 7 <-> 3 <-> ... <-> 9 <-> 0      a ring through the null block
                     ^ handed out next         ^ evicted last

Freed blocks that hold a remembered prefix go to the back, so that the least recently used is
forgotten first; the others go to the front, as they are worth nothing more. This is the order
of vLLM 0.32 (`BlockPool.free_blocks`); versions before 0.22 put all at the back.
"""

from collections.abc import Hashable, Iterable, Sequence

NULL_BLOCK = 0


class BlockPool:
    """`num_blocks` blocks with ids 0 up; block 0 is the null block and is never handed out."""

    def __init__(self, num_blocks: int) -> None:
        self.num_free = num_blocks - 1
        self._next = [*range(1, num_blocks), NULL_BLOCK]
        self._previous = [num_blocks - 1, *range(num_blocks - 1)]
        self._references = [0] * num_blocks
        self._hash_of: list[Hashable | None] = [None] * num_blocks
        # Nearly every prefix has one block; twins stand in a dict, which keeps the order of insertion.
        self._holders: dict[Hashable, int | dict[int, None]] = {}

    def take(self, count: int) -> list[int]:
        """Hand out `count` blocks from the front; prefixes they remembered are forgotten."""
        assert count <= self.num_free, (
            f"{count} blocks wanted, {self.num_free} free: the caller must ask first"
        )
        following, references = self._next, self._references
        taken: list[int] = []
        block_id = following[NULL_BLOCK]
        for _ in range(count):
            taken.append(block_id)
            references[block_id] = 1
            if self._hash_of[block_id] is not None:
                self._forget(block_id)
            block_id = following[block_id]
        following[NULL_BLOCK] = block_id
        self._previous[block_id] = NULL_BLOCK
        self.num_free -= count
        return taken

    def give_back(self, block_ids: Iterable[int]) -> None:
        """Drop one reference of each, in this order; what nobody holds any more becomes free."""
        worthless: list[int] = []
        remembered: list[int] = []
        for block_id in block_ids:
            self._references[block_id] -= 1
            if self._references[block_id] == 0:
                (worthless if self._hash_of[block_id] is None else remembered).append(block_id)
        self._link(worthless, NULL_BLOCK, self._next[NULL_BLOCK])
        self._link(remembered, self._previous[NULL_BLOCK], NULL_BLOCK)

    def touch(self, block_ids: Iterable[int]) -> None:
        """Add a reference to each; free ones leave the queue, wherever they stand in it."""
        for block_id in block_ids:
            if self._references[block_id] == 0:
                before, after = self._previous[block_id], self._next[block_id]
                self._next[before] = after
                self._previous[after] = before
                self.num_free -= 1
            self._references[block_id] += 1

    def count_free(self, block_ids: Iterable[int]) -> int:
        """How many of these nobody holds: touching them uses up free blocks."""
        references = self._references
        return sum(1 for block_id in block_ids if references[block_id] == 0)

    def remember(self, block_id: int, block_hash: Hashable) -> None:
        """`block_id` holds, or will hold after this step, the prefix with this hash."""
        self._hash_of[block_id] = block_hash
        holder = self._holders.get(block_hash)
        if holder is None:
            self._holders[block_hash] = block_id
        elif isinstance(holder, int):
            self._holders[block_hash] = {holder: None, block_id: None}
        else:
            holder[block_id] = None

    def find(self, block_hash: Hashable) -> int | None:
        """A block with this prefix: of twins the one remembered first."""
        holder = self._holders.get(block_hash)
        return next(iter(holder)) if isinstance(holder, dict) else holder

    def free_order(self) -> list[int]:
        """Free blocks, the next to be handed out first."""
        order: list[int] = []
        block_id = self._next[NULL_BLOCK]
        while block_id != NULL_BLOCK:
            order.append(block_id)
            block_id = self._next[block_id]
        return order

    def check(self, held: Iterable[Sequence[int]]) -> None:
        """Recount everything against the block tables of all requests. Raises `AssertionError`."""
        references = [0] * len(self._references)
        for block_ids in held:
            assert len(set(block_ids)) == len(block_ids), f"a block twice in one table: {block_ids}"
            for block_id in block_ids:
                references[block_id] += 1
        assert references == self._references, "references differ from the block tables"
        assert references[NULL_BLOCK] == 0, "the null block is held"
        order = self.free_order()
        unheld = [b for b, count in enumerate(references) if count == 0 and b != NULL_BLOCK]
        assert sorted(order) == unheld, "the free queue is not the set of unheld blocks"
        assert len(order) == self.num_free, f"{len(order)} blocks in the free queue, {self.num_free} counted"
        assert all(self._previous[self._next[b]] == b for b in (NULL_BLOCK, *order)), "a broken link"
        remembered = {b: h for b, h in enumerate(self._hash_of) if h is not None}
        indexed = {
            b: h
            for h, held_by in self._holders.items()
            for b in ([held_by] if isinstance(held_by, int) else held_by)
        }
        assert indexed == remembered, "the prefix index and the blocks disagree"

    def _link(self, block_ids: list[int], before: int, after: int) -> None:
        """Insert a run of blocks between two neighbours in the ring."""
        for block_id in block_ids:
            self._next[before] = block_id
            self._previous[block_id] = before
            before = block_id
        self._next[before] = after
        self._previous[after] = before
        self.num_free += len(block_ids)

    def _forget(self, block_id: int) -> None:
        block_hash = self._hash_of[block_id]
        assert block_hash is not None, f"block {block_id} remembers nothing"
        self._hash_of[block_id] = None
        holder = self._holders[block_hash]
        if isinstance(holder, dict):
            del holder[block_id]
        if not isinstance(holder, dict) or not holder:
            del self._holders[block_hash]
