"""The runs of `bench.loadgen`: each starts its server, loads it, and compares with the server's log."""

import asyncio
import contextlib
import json
import math
import resource
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Generator
from pathlib import Path
from random import Random

import numpy as np

from headrace.core.exchange import Arrival, Ask
from headrace.core.timeline import Failure, Timeline
from headrace.measure.arrivals import describe
from headrace.measure.client_load import few_pauses
from headrace.measure.neighbours import Neighbours
from headrace.measure.run import Ending, run
from headrace.net.client import HttpSender

TTFT_S, ITL_S = 0.05, 0.01
TOKENS = 8
CLOSED_REQUESTS, CLOSED_AT_ONCE = 3_000, 64
LONG_TOKENS, LONG_REQUESTS = 256, 240
STALL_RATE, STALL_RUN_S = 50.0, 13.0

Figures = dict[str, float]
Results = tuple[Timeline | Failure, ...]


@contextlib.contextmanager
def scripted_server(ttft_s: float, itl_s: float) -> Generator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(Path(__file__).with_name("server.py")), str(port), str(ttft_s), str(itl_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline().strip() != "ready":
                raise RuntimeError("the scripted server did not start")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def loaded(rate: float, seconds: float, seed: int) -> Figures:
    """Open loop, Poisson."""
    arrivals = poisson(rate, seconds, seed, TOKENS)
    with scripted_server(TTFT_S, ITL_S) as url:
        used, neighbours, server_s = cpu_s(), Neighbours(), _server_cpu_s(url)
        results, started_at = sent(url, arrivals)
        used, server_s = cpu_s() - used, _server_cpu_s(url) - server_s
        others = neighbours.cores()
        log = log_of(url)
    timelines = [each for each in results if isinstance(each, Timeline)]
    lag_ms = [1e3 * each.dispatch_lag_s for each in timelines]
    error_ms = [1e3 * (each.ttft_s - _true_ttft_s(log[int(each.request_id)])) for each in timelines]
    itl_error_ms = [1e3 * abs(gap_s - ITL_S) for each in timelines for gap_s in each.itl_s]
    assert all(started_at <= read_at for read_at, _, _ in log.values())
    return {
        f"lag_p99_ms_at_{rate:g}": _percentile(lag_ms, 99),
        "ttft_error_ms_p50": _percentile(error_ms, 50),
        "ttft_error_ms_p99": _percentile(np.abs(error_ms).tolist(), 99),
        "itl_error_ms_p99": _percentile(itl_error_ms, 99),
        "failed": len(results) - len(timelines),
        "others_cores": max(0.0, others - server_s / seconds) if others is not None else math.nan,
        "client_cpu_share": used / seconds,
        "client_cpu_ms_per_request": 1e3 * used / len(results),
    }


def arriving(rate: float, seconds: float, seed: int) -> Figures:
    """What arrives at the server, at a rate at which a window is long beside any lag."""
    with scripted_server(TTFT_S, ITL_S) as url:
        sent(url, poisson(rate, seconds, seed, 1))
        log = log_of(url)
    seen = describe([read_at for read_at, _, _ in log.values()])
    assert seen.dispersion is not None
    assert seen.lag_1 is not None
    return {"iod": seen.dispersion, "ac1": seen.lag_1, "arrivals": len(log)}


def closed() -> Figures:
    """As fast as it goes: many short answers, then long ones. CPU is the client's alone."""
    with scripted_server(0.0, 0.0) as url:
        short_s, short_cpu_s = _worked_off(url, CLOSED_REQUESTS, 1)
    with scripted_server(0.0, 0.0) as url:
        long_s, long_cpu_s = _worked_off(url, LONG_REQUESTS, LONG_TOKENS)
    events = LONG_REQUESTS * LONG_TOKENS
    return {
        "requests_per_s": CLOSED_REQUESTS / short_s,
        "events_per_s": events / long_s,
        "cpu_us_per_request": 1e6 * short_cpu_s / CLOSED_REQUESTS,
        "cpu_us_per_event": 1e6 * long_cpu_s / events,
    }


def stalled(stall_s: float, seed: int) -> Figures:
    """How much of a stall is missing in the latencies: 0 means that it shows in full."""
    arrivals = poisson(STALL_RATE, stall_s + STALL_RUN_S - 10.0, seed, TOKENS)
    stall_at = 1.5
    with scripted_server(TTFT_S, ITL_S) as url:
        results, started_at = sent(url, arrivals, at=(stall_at, lambda: _get(f"{url}/stall/{stall_s}")))
        log = log_of(url)
    timelines = [each for each in results if isinstance(each, Timeline)]
    # What the server knows: from when each was due until it wrote the first token.
    missing = [
        max(0.0, (log[int(each.request_id)][1] - started_at - each.due_at) - each.ttft_s)
        for each in timelines
    ]
    due = sum(stall_at + 0.2 <= each.due_at < stall_at + stall_s - 1 for each in timelines)
    ttft_s = [each.ttft_s for each in timelines]
    return {
        "stall_missing_ms": 1e3 * max(missing),
        "stall_due_meanwhile": due,
        "stall_ttft_max_s": max(ttft_s),
        "stall_ttft_p50_s": _percentile(ttft_s, 50),
        "stall_failed": len(results) - len(timelines),
    }


def poisson(rate: float, seconds: float, seed: int, tokens: int) -> list[Arrival]:
    chance, due_at = Random(seed), 0.0
    arrivals = list[Arrival]()
    while (due_at := due_at - math.log1p(-chance.random()) / rate) < seconds:
        number = len(arrivals)
        arrivals.append(Arrival(due_at, Ask(str(number), "load", f"{number} words of a prompt", tokens)))
    return arrivals


def sent(url: str, arrivals: list[Arrival], at: tuple[float, Callable[[], object]] | None = None) -> tuple[
    Results, float
]:  # fmt: skip
    """The results, and the instant of the run's start. `at`: something to do meanwhile, in a thread."""

    async def all_of_it() -> tuple[Results, float]:
        started_at = time.monotonic()
        async with HttpSender(url, "scripted", clock=lambda: time.monotonic() - started_at) as sender:
            started_at = time.monotonic()  # looking up a name is nobody's lag; `headrace bench` does the same
            if at is not None:
                loop = asyncio.get_running_loop()
                loop.call_later(at[0], loop.run_in_executor, None, at[1])
            ending = Ending(drain_s=60.0)
            results = await run(sender, arrivals, clock=lambda: time.monotonic() - started_at, ending=ending)
        return results, started_at

    with few_pauses():
        return asyncio.run(all_of_it())


def log_of(url: str) -> dict[int, tuple[float, float, float]]:
    """By number: when the request was read, when its first and its last token were written."""
    return {number: (read, first, last) for number, read, first, last in log_lines(url)}


def log_lines(url: str) -> list[tuple[int, float, float, float]]:
    """Since last asked: number, when it was read, when its first and its last token were written."""
    return [tuple(line) for line in json.loads(_get(f"{url}/log"))]


def _server_cpu_s(url: str) -> float:
    return float(json.loads(_get(f"{url}/cpu")))


def cpu_s() -> float:
    spent = resource.getrusage(resource.RUSAGE_SELF)
    return spent.ru_utime + spent.ru_stime


def _worked_off(url: str, requests: int, tokens: int) -> tuple[float, float]:
    async def all_of_it() -> float:
        numbers = iter(range(requests))
        async with HttpSender(url, "scripted", clock=time.monotonic) as sender:

            async def one_after_the_other() -> None:
                for number in numbers:
                    answer = await sender.send(Ask(str(number), "load", f"{number} words", tokens))
                    assert len(getattr(answer, "token_at", ())) == tokens, answer

            began = time.monotonic()
            await asyncio.gather(*(one_after_the_other() for _ in range(CLOSED_AT_ONCE)))
            return time.monotonic() - began

    used = cpu_s()
    took_s = asyncio.run(all_of_it())
    return took_s, cpu_s() - used


def _true_ttft_s(logged: tuple[float, float, float]) -> float:
    read_at, first_at, _ = logged
    return first_at - read_at


def _percentile(values: list[float], of: float) -> float:
    return float(np.percentile(values, of))


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=120) as answer:
        return answer.read()
