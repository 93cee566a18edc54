"""Twenty thousand requests and two thousand that were abandoned: what the two processes hold afterwards."""

import json
import re
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import linear_regression

import pytest

from tests.net.hostile import body, sent
from tests.net.processes import ServerProcess, Start, serving
from tests.net.test_leaving import gauge
from tests.net.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

REQUESTS, ABANDONED = 20_000, 2_000
ROUNDS = 10
CLIENTS, AHEAD = 8, 25
"""Each client sends so many ahead: the server is to be the slower one."""
MOST_BYTES_A_REQUEST = 400
"""A leak of one object a request is more; what an allocator keeps after the first rounds is less."""


@dataclass(frozen=True)
class Held:
    server_mib: float
    engine_mib: float
    descriptors: tuple[int, int]
    free_blocks: float


def held(process: ServerProcess) -> Held:
    engine = process.engine_pid
    assert engine is not None
    wait_until(lambda: gauge(process, "headrace:free_blocks") == 64, "nobody holds a block", 60)
    wait_until(lambda: gauge(process, "vllm:num_requests_waiting") == 0, "nobody waits", 60)
    return Held(rss_mib(process.pid), rss_mib(engine), (descriptors(process.pid), descriptors(engine)), 64)


def rss_mib(pid: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) / 1024


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def kept_open(place: int, *, stream: bool, tokens: int) -> bytes:
    prompt = [{"role": "user", "content": f"question {place} " + "x" * (place % 97)}]
    raw = body(messages=prompt, max_tokens=tokens, ignore_eos=True, stream=stream)
    return sent(raw).replace(b"Connection: close\r\n", b"")


def ask(port: int, first: int, number: int) -> None:
    """`number` requests over one connection."""
    with socket.create_connection(("127.0.0.1", port), 120) as connection:
        for start in range(first, first + number, AHEAD):
            connection.sendall(b"".join(kept_open(start + i, stream=False, tokens=2) for i in range(AHEAD)))
            received = b""
            while received.count(b'"completion_tokens":2') < AHEAD:
                data = connection.recv(1 << 18)
                assert data, received[-500:]
                received += data


def abandon(port: int, first: int, number: int) -> None:
    for place in range(first, first + number):
        with socket.create_connection(("127.0.0.1", port), 120) as connection:
            connection.sendall(kept_open(place, stream=place % 2 == 0, tokens=300))
            if place % 4 == 0:
                connection.recv(100)


def all_clients(visit: Callable[[int, int, int], None], port: int, total: int) -> None:
    each = total // CLIENTS
    with ThreadPoolExecutor(CLIENTS) as pool:
        for done in [pool.submit(visit, port, place * each, each) for place in range(CLIENTS)]:
            done.result()


def bytes_a_request(sizes_mib: list[float], requests: int) -> float:
    """The slope over the second half: what the first requests bring with them is there to stay."""
    late = sizes_mib[len(sizes_mib) // 2 :]
    return linear_regression(range(len(late)), late).slope * 1024 * 1024 / requests


def test_nothing_is_kept_of_requests_that_are_over(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Start()) as process:
        all_clients(ask, process.port, CLIENTS * AHEAD)
        seen = [held(process)]
        for _ in range(ROUNDS):
            all_clients(ask, process.port, REQUESTS // ROUNDS)
            all_clients(abandon, process.port, ABANDONED // ROUNDS)
            wait_until(lambda: descriptors(process.pid) <= seen[0].descriptors[0], "all have left", 60)
            seen.append(held(process))
        assert gauge(process, "vllm:request_success_total", 'finished_reason="length"') >= REQUESTS
    a_round = (REQUESTS + ABANDONED) // ROUNDS
    server = bytes_a_request([each.server_mib for each in seen], a_round)
    engine = bytes_a_request([each.engine_mib for each in seen], a_round)
    with capsys.disabled():
        print(json.dumps({
            "server_mib": [round(each.server_mib, 1) for each in seen],
            "engine_mib": [round(each.engine_mib, 1) for each in seen],
            "descriptors": sorted({each.descriptors for each in seen}),
            "bytes_a_request": [round(server), round(engine)],
        }))  # fmt: skip
    assert {each.descriptors for each in seen} == {seen[0].descriptors}
    assert max(server, engine) < MOST_BYTES_A_REQUEST
