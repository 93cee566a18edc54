"""The periodic line: vLLM's words, so that what reads its log reads ours; and the budget that was short."""

import asyncio
import logging
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.bill import Cause
from headrace.net.metrics.log_line import NAMES, Totals, log_line
from headrace.net.metrics.of_budgets import WAITS
from headrace.net.stats_log import log_stats

NOTHING = Totals(0, 0, 0, 0, 0.0, 0, 0, 0, dict.fromkeys(NAMES, 0.0))
BUSY = Totals(
    prefill_tokens=2400,
    generation_tokens=139,
    running=35,
    waiting=5,
    kv_cache_usage=0.978,
    prefix_cache_queries=1000,
    prefix_cache_hits=272,
    preemptions=6,
    waited_s={**NOTHING.waited_s, Cause.KV: 35.5, Cause.TOKENS: 14.5, Cause.SLOTS: 0.001},
)
VLLMS_LINE = re.compile(
    r"Engine \d{3}: Avg prompt throughput: [\d.]+ tokens/s, Avg generation throughput: [\d.]+ tokens/s, "
    r"Running: \d+ reqs, Waiting: \d+ reqs(, Preemptions: \d+)?, \w+ KV cache usage: [\d.]+%"
    r"(, Prefix cache hit rate: [\d.]+%)?"
)


def test_the_line_says_what_vllms_says_and_then_who_waited_for_what() -> None:
    assert log_line(NOTHING, BUSY, 10.0) == (
        "Engine 000: Avg prompt throughput: 240.0 tokens/s, Avg generation throughput: 13.9 tokens/s, "
        "Running: 35 reqs, Waiting: 5 reqs, Preemptions: 6, CPU KV cache usage: 97.8%, "
        "Prefix cache hit rate: 27.2%, Waited for: KV blocks 71%, tokens 29% (5.0 reqs on average)"
    )


def test_it_speaks_of_its_own_ten_seconds() -> None:
    later = replace(BUSY, generation_tokens=BUSY.generation_tokens + 50, waiting=0)
    assert log_line(BUSY, later, 10.0) == (
        "Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 5.0 tokens/s, "
        "Running: 35 reqs, Waiting: 0 reqs, CPU KV cache usage: 97.8%"
    )


def test_an_idle_server_says_nothing_and_one_that_is_stuck_does() -> None:
    assert log_line(NOTHING, NOTHING, 10.0) is None
    stuck = replace(BUSY, running=0)
    line = log_line(stuck, stuck, 10.0)
    assert line is not None
    assert "Waiting: 5 reqs" in line


def test_every_budget_that_can_be_short_has_a_name() -> None:
    assert set(NAMES) == set(WAITS)


@given(st.fixed_dictionaries({cause: st.floats(0, 1e6) for cause in NAMES}), st.floats(0.001, 1e4))
def test_the_shares_are_of_the_whole_and_the_worst_comes_first(
    waited_s: dict[Cause, float], took_s: float
) -> None:
    line = log_line(NOTHING, replace(BUSY, waited_s=waited_s), took_s)
    assert line is not None
    assert VLLMS_LINE.match(line)
    shares = [int(share) for share in re.findall(r" (\d+)%", line.partition("Waited for:")[2])]
    assert shares == sorted(shares, reverse=True)
    assert not shares or abs(sum(shares) - 100) <= len(NAMES)


def test_lines_come_through_logging_as_long_as_there_is_work(caplog: pytest.LogCaptureFixture) -> None:
    to_come = [NOTHING, BUSY, replace(BUSY, running=0, waiting=0), replace(BUSY, running=0, waiting=0)]

    async def log_until_all_have_come() -> None:
        all_have_come = asyncio.Event()

        def totals() -> Totals:
            if len(to_come) == 1:
                all_have_come.set()
                return to_come[0]
            return to_come.pop(0)

        task = asyncio.create_task(log_stats(totals, period_s=0.0))
        await all_have_come.wait()
        task.cancel()

    with caplog.at_level(logging.INFO, "headrace.net.stats_log"):
        asyncio.run(log_until_all_have_come())
    assert len(caplog.messages) == 1
    assert VLLMS_LINE.match(caplog.messages[0])
