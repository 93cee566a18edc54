"""The benchmark of the load generator runs, and its figures mean what they say."""

import json
from pathlib import Path

import pytest

from bench.loadgen.peers import PRINTED, Latency, Load, Peer, Seen, peers, run
from bench.loadgen.runs import TOKENS, arriving, closed, loaded, log_lines, scripted_server, stalled

VLLM = ("mean", "median", "p99")


def guide(value: float) -> dict[str, object]:
    """As guidellm says a distribution."""
    return {"successful": {"mean": value, "median": value, "percentiles": {"p99": value}}}


@pytest.mark.slow
@pytest.mark.alone
def test_the_open_loop_delivers_what_was_asked_and_reads_a_known_ttft() -> None:
    figures = loaded(rate=100, seconds=2.0, seed=1)

    assert figures["failed"] == 0
    assert figures["ttft_error_ms_p50"] >= 0  # what is ours only ever adds


@pytest.mark.slow
@pytest.mark.alone
def test_the_server_saw_every_arrival() -> None:
    figures = arriving(rate=100, seconds=2.0, seed=1)

    assert figures["arrivals"] > 120
    assert figures["iod"] > 0


@pytest.mark.slow
@pytest.mark.alone
def test_a_stall_is_in_the_latencies_in_full() -> None:
    figures = stalled(stall_s=1.5, seed=1)

    assert figures["stall_failed"] == 0
    assert figures["stall_due_meanwhile"] > 5
    assert figures["stall_missing_ms"] == 0
    assert figures["stall_ttft_max_s"] > 1.2


@pytest.mark.slow
@pytest.mark.alone
def test_every_token_of_the_closed_loop_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.loadgen.runs.CLOSED_REQUESTS", 50)
    monkeypatch.setattr("bench.loadgen.runs.LONG_REQUESTS", 5)

    assert TOKENS > 1
    assert closed()["events_per_s"] > 0


SAID = {
    "vllm bench serve": (
        "vllm.json",
        {"completed": 7}
        | {f"{each}_{name}_ms": value for name, value in (("ttft", 50.0), ("itl", 10.0)) for each in VLLM},
    ),
    "guidellm": (
        "guidellm.json",
        {
            "benchmarks": [
                {
                    "metrics": {
                        "request_totals": {"successful": 7, "total": 8},
                        "time_to_first_token_ms": guide(50.0),
                        "inter_token_latency_ms": guide(10.0),
                    }
                }
            ]
        },
    ),
    "aiperf": (
        "run/profile_export_aiperf.json",
        {
            "request_count": {"avg": 7.0},
            "time_to_first_token": dict.fromkeys(("avg", "p50", "p99"), 50.0),
            "inter_token_latency": dict.fromkeys(("avg", "p50", "p99"), 10.0),
        },
    ),
    "headrace": (
        PRINTED,
        {
            "classes": {
                "all": {
                    "requests": 8,
                    "failed": 1,
                    "ttft_s": dict.fromkeys(("mean", "p50", "p99"), 0.05),
                    "itl_s": dict.fromkeys(("mean", "p50", "p99"), 0.01),
                }
            }
        },
    ),
}


@pytest.mark.parametrize("peer", peers(), ids=lambda peer: peer.name)
def test_what_each_peer_says_is_read_in_milliseconds(peer: Peer, tmp_path: Path) -> None:
    name, said = SAID[peer.name]
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("some progress\n" * (name == PRINTED) + json.dumps(said))

    assert peer.read(tmp_path) == Seen(7, Latency(50.0, 50.0, 50.0), Latency(10.0, 10.0, 10.0))


@pytest.mark.slow
@pytest.mark.alone
def test_our_own_program_beside_its_peers_is_run_timed_and_read() -> None:
    with scripted_server(0.01, 0.002) as url:
        found = run(peers()[0], Load(url, "scripted", rate=100.0, requests=20))
        log = log_lines(url)

    assert found.seen.answered == len(log) == 20
    assert found.seen.ttft.mean >= 10
    assert 0 < found.cpu_s < found.wall_s * 4


@pytest.mark.slow
@pytest.mark.alone
def test_a_peer_that_fails_says_what_it_printed() -> None:
    with pytest.raises(RuntimeError, match=r"headrace left with 1[\s\S]*Connection refused"):
        run(peers()[0], Load("http://127.0.0.1:1", "scripted", rate=100.0, requests=20))
