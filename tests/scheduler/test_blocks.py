"""The block pool against a model of it that is too simple to be wrong."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.scheduler.blocks import BlockPool

NUM_BLOCKS = 9


class NaivePool:
    """Lists and linear searches: slow, obvious."""

    def __init__(self, worthless_first: bool) -> None:
        self.worthless_first = worthless_first
        self.queue = list(range(1, NUM_BLOCKS))
        self.references = dict.fromkeys(self.queue, 0)
        self.remembered: list[tuple[bytes, int]] = []  # in the order of registration

    def take(self, count: int) -> list[int]:
        taken, self.queue = self.queue[:count], self.queue[count:]
        self.remembered = [(h, b) for h, b in self.remembered if b not in taken]
        for block_id in taken:
            self.references[block_id] = 1
        return taken

    def give_back(self, block_ids: list[int]) -> None:
        for block_id in block_ids:
            self.references[block_id] -= 1
        freed = [b for b in block_ids if self.references[b] == 0]
        known = {b for _, b in self.remembered} if self.worthless_first else set(freed)
        self.queue = [b for b in freed if b not in known] + self.queue + [b for b in freed if b in known]

    def touch(self, block_ids: list[int]) -> None:
        for block_id in block_ids:
            self.references[block_id] += 1
            self.queue = [b for b in self.queue if b != block_id]

    def find(self, block_hash: bytes) -> int | None:
        return next((b for h, b in self.remembered if h == block_hash), None)


steps = st.lists(
    st.tuples(st.sampled_from(["take", "give", "touch", "remember"]), st.integers(0, 30)), max_size=60
)


@given(steps, st.booleans())
def test_the_pool_hands_out_frees_and_forgets_like_the_obvious_one(
    moves: list[tuple[str, int]], worthless_first: bool
) -> None:
    pool, naive = BlockPool(NUM_BLOCKS, worthless_first), NaivePool(worthless_first)
    tables = list[list[int]]()
    for verb, number in moves:
        if verb == "take" and number <= pool.num_free:
            taken = pool.take(number)
            assert taken == naive.take(number)
            tables.append(taken)
        elif verb == "give" and tables:
            table = tables.pop(number % len(tables))
            pool.give_back(reversed(table))
            naive.give_back(table[::-1])
        elif verb == "touch":
            block_id = pool.find(str(number % 4).encode())
            assert block_id == naive.find(str(number % 4).encode())
            if block_id is not None:
                assert pool.count_free([block_id]) == (naive.references[block_id] == 0)
                pool.touch([block_id])
                naive.touch([block_id])
                tables.append([block_id])
        elif verb == "remember" and tables and tables[-1]:
            block_id, block_hash = tables[-1][0], str(number % 4).encode()
            if block_id not in {b for _, b in naive.remembered}:
                pool.remember([block_id], [block_hash])
                naive.remembered.append((block_hash, block_id))
        assert pool.free_order() == naive.queue
        pool.check(tables)


def test_the_null_block_is_never_handed_out() -> None:
    pool = BlockPool(4)
    assert pool.take(3) == [1, 2, 3]
    assert pool.num_free == 0


def test_blocks_without_a_prefix_are_reused_first_and_known_ones_last() -> None:
    # vLLM 0.32, ten blocks of which 1..4 are held and the fourth is partial: 4, 5..9, 3, 2, 1.
    pool = BlockPool(10)
    table = pool.take(4)
    pool.remember(table[:3], [bytes([block_id]) for block_id in table[:3]])
    pool.give_back(reversed(table))
    assert pool.free_order() == [4, 5, 6, 7, 8, 9, 3, 2, 1]


def test_without_known_prefixes_freed_blocks_come_back_last_in_first_out() -> None:
    pool = BlockPool(10)
    pool.give_back(reversed(pool.take(4)))
    assert pool.free_order() == [4, 3, 2, 1, 5, 6, 7, 8, 9]


def test_a_prefix_that_is_used_again_and_again_leaves_nothing_behind() -> None:
    pool = BlockPool(4)
    table = pool.take(3)
    pool.remember(table, [b"a", b"b", b"c"])
    pool.give_back(table)
    for _ in range(100):
        pool.touch([2])
        pool.give_back([2])
    assert pool.free_order() == [1, 3, 2]
    assert len(pool._remembered) <= 2 * 4 + 1
    pool.check([])
    assert pool.take(3) == [1, 3, 2]
    assert pool.find(b"b") is None
