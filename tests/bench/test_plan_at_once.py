"""How many requests run at once, as `headrace plan` says it: held against the twin, which schedules them."""

import os
from pathlib import Path

import pytest

from bench.plan.__main__ import CLOSE_AT_ONCE
from bench.plan.at_once import AtOnce, at_once, comparisons, usual_requests

SHARED = os.environ.get("HEADRACE_SHARED")
SELDOM = 0.15
"""One instant in 20 is meant; the worst of eleven is 10 %."""


def test_as_many_chats_run_at_once_as_planned() -> None:
    """On twice the blocks twice as many do: a pool is of a replica, not of a GPU."""
    small, large = (at_once("chats", usual_requests(500), blocks) for blocks in (1500, 3000))
    for found in (small, large):
        _holds(found)
    assert large.twin / small.twin == pytest.approx(2, rel=0.1)


@pytest.mark.slow
@pytest.mark.skipif(SHARED is None, reason="HEADRACE_SHARED does not say where traces are")
def test_as_many_requests_of_real_traces_run_at_once_as_planned() -> None:
    assert SHARED is not None
    found = list(comparisons(Path(SHARED)))
    assert len({each.workload for each in found}) == 5
    for each in found:
        _holds(each)


def _holds(found: AtOnce) -> None:
    assert abs(found.error) < CLOSE_AT_ONCE, found
    assert found.waits_for_blocks < SELDOM, found
    assert found.planned.safe < found.planned.typical
