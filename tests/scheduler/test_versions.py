"""What earlier versions of vLLM decided differently: each difference once, beside what 0.32 does.

Whole runs of theirs are in test_parity.py; these say which rule is which.
"""

from dataclasses import replace

import pytest

from headrace.core.settings import Settings
from headrace.scheduler.scheduler import Scheduler
from tests.scheduler.test_scheduler import ROOMY, request, step


def as_of(version: str, **changes: int | bool) -> Settings:
    return replace(ROOMY, vllm_version=version, **changes)


@pytest.mark.parametrize(("version", "first_chunk"), [("0.30", 16), ("0.31", 64), ("0.32", 64)])
def test_a_lone_request_is_exempt_from_the_threshold_since_0_31(version: str, first_chunk: int) -> None:
    scheduler = Scheduler(as_of(version, long_prefill_token_threshold=16))
    scheduler.add(request("alone", 100))
    assert step(scheduler) == [("alone", first_chunk)]


@pytest.mark.parametrize(("version", "admitted"), [("0.18", [("large", 6)]), ("0.19", []), ("0.32", [])])
def test_the_whole_prompt_must_fit_since_0_19(version: str, admitted: list[tuple[str, int]]) -> None:
    scheduler = Scheduler(as_of(version, num_gpu_blocks=8, max_num_batched_tokens=33))
    scheduler.add(request("first", 60))
    step(scheduler)
    scheduler.add(request("large", 64))  # four blocks, and three are free
    assert step(scheduler) == [("first", 27), *admitted]


@pytest.mark.parametrize(
    ("version", "with_caching", "without_caching"),
    [
        ("0.23", [4, 5, 3, 2, 1], [4, 5, 3, 2, 1]),
        ("0.24", [3, 4, 5, 2, 1], [3, 2, 1, 4, 5]),
        ("0.26", [3, 4, 5, 2, 1], [3, 2, 1, 4, 5]),
        ("0.27", [3, 4, 5, 2, 1], [4, 5, 3, 2, 1]),
        ("0.28", [3, 4, 5, 2, 1], [3, 2, 1, 4, 5]),
        ("0.32", [3, 4, 5, 2, 1], [3, 2, 1, 4, 5]),
    ],
)
def test_where_freed_blocks_go_depends_on_the_version(
    version: str, with_caching: list[int], without_caching: list[int]
) -> None:
    def free_order(caching: bool) -> list[int]:
        scheduler = Scheduler(as_of(version, num_gpu_blocks=6, enable_prefix_caching=caching))
        scheduler.add(request("a", 40, max_tokens=1))  # two full blocks and half of a third
        step(scheduler)
        return scheduler.ledger.pool.free_order()

    assert free_order(caching=True) == with_caching
    assert free_order(caching=False) == without_caching
