"""A simulation's record is that of a real run: every request once, in order, with its bill."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.cost import StepShape
from headrace.core.settings import Settings
from headrace.core.timeline import Failure, FailureKind, Timeline
from headrace.measure import record
from headrace.sim.measurement import About, measurement_of
from headrace.sim.run import Fleet, simulate
from headrace.workload.trace import TraceRequest

SETTINGS = Settings(
    max_model_len=512, num_gpu_blocks=60, block_size=16, max_num_batched_tokens=64, max_num_seqs=8
)
ABOUT = About("the twin", "some-model", {"max_num_seqs": 8}, "two requests", {"headrace": "0"})


class TokensCost:
    def step_ns(self, shape: StepShape) -> int:
        return 1_000_000 * (1 + shape.tokens)


def test_every_request_is_there_with_the_times_of_its_tokens() -> None:
    trace = [
        TraceRequest(0.005, 10, 3, request_class="short"),
        TraceRequest(0.006, 600, 3, request_class="long"),
    ]
    run = measurement_of(simulate(trace, SETTINGS, TokensCost()), ABOUT)
    answered, refused = run.results
    assert isinstance(answered, Timeline)
    assert answered.token_at == (0.016, 0.018, 0.020)
    assert (answered.due_at, answered.sent_at, answered.request_class) == (0.005, 0.005, "short")
    assert isinstance(refused, Failure)
    assert (refused.kind, refused.due_at, refused.request_class) == (FailureKind.REFUSED, 0.006, "long")
    assert "600 tokens" in refused.reason
    assert run.duration_s == 0.020


requests = st.lists(
    st.builds(
        TraceRequest, st.integers(0, 900).map(lambda ms: ms / 1e3), st.integers(1, 200), st.integers(1, 99)
    ),
    min_size=1,
    max_size=25,
).map(lambda trace: sorted(trace, key=lambda traced: traced.due_at))


@given(requests, st.integers(1, 3), st.booleans())
def test_the_bill_is_the_ttft_and_no_token_is_lost(
    trace: list[TraceRequest], replicas: int, ahead: bool
) -> None:
    settings = replace(SETTINGS, async_scheduling=ahead)
    run = measurement_of(simulate(trace, settings, TokensCost(), fleet=Fleet(replicas)), ABOUT)
    assert [result.prompt_tokens for result in run.results] == [traced.prompt_tokens for traced in trace]
    for traced, timeline in zip(trace, run.timelines, strict=True):
        assert len(timeline.token_at) == traced.output_tokens
        assert timeline.bill_s is not None
        assert sum(timeline.bill_s.values()) == pytest.approx(timeline.ttft_s, abs=1e-9)


def test_the_record_can_be_kept_and_read_again(tmp_path: Path) -> None:
    run = measurement_of(simulate([TraceRequest(0, 10, 3)], SETTINGS, TokensCost()), ABOUT)
    record.write(run, tmp_path / "run.jsonl")
    assert record.read(tmp_path / "run.jsonl") == run
