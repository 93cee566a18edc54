"""What serving adds, found again from clients' timelines whose truth is known."""

from dataclasses import replace

import pytest

from headrace.core.bill import CAUSES, Cause
from headrace.core.cost import FrontEnd, Residual, StepShape
from headrace.core.errors import TargetFailed
from headrace.core.timeline import Failure, FailureKind, Timeline
from headrace.executor.cost import FittedCost
from headrace.measure.serving import (
    Added,
    added_by_serving,
    apart,
    crowd,
    front_end_of,
    served,
    step_ns_of,
)

BARE = FittedCost({"step": 10e6, "decode_seqs": 1e6}, Residual(10, 0.0, 0.0), {})


def timeline(
    prompt_tokens: int, due_at: float, *token_at: float, bill_s: dict[Cause, float] | None = None
) -> Timeline:
    return Timeline("r", "calibration", prompt_tokens, due_at, due_at, token_at, "length", 0, bill_s)


def lone(prompt_tokens: int, due_at: float) -> Timeline:
    """3 ms + 10 us a token on its way in, 2 ms on its way back, 50 ms in the engine."""
    bill_s = dict.fromkeys(CAUSES, 0.0)
    bill_s |= {Cause.FRONT_END: 0.003 + 1e-5 * prompt_tokens, Cause.OWN_PREFILL: 0.05}
    return timeline(prompt_tokens, due_at, due_at + sum(bill_s.values()) + 0.002, bill_s=bill_s)


def test_the_way_in_and_the_way_back_are_found() -> None:
    found = front_end_of([lone(tokens, 1.0 * tokens) for tokens in (20, 100, 300, 800)])
    assert found.fixed_ns == pytest.approx(3e6, rel=1e-3)
    assert found.ns_per_prompt_token == pytest.approx(1e4, rel=1e-3)
    assert found.answer_ns == pytest.approx(2e6, rel=1e-3)


def test_those_who_decode_meanwhile_do_not_count_for_the_way() -> None:
    requests = [lone(tokens, 1.0 * tokens) for tokens in (20, 100, 300, 800)]
    company = replace(lone(50, 0.0), request_class="company", token_at=(9.0,))
    assert front_end_of([company, *requests]) == front_end_of(requests)
    classes = [arrival.ask.request_class for arrival in apart(2, 1)]
    assert classes.count("company") == 2
    assert len(classes) == 10


def test_a_crowds_step_is_taken_from_when_all_of_them_decode() -> None:
    # The first is alone for a second of fast steps; then both have one every 20 ms.
    together = [1.0 + 0.02 * number for number in range(30)]
    shape, ns = step_ns_of(
        [
            timeline(40, 0.0, *(0.1 + 0.01 * number for number in range(80)), *together),
            timeline(60, 0.0, *together),
        ]
    )
    assert ns == pytest.approx(20e6)
    halfway = (80 + 15) + 15  # tokens that they have by then
    assert shape == StepShape(2, 100 + halfway, sampled_seqs=2)


def test_what_serving_adds_is_what_the_bare_steps_do_not_explain() -> None:
    shapes = [StepShape(count, 100 * count, sampled_seqs=count) for count in (1, 4, 16, 32)]
    added = added_by_serving(
        BARE, [(shape, BARE.step_ns(shape) + 2e6 + 3e5 * shape.decode_seqs) for shape in shapes]
    )
    assert added.step_ns == pytest.approx(2e6, rel=1e-3)
    assert added.seq_ns == pytest.approx(3e5, rel=1e-3)
    whole = served(BARE, added, FrontEnd(1, 2.0, 3))
    assert whole.step_ns(shapes[2]) == pytest.approx(BARE.step_ns(shapes[2]) + 2e6 + 16 * 3e5, rel=1e-3)
    assert whole.front_end == FrontEnd(1, 2.0, 3)


def test_a_server_that_seems_faster_than_its_steps_adds_nothing() -> None:
    shape = StepShape(4, 100, sampled_seqs=4)
    assert added_by_serving(BARE, [(shape, 1e6), (shape, 2e6)]) == Added(0.0, 0.0)


def test_a_failure_or_a_missing_bill_ends_it_with_the_reason() -> None:
    failure = Failure("r", "calibration", 10, 0.0, 1.0, FailureKind.REFUSED, "503: too busy")
    with pytest.raises(TargetFailed, match="too busy"):
        front_end_of([lone(20, 0.0), failure])
    with pytest.raises(TargetFailed, match="no bills"):
        front_end_of([timeline(20, 0.0, 1.0)])
    with pytest.raises(TargetFailed, match="never decoded together"):
        step_ns_of([timeline(20, 0.0, 1.0, 2.0), timeline(20, 0.0, 3.0, 4.0)])


def test_no_two_requests_of_a_calibration_begin_alike() -> None:
    prompts = [arrival.ask.prompt for arrival in (*apart(2, 1_000), *crowd(32, 20_000), *crowd(16, 30_000))]
    beginnings = [" ".join(prompt.split()[:8]) for prompt in prompts]
    assert len(set(beginnings)) == len(beginnings)
