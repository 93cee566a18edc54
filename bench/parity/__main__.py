"""`python -m bench.parity`: does our scheduler decide as vLLM's does, step by step?

    python -m bench.parity --traces 200           200 random traces against vLLM
    python -m bench.parity --traces 10000 --json  the last line is for a program
    python -m bench.parity --traces 300 --store   keep vLLM's answers, for tests without vLLM

Needs vLLM's environment: `make vllm` builds it.
"""

import argparse
import json
import sys
import time
from pathlib import Path

from bench.parity.decisions import our_decisions
from bench.parity.peer import VllmScheduler, whole
from bench.parity.shrink import shrink
from tests.traces import Trace, make_trace, write_trace

STORED = Path("tests/scheduler/stored")


def main() -> int:
    options = parse_options()
    mismatches, steps = list[int](), 0
    stored: dict[int, str] = {}
    started = shown = time.monotonic()
    with VllmScheduler(options.vllm) as peer:
        for done, seed in enumerate(range(options.seed, options.seed + options.traces), start=1):
            trace = make_trace(seed)
            peer.ask(trace)  # it plays while we do
            ours = [step.digest() for step in our_decisions(trace)]
            theirs = peer.answer()
            steps += len(theirs)
            stored[seed] = whole(theirs)
            if ours != theirs:
                mismatches.append(seed)
                keep_smallest(peer, trace)
            if time.monotonic() - shown > 2:
                shown = time.monotonic()
                left = (shown - started) / done * (options.traces - done)
                print(f"{done}/{options.traces} traces, {steps:,} steps, {len(mismatches)} mismatches, "
                      f"{left:.0f} s left", file=sys.stderr)  # fmt: skip
    if options.store and not mismatches:
        (STORED / "digests.json").write_text(json.dumps(stored, indent=0) + "\n")
    print(f"{options.traces} traces, {steps:,} steps in lockstep with vLLM: {len(mismatches)} mismatches")
    if mismatches:
        print(f"seeds that differ: {mismatches}; shrunk and kept under {STORED}")
    if options.json:
        print(json.dumps({"traces": options.traces, "steps": steps, "mismatches": len(mismatches)}))
    return 1 if mismatches else 0


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.parity", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--traces", type=int, default=200, help="how many (default 200)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first (default 0)")
    parser.add_argument("--vllm", type=Path, default=Path(".vllm"), help="vLLM's environment (default .vllm)")
    parser.add_argument("--json", action="store_true", help="end with one JSON line")
    parser.add_argument("--store", action="store_true", help=f"write the digests to {STORED}/digests.json")
    return parser.parse_args()


def keep_smallest(peer: VllmScheduler, trace: Trace) -> None:
    """Shrink a trace on which the two differ, and keep it with vLLM's answer as a regression test."""

    def differs(smaller: Trace) -> bool:
        return [step.digest() for step in our_decisions(smaller)] != peer.play(smaller)

    smallest = shrink(trace, differs)
    STORED.mkdir(parents=True, exist_ok=True)
    write_trace(STORED / f"mismatch-{trace.seed}.json", smallest, whole(peer.play(smallest)))


if __name__ == "__main__":
    sys.exit(main())
