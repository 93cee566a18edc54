"""The way in delays, one after another; the way back delays all tokens alike; the bill tells."""

import pytest

from headrace.core.bill import Cause
from headrace.core.cost import FrontEnd, StepShape
from headrace.core.settings import Settings
from headrace.core.timeline import Failure, Timeline
from headrace.sim.front_end import WayIn
from headrace.sim.measurement import timelines_and_failures
from headrace.sim.run import Fleet, simulate
from headrace.workload.trace import TraceRequest

SETTINGS = Settings(
    max_model_len=512, num_gpu_blocks=60, block_size=16, max_num_batched_tokens=64, max_num_seqs=8
)
FRONT_END = FrontEnd(fixed_ns=2_000_000, ns_per_prompt_token=100_000, answer_ns=1_500_000)


class OneMillisecond:
    def step_ns(self, shape: StepShape) -> int:
        return 1_000_000


def seen(*trace: TraceRequest) -> tuple[Timeline | Failure, ...]:
    return timelines_and_failures(
        simulate(trace, SETTINGS, OneMillisecond(), fleet=Fleet(front_end=FRONT_END))
    )


def test_a_lone_request_is_later_by_its_way_in_and_back() -> None:
    (result,) = seen(TraceRequest(0.5, 10, 3))
    assert isinstance(result, Timeline)
    assert (result.due_at, result.sent_at) == (0.5, 0.5)
    assert result.token_at == pytest.approx([0.5055, 0.5065, 0.5075])


def test_requests_of_one_instant_come_in_one_after_another() -> None:
    way_in = WayIn(FRONT_END)
    assert [way_in.handed_ns(tokens, 500_000_000) for tokens in (10, 30)] == [503_000_000, 508_000_000]


def test_each_replica_has_a_front_end_of_its_own() -> None:
    twice = [TraceRequest(0.5, 10, 3), TraceRequest(0.5, 10, 3)]
    simulated = simulate(twice, SETTINGS, OneMillisecond(), fleet=Fleet(2, front_end=FRONT_END))
    assert [life.request.handed_ns for life in simulated.lives] == [503_000_000, 503_000_000]


def test_the_bill_and_the_way_back_are_the_whole_time_to_the_first_token() -> None:
    for result in seen(TraceRequest(0.5, 10, 3), TraceRequest(0.5, 30, 3), TraceRequest(0.501, 100, 2)):
        assert isinstance(result, Timeline)
        assert result.bill_s is not None
        assert result.bill_s[Cause.FRONT_END] >= 0.003
        assert sum(result.bill_s.values()) + 0.0015 == pytest.approx(result.ttft_s)


def test_a_refusal_takes_both_ways_too() -> None:
    (result,) = seen(TraceRequest(0.5, 600, 3))
    assert isinstance(result, Failure)
    assert result.due_at == 0.5
    assert result.failed_at == pytest.approx(0.5635)
