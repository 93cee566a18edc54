"""What of a TTFT is the load's."""

from dataclasses import replace

import pytest

from headrace.core.timeline import Timeline
from headrace.measure.queueing import queue_shares
from tests.measure.samples import measurement, timeline


def of(ttft_s: float, prompt: int, cached: int = 0, request_class: str = "short") -> Timeline:
    return replace(timeline(ttft_s, request_class), prompt_tokens=prompt, cached_tokens=cached)


def test_a_request_alone_is_set_beside_those_with_as_much_to_compute() -> None:
    short, long = [of(0.2, 90 + n) for n in range(20)], [of(4.0, 900 + n) for n in range(20)]
    run = replace(measurement(*short, *long), alone=(of(0.1, 100), of(1.0, 910)))

    share = queue_shares(run)["short"]

    assert (share.alone, share.alone_s) == (2, pytest.approx(0.55))
    assert share.loaded_s == pytest.approx((0.2 + 4.0) / 2)
    assert share.share == pytest.approx(1 - 0.55 / 2.1)


def test_what_a_prefix_cache_had_was_computed_by_nobody() -> None:
    hits, misses = [of(0.3, 1000, 900) for _ in range(10)], [of(5.0, 1000) for _ in range(10)]
    run = replace(measurement(*hits, *misses), alone=(of(0.2, 100),))

    assert queue_shares(run)["short"].loaded_s == pytest.approx(0.3)


def test_where_none_is_near_the_nearest_count() -> None:
    run = replace(measurement(*(of(n / 10, 100 * n) for n in range(1, 21))), alone=(of(1.0, 5000),))

    assert queue_shares(run)["short"].loaded_s == pytest.approx(1.8)


def test_faster_under_load_than_alone_is_none_of_the_loads() -> None:
    run = replace(measurement(of(0.1, 40)), alone=(of(0.2, 40),))

    assert queue_shares(run)["short"].share == 0.0


def test_a_class_that_was_only_sent_alone_or_only_loaded_has_no_share() -> None:
    run = replace(measurement(of(0.1, 40, request_class="long")), alone=(of(0.2, 40),))

    assert queue_shares(run) == {}
