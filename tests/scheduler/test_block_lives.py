"""How long KV blocks live is measured on a fair sample, and a reuse is told when it happens."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.scheduler.block_lives import BlockLives
from headrace.scheduler.blocks import BlockPool


def test_a_block_lives_until_it_is_handed_out_anew_and_lies_idle_since_it_was_last_found() -> None:
    pool = BlockPool(2)
    pool.lives = lives = BlockLives(1.0)
    block_ids = pool.take(1)
    pool.remember(block_ids, ["prefix"])
    pool.give_back(block_ids)
    lives.now_ns = 30
    pool.touch(block_ids)
    news = lives.take_news()
    assert news is not None
    assert (news.reuse_gaps_ns, news.lifetimes_ns) == ([30], [])
    pool.give_back(block_ids)
    lives.now_ns = 100
    assert pool.take(1) == block_ids
    news = lives.take_news()
    assert news is not None
    assert (news.lifetimes_ns, news.idle_ns, news.reuse_gaps_ns) == ([100], [70], [])
    assert lives.take_news() is None


@given(st.sampled_from([0.01, 0.1, 0.5, 1.0]), st.integers(1, 200))
def test_the_sample_is_fair_whatever_the_length_of_the_prompts(share: float, blocks: int) -> None:
    """A stride of a hundred would always look at the first block of a prompt of a hundred."""
    lives = BlockLives(share)
    prompts, firsts, looked_at = 3_000, 0, 0
    for _ in range(prompts):
        lives._born_ns.clear()
        lives.handed_out(range(blocks))
        firsts += 0 in lives._born_ns
        looked_at += len(lives._born_ns)
    assert abs(looked_at - share * prompts * blocks) < 0.02 * prompts * blocks
    assert abs(firsts - share * prompts) < 0.05 * prompts
