import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.bill import CAUSES, Cause
from headrace.core.errors import BadInput
from headrace.core.measurement import Measurement
from headrace.core.slow import slow_bill, slow_requests
from headrace.measure.summary import Percentiles, client_lag_s, percentiles, summarise
from tests.measure.samples import failure, measurement, measurements, timeline


def bill(kv_s: float) -> dict[Cause, float]:
    return dict.fromkeys(CAUSES, 0.0) | {Cause.KV: kv_s}


def test_percentiles_are_numpys_linear_ones() -> None:
    found = percentiles([4.0, 1.0, 2.0, 3.0])

    assert found is not None
    assert (found.count, found.mean, found.p50) == (4, 2.5, 2.5)
    assert (found.p95, found.p99) == pytest.approx((3.85, 3.97))
    assert percentiles([7.0]) == Percentiles(1, 7.0, 7.0, 7.0, 7.0)
    assert percentiles([]) is None


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_percentiles_lie_within_the_samples_and_rise(samples: list[float]) -> None:
    found = percentiles(samples)

    assert found is not None
    assert found.count == len(samples)
    assert min(samples) <= found.p50 <= found.p95 <= found.p99 <= max(samples)


def test_every_class_is_summed_up_and_all_of_them_together() -> None:
    run = measurement(
        timeline(0.5, "short", (0.1, 0.3)), timeline(3.0, "long", (0.2,)), failure(request_class="short")
    )

    found = summarise(run)

    assert list(found) == ["long", "short", "all"]
    short = found["short"]
    assert (short.requests, short.failed) == (2, 1)
    assert short.ttft_s == Percentiles(1, 0.5, 0.5, 0.5, 0.5)
    assert short.itl_s is not None
    assert (short.itl_s.count, short.itl_s.p50) == (2, pytest.approx(0.2))
    assert short.tpot_s is not None
    assert short.tpot_s.p50 == pytest.approx(0.2)
    assert short.e2e_s is not None
    assert short.e2e_s.p99 == pytest.approx(0.9)
    assert (short.throughput_rps, short.output_tokens_per_s) == (0.1, 0.3)
    assert (found["all"].requests, found["all"].throughput_rps, found["all"].output_tokens_per_s) == (
        3,
        0.2,
        0.5,
    )


def test_latency_counts_from_when_a_request_was_due() -> None:
    late = timeline(0.5, due_at=100.0)

    found = summarise(measurement(late))["short"].ttft_s

    assert found is not None
    assert found.p50 == 0.5


def test_where_nothing_was_answered_there_are_no_percentiles() -> None:
    found = summarise(measurement(failure(), duration_s=0.0))["all"]

    assert (found.requests, found.failed) == (1, 1)
    assert found.ttft_s is found.itl_s is found.tpot_s is found.e2e_s is None
    assert (found.throughput_rps, found.output_tokens_per_s) == (0.0, 0.0)


def test_an_answer_of_one_token_has_no_gaps() -> None:
    found = summarise(measurement(timeline(0.5)))["all"]

    assert found.tpot_s is found.itl_s is None


def test_an_empty_run_has_an_empty_summary() -> None:
    assert summarise(measurement())["all"].requests == 0


def test_a_run_shorter_than_any_clock_can_tell_has_no_rate() -> None:
    """A duration of 2e-308 s made a rate of infinity, which is no JSON."""
    found = summarise(measurement(timeline(0.0, gaps_s=(0.0,) * 3), duration_s=2.2250738585072014e-308))[
        "all"
    ]

    assert (found.throughput_rps, found.output_tokens_per_s) == (0.0, 0.0)


@given(measurements)
def test_no_request_is_lost_in_the_sums(run: Measurement) -> None:
    if any(result.request_class == "all" for result in run.measured):
        return
    found = summarise(run)

    assert found["all"].requests == len(run.measured)
    assert sum(found[name].requests for name in found if name != "all") == len(run.measured)
    assert found["all"].failed == len(run.failures)


def test_a_class_may_not_be_called_all() -> None:
    with pytest.raises(BadInput, match="'all'"):
        summarise(measurement(timeline(1.0, "all")))


def test_the_slow_bill_is_the_mean_of_those_at_or_above_the_quantile() -> None:
    run = measurement(*(timeline(float(ttft), bill_s=bill(ttft / 2)) for ttft in range(1, 101)))

    found = slow_bill(run, "short")

    assert found is not None
    assert [t.ttft_s for t in slow_requests(run, "short")] == [96, 97, 98, 99, 100]
    assert found[Cause.KV] == pytest.approx(49)
    assert math.fsum(found.values()) == pytest.approx(49)


def test_a_server_without_bills_has_no_slow_bill() -> None:
    assert slow_bill(measurement(timeline(1.0)), "short") is None
    assert slow_bill(measurement(timeline(1.0, bill_s=bill(1))), "long") is None


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_the_slowest_request_is_always_among_the_slow(ttfts: list[float]) -> None:
    run = measurement(*(timeline(ttft) for ttft in ttfts))

    assert max(ttfts) in [t.ttft_s for t in slow_requests(run, "short")]


def test_how_late_the_client_was_is_told() -> None:
    assert client_lag_s(measurement(timeline(1.0))) == Percentiles(1, 0, 0, 0, 0)
    assert client_lag_s(measurement(failure())) is None
