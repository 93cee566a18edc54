"""How fast steps are decided: `python -m bench.scheduler [--json]`.

vLLM 0.32's scheduler and ours, each in a process of its own and never at the same time: one takes its
steps while the other waits, turn by turn, so that a noisy neighbour hits both. A step is taking in the
requests that came before it, planning it, and booking its tokens; making the model's outputs is not timed.
vLLM hashes a prompt when it takes the request in, we when the scheduler first looks at it: both count, and
both hash block by block (vLLM's default sha256 over pickles, our blake2b).

    a table, then as the last line:
    {"ratio_64": ..., "ratio_256": ..., "ratio_1024": ..., "waiting_10k_cost": ...}

A ratio is vLLM's time by ours, decode steps and an empty queue. `waiting_10k_cost` is our time with
10,000 waiting by our time with none, the worst of all sizes and kinds. Needs vLLM's environment
(`make vllm`).
"""

import argparse
import gc
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

import msgspec

from bench.parity.peer import VllmProcess
from bench.scheduler.ours import Ours
from bench.scheduler.states import Player, State

RUNNING = (64, 256, 1024)
WAITING = (0, 10_000)
KINDS = ("decode", "prefill")
ROUNDS = 9
STEPS = 40


@dataclass
class Timed:
    """Median nanoseconds of a step, round by round."""

    ours_ns: list[float] = field(default_factory=list[float])
    theirs_ns: list[float] = field(default_factory=list[float])

    @property
    def ratio(self) -> float:
        return median(theirs / ours for ours, theirs in zip(self.ours_ns, self.theirs_ns, strict=True))


def main() -> None:
    options = parse_options()
    results: dict[State, Timed] = {}
    print("kind     running  waiting   headrace, us a step        vLLM, us a step          ratio")
    with VllmProcess(options.vllm, "bench.scheduler.vllm_side") as peer:
        for kind, running in ((kind, n) for kind in KINDS for n in RUNNING):
            timed = compare(peer, [State(kind, running, queue) for queue in WAITING], options.rounds)
            for state, each in timed.items():
                print_row(state, each)
            results |= timed
    if options.json:
        print(to_json(results))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.scheduler", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"turns of each (default {ROUNDS})")
    parser.add_argument("--vllm", type=Path, default=Path(".vllm"), help="vLLM's environment (default .vllm)")
    parser.add_argument("--json", action="store_true", help="end with one JSON line")
    return parser.parse_args()


def compare(peer: VllmProcess, states: Sequence[State], rounds: int) -> dict[State, Timed]:
    """All these states turn by turn, on both sides."""
    players = {state: Player(Ours(state), state) for state in states}
    timed = {state: Timed() for state in states}

    def we(state: State) -> None:
        timed[state].ours_ns.append(median(players[state].steps(STEPS)))

    def they(state: State) -> None:
        timed[state].theirs_ns.append(median(ask(peer, state, STEPS)))

    for state in states:
        ask(peer, state, 1)
    for turn in range(rounds):
        for state in states if turn % 4 < 2 else reversed(states):
            for take_turn in (we, they) if turn % 2 == 0 else (they, we):
                take_turn(state)
    gc.unfreeze()
    return timed


def ask(peer: VllmProcess, state: State, steps: int) -> list[int]:
    peer.tell(msgspec.json.encode({"state": asdict(state), "steps": steps}))
    return msgspec.json.decode(peer.hear(), type=list[int])


def print_row(state: State, timed: Timed) -> None:
    print(
        f"{state.kind:<8} {state.running:>7} {state.waiting:>8}   {spread(timed.ours_ns)}   "
        f"{spread(timed.theirs_ns)}   {timed.ratio:5.1f}",
        flush=True,
    )


def spread(ns: Sequence[float]) -> str:
    return f"{median(ns) / 1e3:7.0f} ({min(ns) / 1e3:.0f} to {max(ns) / 1e3:.0f})".ljust(24)


def to_json(results: dict[State, Timed]) -> str:
    costs = [
        median(
            crowded / empty
            for crowded, empty in zip(
                results[State(kind, n, WAITING[1])].ours_ns, results[State(kind, n, 0)].ours_ns, strict=True
            )
        )
        for kind in KINDS
        for n in RUNNING
    ]
    ratios = {f"ratio_{n}": round(results[State("decode", n, 0)].ratio, 1) for n in RUNNING}
    return json.dumps(ratios | {"waiting_10k_cost": round(max(costs), 2)})


if __name__ == "__main__":
    main()
