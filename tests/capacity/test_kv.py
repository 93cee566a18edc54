"""The memory arithmetic, against figures worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.capacity.kv import (
    GIB,
    KvBudget,
    blocks_for_tokens,
    budget_for_bytes,
    bytes_per_token,
    default_kv_cache_memory_bytes,
)
from headrace.core.errors import BadInput


def test_a_token_of_smollm2_in_float32_takes_46_080_bytes() -> None:
    assert bytes_per_token(num_layers=30, num_kv_heads=3, head_size=64, bytes_per_number=4) == 46_080


def test_concurrency_is_vllms_figure() -> None:
    budget = KvBudget(num_blocks=2912, block_size=32, bytes_per_block=46_080 * 32)
    assert budget.max_concurrency(8192) == 2912 / 256
    assert budget.usable_tokens == 2911 * 32
    assert budget.bytes_per_token == 46_080


@given(st.integers(2, 1 << 40), st.integers(1, 1 << 24), st.sampled_from([16, 32]))
def test_a_budget_is_never_exceeded_and_wastes_less_than_a_block(
    given_bytes: int, per_block: int, size: int
) -> None:
    if given_bytes < 2 * per_block:
        with pytest.raises(BadInput, match="two blocks"):
            budget_for_bytes(given_bytes, per_block, size)
        return
    budget = budget_for_bytes(given_bytes, per_block, size)
    assert 0 <= given_bytes - budget.total_bytes < per_block


@given(st.integers(1, 1 << 20), st.integers(1, 256))
def test_blocks_hold_all_tokens_and_none_is_empty(tokens: int, size: int) -> None:
    blocks = blocks_for_tokens(tokens, size)
    assert (blocks - 1) * size < tokens <= blocks * size


def test_by_default_half_of_the_free_memory_is_taken_and_at_most_4_gib() -> None:
    assert default_kv_cache_memory_bytes(2 * GIB) == GIB
    assert default_kv_cache_memory_bytes(64 * GIB) == 4 * GIB
