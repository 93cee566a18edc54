"""The benchmark of the load generator runs, and its figures mean what they say."""

import pytest

from bench.loadgen.runs import TOKENS, arriving, closed, loaded, stalled


@pytest.mark.slow
def test_the_open_loop_delivers_what_was_asked_and_reads_a_known_ttft() -> None:
    figures = loaded(rate=100, seconds=2.0, seed=1)

    assert figures["failed"] == 0
    assert figures["ttft_error_ms_p50"] >= 0  # what is ours only ever adds


@pytest.mark.slow
def test_the_server_saw_every_arrival() -> None:
    figures = arriving(rate=100, seconds=2.0, seed=1)

    assert figures["arrivals"] > 120
    assert figures["iod"] > 0


@pytest.mark.slow
def test_a_stall_is_in_the_latencies_in_full() -> None:
    figures = stalled(stall_s=1.5, seed=1)

    assert figures["stall_failed"] == 0
    assert figures["stall_due_meanwhile"] > 5
    assert figures["stall_missing_ms"] == 0
    assert figures["stall_ttft_max_s"] > 1.2


@pytest.mark.slow
def test_every_token_of_the_closed_loop_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.loadgen.runs.CLOSED_REQUESTS", 50)
    monkeypatch.setattr("bench.loadgen.runs.LONG_REQUESTS", 5)

    assert TOKENS > 1
    assert closed()["events_per_s"] > 0
