"""How many requests of a workload fit at once: against a pool that is filled by hand."""

import random

import pytest

from headrace.capacity.crowd import crowd
from headrace.capacity.kv_groups import KvLayers, Sizing, kv_layout
from headrace.capacity.together import Life

LAYOUT = kv_layout([KvLayers(32, 4096.0)], 16)
SIZING = Sizing(2048)


def test_alike_requests_fit_as_often_as_the_pool_divides() -> None:
    """By one pool's size the last one fits or it does not; over all sizes it is told rightly."""
    lives = [Life(160, 1)] * 50
    pools = range(100, 200)
    found = [crowd(lives, LAYOUT, 1 + usable, 4096, SIZING) for usable in pools]
    divides = sum(usable // 10 for usable in pools)
    assert sum(each.typical for each in found) == pytest.approx(divides)
    assert all(each.safe == pytest.approx(usable / 10) for each, usable in zip(found, pools, strict=True))
    assert all(each.shared == 0 for each in found)


def test_long_answers_are_met_more_often_than_they_come() -> None:
    """One in ten answers is a hundred times as long: at a random instant nearly all that are there are."""
    lives = [Life(16, 100_0 if each % 10 == 0 else 10) for each in range(100)]
    found = crowd(lives, LAYOUT, 10_001, 8192, SIZING)
    of_the_long = 1 + 1000 / 2 / 16
    assert found.mean_blocks == pytest.approx(of_the_long, rel=0.1)


def test_what_is_safe_is_full_at_one_instant_in_twenty() -> None:
    chance = random.Random(7)
    lives = [Life(chance.randint(10, 4000), chance.randint(1, 800)) for _ in range(400)]
    blocks = 6001
    found = crowd(lives, LAYOUT, blocks, 8192, SIZING)
    drawn = [sum(_held(chance, lives) for _ in range(int(found.safe))) for _ in range(200)]
    full = sum(held > blocks - 1 for held in drawn) / len(drawn)
    assert 0.01 < full < 0.12
    assert found.safe < found.typical


def test_long_requests_that_come_together_leave_room_for_fewer() -> None:
    mixed = [Life(64 if each % 2 else 3200, 64) for each in range(6400)]
    apart = [Life(64 if each // 400 % 2 else 3200, 64) for each in range(6400)]
    of_mixed, of_apart = (crowd(lives, LAYOUT, 10_001, 4096, SIZING) for lives in (mixed, apart))
    assert of_apart.typical == pytest.approx(of_mixed.typical)
    assert of_apart.safe < 0.75 * of_mixed.safe


def _held(chance: random.Random, lives: list[Life]) -> int:
    life = chance.choices(lives, weights=[each.output_tokens for each in lives])[0]
    return LAYOUT.blocks_per_request(life.prompt_tokens + chance.randrange(life.output_tokens), SIZING)


def test_shared_prompts_are_held_once() -> None:
    shared = [Life(1024, 16, (1, 2, 3, 100 + each), 256) for each in range(64)]
    apart = [Life(1024, 16)] * 64
    with_sharing, without = (crowd(lives, LAYOUT, 1001, 4096, SIZING) for lives in (shared, apart))
    assert with_sharing.shared == pytest.approx(0.75, abs=0.05)
    assert 2.5 * without.typical < with_sharing.typical < 4 * without.typical


def test_what_is_too_long_is_counted_and_left_out() -> None:
    found = crowd([Life(100, 10), Life(9000, 10)], LAYOUT, 101, 16_384, SIZING)
    assert found.too_long == 1
    assert found.typical > 0
    assert crowd([Life(9000, 10)], LAYOUT, 101, 16_384, SIZING).typical == 0
