"""`python -m bench.parity`: does our scheduler decide as vLLM's does, step by step?

    python -m bench.parity --traces 200              200 random traces against vLLM
    python -m bench.parity --traces 10000 --json     the last line is for a program
    python -m bench.parity --traces 400 --store      keep vLLM's answers, for tests without vLLM
    python -m bench.parity --vllm-version 0.27       as an earlier vLLM decided

The first 400 seeds are those whose answers are stored; later ones are harder. Needs vLLM's
environment: `make vllm` builds it.
"""

import argparse
import json
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.parity.decisions import OurScheduler
from bench.parity.peer import VllmScheduler, whole
from bench.parity.shrink import keep_smallest
from headrace.core.versions import KNOWN, VLLM_VERSION
from tests.traces import Trace, as_of, make_harder_trace, make_trace

STORED = Path("tests/scheduler/stored")
EASIER_SEEDS = 400
SILENT_S = 2.0
OURS = OurScheduler()


@dataclass(slots=True)
class Compared:
    """One trace, decided by both; `peer` is free for the next question."""

    trace: Trace
    ours: list[str]
    theirs: list[str]
    peer: VllmScheduler


def main() -> int:
    options = parse_options()
    mismatches, steps = list[int](), 0
    stored: dict[int, str] = {}
    started = shown = time.monotonic()
    traces = (
        trace_of(seed, options.vllm_version) for seed in range(options.seed, options.seed + options.traces)
    )
    with ExitStack() as stack:
        peers = [
            stack.enter_context(VllmScheduler(options.vllm, options.vllm_version))
            for _ in range(options.workers)
        ]
        for done, compared in enumerate(lockstep(traces, peers), start=1):
            steps += len(compared.theirs)
            stored[compared.trace.seed] = whole(compared.theirs)
            if compared.ours != compared.theirs:
                mismatches.append(compared.trace.seed)
                keep_smallest(OURS, compared.peer, compared.trace, options.store_in)
            if time.monotonic() - shown > SILENT_S:
                shown = time.monotonic()
                left = (shown - started) / done * (options.traces - done)
                print(f"{done}/{options.traces} traces, {steps:,} steps, {len(mismatches)} mismatches, "
                      f"{left:.0f} s left", file=sys.stderr)  # fmt: skip
    if options.store and not mismatches:
        name = "digests" if options.vllm_version == VLLM_VERSION else f"digests-{options.vllm_version}"
        (options.store_in / f"{name}.json").write_text(json.dumps(stored, indent=0) + "\n")
    print(f"{options.traces} traces, {steps:,} steps in lockstep with vLLM {options.vllm_version}: "
          f"{len(mismatches)} mismatches")  # fmt: skip
    if mismatches:
        print(f"seeds that differ: {mismatches}; shrunk and kept under {options.store_in}")
    if options.json:
        print(json.dumps({"traces": options.traces, "steps": steps, "mismatches": len(mismatches)}))
    return 1 if mismatches else 0


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.parity", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--traces", type=int, default=200, help="how many (default 200)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first (default 0)")
    parser.add_argument("--workers", type=int, default=1, help="vLLM processes at once (default 1)")
    parser.add_argument("--vllm", type=Path, default=Path(".vllm"), help="vLLM's environment (default .vllm)")
    parser.add_argument(
        "--vllm-version", choices=KNOWN, default=VLLM_VERSION, metavar="0.N", help="which vLLM"
    )
    parser.add_argument("--json", action="store_true", help="end with one JSON line")
    parser.add_argument("--store", action="store_true", help="keep the digests of vLLM's decisions")
    parser.add_argument(
        "--store-in",
        type=Path,
        default=STORED,
        help=f"for them and for traces that differ (default {STORED})",
    )
    return parser.parse_args()


def trace_of(seed: int, version: str) -> Trace:
    return as_of(version, make_trace(seed) if seed < EASIER_SEEDS else make_harder_trace(seed))


def lockstep(traces: Iterator[Trace], peers: Sequence[VllmScheduler]) -> Iterator[Compared]:
    """All traces in order; each peer plays one while we play the same."""
    idle, asked = deque(peers), deque[Compared]()

    def answered() -> Compared:
        oldest = asked.popleft()
        oldest.theirs = oldest.peer.answer()
        return oldest

    for trace in traces:
        if not idle:
            compared = answered()
            yield compared
            idle.append(compared.peer)
        peer = idle.popleft()
        peer.ask(trace)
        asked.append(Compared(trace, OURS.play(trace), [], peer))
    while asked:
        yield answered()


if __name__ == "__main__":
    sys.exit(main())
