"""A workload of another size keeps its shape; turns may be made to wait."""

import pytest

from headrace.core.errors import BadInput
from headrace.workload.reshape import conversing, resized
from headrace.workload.trace import TraceRequest


def test_lengths_and_what_is_shared_shrink_together() -> None:
    requests = [
        TraceRequest(0.0, 6758, 500, prefix_ids=(0, 1, 2), prefix_block_tokens=512),
        TraceRequest(1.0, 40, 3),
    ]
    small, other = resized(requests, 1 / 16)
    assert (small.prompt_tokens, small.output_tokens, small.prefix_block_tokens) == (422, 31, 32)
    assert small.prefix_ids == (0, 1, 2)
    assert (other.prompt_tokens, other.output_tokens, other.prefix_block_tokens) == (2, 1, 0)


def test_what_is_shared_never_becomes_nothing_and_prompts_go_with_it() -> None:
    (request,) = resized([TraceRequest(0.0, 640, 8, prefix_ids=(4,), prefix_block_tokens=64)], 0.01)
    assert (request.prefix_block_tokens, request.prompt_tokens) == (1, 10)
    with pytest.raises(BadInput, match="scaled by -1"):
        resized([request], -1)


def test_turns_of_sessions_can_be_made_to_wait() -> None:
    requests = [TraceRequest(0.0, 9, 3, session="s"), TraceRequest(1.0, 9, 3)]
    assert [each.think_s for each in conversing(requests, 2.0)] == [2.0, None]
    with pytest.raises(BadInput, match="which session"):
        conversing(requests[1:], 2.0)
