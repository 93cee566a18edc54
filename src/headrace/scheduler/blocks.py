"""The pool of KV blocks: who may be handed out next, who still remembers a prefix.

It counts references and keeps order; it knows neither requests nor tokens.

    free queue   7, 3, ... 9   |   4, 12, ... 5
                 worthless     |   remembered
                 ^ handed out next           ^ evicted last

Freed blocks that hold a remembered prefix go to the back, so that the least recently used is
forgotten first; the others go to the front, as they are worth nothing more. This is the order
of vLLM 0.32 (`BlockPool.free_blocks`). In that of earlier versions (core/versions.py) all freed
blocks go to the back; the front then only holds those that were never handed out.

vLLM links all blocks into one ring. But a free block is forgotten only when it is handed out, so those
worth nothing always stand before those remembered: a stack and a queue, which move runs of blocks at once.
"""

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from itertools import repeat

from headrace.scheduler.block_lives import BlockLives

NULL_BLOCK = 0

UNSHARED = "unshared"
"""Instead of a hash: worth keeping, but only to the request that computed it (scheduler/ledger.py)."""

Holder = int | dict[int, None]
"""Nearly every prefix has one block; twins stand in a dict, which keeps the order of insertion."""


class BlockPool:
    """`num_blocks` blocks with ids 0 up; block 0 is the null block and is never handed out."""

    def __init__(self, num_blocks: int, worthless_first: bool = True) -> None:
        self.lives: BlockLives | None = None
        """Who looks on, if anybody does."""
        self._worthless_first = worthless_first
        self.num_free = num_blocks - 1
        self._worthless = list(range(num_blocks - 1, NULL_BLOCK, -1))  # the last is handed out next
        self._remembered = deque[int]()  # the first is evicted next, unless it was touched meanwhile:
        self._passed_over: dict[int, int] = {}  # how many entries of a block in `_remembered` no longer count
        self._references = [0] * num_blocks
        self._hash_of: list[Hashable | None] = [None] * num_blocks
        self._holders: dict[Hashable, Holder] = {}

    def take(self, count: int) -> list[int]:
        """Hand out `count` blocks from the front; prefixes they remembered are forgotten."""
        assert count <= self.num_free, (
            f"{count} blocks wanted, {self.num_free} free: the caller must ask first"
        )
        self.num_free -= count
        worthless, references = self._worthless, self._references
        if count <= len(worthless):
            taken = worthless[: -count - 1 : -1]
            del worthless[len(worthless) - count :]
        else:
            taken = worthless[::-1]
            worthless.clear()
            taken += self._evict(count - len(taken))
        for block_id in taken:
            references[block_id] = 1
        if self.lives is not None:
            self.lives.handed_out(taken)
        return taken

    def give_back(self, block_ids: Iterable[int]) -> None:
        """Drop one reference of each, in this order; what nobody holds any more becomes free."""
        references, hash_of, worthless_first = self._references, self._hash_of, self._worthless_first
        worthless: list[int] = []
        remembered: list[int] = []
        for block_id in block_ids:
            left = references[block_id] = references[block_id] - 1
            if left:
                continue
            if worthless_first and hash_of[block_id] is None:
                worthless.append(block_id)
            else:
                remembered.append(block_id)
        worthless.reverse()
        self._worthless += worthless
        self._remembered += remembered
        self.num_free += len(worthless) + len(remembered)

    def touch(self, block_ids: Sequence[int]) -> None:
        """Add a reference to each; free ones leave the queue, wherever they stand in it."""
        if self.lives is not None:
            self.lives.found(block_ids)
        references, passed_over = self._references, self._passed_over
        for block_id in block_ids:
            if references[block_id] == 0:
                passed_over[block_id] = passed_over.get(block_id, 0) + 1
                self.num_free -= 1
            references[block_id] += 1
        if len(self._remembered) > 2 * len(references):
            self._remembered = deque(self._evicted_next())
            passed_over.clear()

    def count_free(self, block_ids: Iterable[int]) -> int:
        """How many of these nobody holds: touching them uses up free blocks."""
        references = self._references
        return sum(1 for block_id in block_ids if references[block_id] == 0)

    def remember(self, block_ids: Sequence[int], block_hashes: Sequence[Hashable]) -> None:
        """These hold, or will hold after this step, the prefixes with these hashes, one for one."""
        hash_of, holders = self._hash_of, self._holders
        for block_id, block_hash in zip(block_ids, block_hashes, strict=True):
            hash_of[block_id] = block_hash
            holder = holders.setdefault(block_hash, block_id)
            if holder == block_id:
                continue  # nobody else holds it
            if isinstance(holder, int):
                holders[block_hash] = {holder: None, block_id: None}
            else:
                holder[block_id] = None

    def remember_unshared(self, block_ids: Iterable[int]) -> None:
        """These are evicted in their turn like all others, but nobody finds them."""
        for block_id in block_ids:
            self._hash_of[block_id] = UNSHARED

    def share(self, block_ids: Sequence[int], block_hashes: Sequence[Hashable]) -> None:
        """Remember by these hashes, one for one, what was unshared so far."""
        for block_id, block_hash in zip(block_ids, block_hashes, strict=True):
            if self._hash_of[block_id] is UNSHARED:
                self.remember([block_id], [block_hash])

    def find(self, block_hash: Hashable) -> int | None:
        """A block with this prefix: of twins the one remembered first."""
        holder = self._holders.get(block_hash)
        return next(iter(holder)) if isinstance(holder, dict) else holder

    def free_order(self) -> list[int]:
        """Free blocks, the next to be handed out first."""
        return [*reversed(self._worthless), *self._evicted_next()]

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
        assert all(self._hash_of[b] is None for b in self._worthless), (
            "a remembered block counts as worthless"
        )
        worth_keeping = {b: h for b, h in enumerate(self._hash_of) if h is not None}
        assert not self._worthless_first or worth_keeping.keys() >= set(self._evicted_next()), (
            "a forgotten block would be forgotten again"
        )
        remembered = {b: h for b, h in worth_keeping.items() if h != UNSHARED}
        indexed = {
            b: h
            for h, held_by in self._holders.items()
            for b in ([held_by] if isinstance(held_by, int) else held_by)
        }
        assert indexed == remembered, "the prefix index and the blocks disagree"

    def _evict(self, count: int) -> list[int]:
        """The `count` remembered blocks that were freed first; their prefixes are forgotten."""
        evicted = self._first_freed(count)
        hash_of, holders = self._hash_of, self._holders
        hashes = [hash_of[block_id] for block_id in evicted]
        for block_id in evicted:
            hash_of[block_id] = None
        if hashes.count(UNSHARED) == count:
            return evicted
        held_by = list(map(holders.pop, hashes, repeat(None)))
        if held_by != evicted:  # some are unshared, or twins, of whom the others keep the prefix
            for block_hash, holder in zip(hashes, held_by, strict=True):
                if isinstance(holder, dict):
                    holders[block_hash] = holder
            for block_hash, block_id in zip(hashes, evicted, strict=True):
                self._leave_twins(block_hash, block_id)
        return evicted

    def _first_freed(self, count: int) -> list[int]:
        first_freed, passed_over = self._remembered.popleft, self._passed_over
        if not passed_over:
            return [first_freed() for _ in range(count)]
        found: list[int] = []
        while len(found) < count:
            block_id = first_freed()
            if passed_over and block_id in passed_over:
                passed_over[block_id] -= 1
                if not passed_over[block_id]:
                    del passed_over[block_id]
            else:
                found.append(block_id)
        return found

    def _leave_twins(self, block_hash: Hashable, block_id: int) -> None:
        holder = self._holders.get(block_hash)
        if isinstance(holder, dict):
            del holder[block_id]
            if not holder:
                del self._holders[block_hash]

    def _evicted_next(self) -> list[int]:
        """Remembered free blocks in the order of eviction, without entries that no longer count."""
        left_out = self._passed_over.copy()
        order: list[int] = []
        for block_id in self._remembered:
            if left_out.get(block_id):
                left_out[block_id] -= 1
            else:
                order.append(block_id)
        return order
