"""All load testers on one server in turns, round by round, and a table of what they say and cost.

Peer, … + server --measured--> Costed, … --print_table--> 80 columns
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any

from bench.loadgen.peers import FEW, MANY, OUTPUT_TOKENS, PROMPT_TOKENS, Latency, Load, Peer, peers, run
from bench.loadgen.runs import ITL_S, TTFT_S, log_lines, scripted_server

RATE = 40.0
FIRST = 20
"""Requests of the run of each that does not count."""


@dataclass(frozen=True, slots=True)
class Costed:
    """One peer in one round."""

    peer: str
    answered: int
    ttft: Latency
    itl: Latency
    true_ttft_ms: float | None
    """In the mean, by the server's own log; None where the server keeps none."""
    cpu_ms_per_request: float
    start_cpu_s: float
    """What it takes beside the requests."""
    wall_s: float


def compare(rounds: int, url: str | None, model: str, rate: float) -> dict[str, Any]:
    """Prints a line as each has ended, then a table. Without `url` on the scripted server."""
    print(
        f"{MANY} requests at {rate:g} a second, gaps all alike, {PROMPT_TOKENS} prompt and {OUTPUT_TOKENS} "
        "output tokens"
    )
    if url is None:
        print(f"the truth: first token after {1e3 * TTFT_S:g} ms, then one every {1e3 * ITL_S:g} ms")
    present = [peer for peer in peers() if peer.program is not None]
    absent = [peer.name for peer in peers() if peer.program is None]
    for name in absent:
        print(f"{name}: not installed; docs/measuring.md says how it is")
    for peer in present:  # the first start of a program reads its files from the disk
        with nullcontext(url) if url else scripted_server(TTFT_S, ITL_S) as address:
            run(peer, Load(address, model, rate, FIRST))
    seen = list[Costed]()
    for number in range(rounds):
        for peer in present if number % 2 == 0 else reversed(present):
            seen.append(_visit(peer, url, model, rate))
            print(_line(seen[-1]), flush=True)
    _print_table(present, seen)
    return {"absent": absent, "runs": [asdict(each) for each in seen]}


def _visit(peer: Peer, url: str | None, model: str, rate: float) -> Costed:
    with nullcontext(url) if url else scripted_server(TTFT_S, ITL_S) as address:
        few = run(peer, Load(address, model, rate, FEW))
        if url is None:
            log_lines(address)  # begins anew
        many = run(peer, Load(address, model, rate, MANY))
        truth = None if url else 1e3 * fmean(first - read for _, read, first, _ in log_lines(address))
    per_request_s = (many.cpu_s - few.cpu_s) / (MANY - FEW)
    return Costed(
        peer.name,
        many.seen.answered,
        many.seen.ttft,
        many.seen.itl,
        truth,
        1e3 * per_request_s,
        few.cpu_s - FEW * per_request_s,
        many.wall_s,
    )


def _line(seen: Costed) -> str:
    truth = "" if seen.true_ttft_ms is None else f" (truly {seen.true_ttft_ms:.2f})"
    return (
        f"  {seen.peer}: {seen.answered} answered, TTFT {seen.ttft.mean:.2f} ms{truth}, "
        f"{seen.cpu_ms_per_request:.2f} ms CPU a request"
    )


def _print_table(present: Sequence[Peer], seen: Sequence[Costed]) -> None:
    """Medians of the rounds; of the mean TTFT and ITL also the least and the most."""
    print(f"\n{'':<17}{'TTFT ms, mean':>22}{'P99':>7}{'ITL ms, mean':>22}{'CPU ms':>7}{'start':>6}")
    print(f"{'':<17}{'(least - most)':>22}{'':>7}{'(least - most)':>22}{'/requ.':>7}{'CPU s':>6}")
    for peer in present:
        own = [each for each in seen if each.peer == peer.name]
        ttft, itl = [each.ttft.mean for each in own], [each.itl.mean for each in own]
        p99 = median(each.ttft.p99 for each in own)
        cpu_ms = median(each.cpu_ms_per_request for each in own)
        start_s = median(each.start_cpu_s for each in own)
        print(f"{peer.name:<17}{_spread(ttft):>22}{p99:7.1f}{_spread(itl):>22}{cpu_ms:7.2f}{start_s:6.1f}")


def _spread(values: Sequence[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f} - {max(values):.2f})"
