"""A server that is simulated, so that the truth is known, seen only as its client sees it."""

from collections.abc import Sequence

import pytest

from headrace.core.cost import Residual, StepShape
from headrace.core.exchange import Arrival
from headrace.core.settings import Settings
from headrace.core.timeline import Failure, Timeline
from headrace.executor.cost import FittedCost
from headrace.measure.black_box import calibrate_server
from headrace.sim.measurement import timelines_and_failures
from headrace.sim.run import simulate
from headrace.workload.trace import TraceRequest

TRUTH = FittedCost(
    {
        "step": 12e6,
        "tokens_upto_8": 1e6,
        "prefill_tokens": 0.8e6,
        "decode_context_tokens": 4e3,
        "prefill_attention_pairs": 100.0,
        "sampled_seqs": 2e5,
    },
    Residual(10, 0.0, 0.0),
    {},
)
SETTINGS = Settings(max_model_len=4096, num_gpu_blocks=2000)


def send(arrivals: Sequence[Arrival]) -> tuple[Timeline | Failure, ...]:
    trace = [TraceRequest(a.due_at, a.ask.num_prompt_words + 20, a.ask.max_tokens) for a in arrivals]
    return timelines_and_failures(simulate(trace, SETTINGS, TRUTH))


@pytest.mark.parametrize(
    "shape",
    [
        StepShape(1, 100, sampled_seqs=1),
        StepShape(12, 2_000, sampled_seqs=12),
        StepShape(30, 3_000, sampled_seqs=30),
        StepShape(0, 0, 1, 400, 0, 80_200, 1),
        StepShape(8, 1_000, 1, 200, 0, 20_100, 9),
    ],
)
def test_steps_of_sizes_that_were_not_probed_are_told_within_a_tenth(shape: StepShape) -> None:
    said: list[str] = []
    fitted = calibrate_server(send, {"made": "by a test"}, 0, said.append)
    assert fitted.step_ns(shape) == pytest.approx(TRUTH.step_ns(shape), rel=0.1)
    assert fitted.residual.p95 < 0.1
    assert len(said) == 2
