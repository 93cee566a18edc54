"""Our engine against its peers: `python -m bench.engine [--quick] [--json]`.

    in one process    ours and OpenVINO GenAI's continuous batching, driven by the same loop
    over HTTP         `headrace serve`, llama.cpp's server (`make llama`), vLLM (`make vllm`): all are
                      started, and one is asked at a time

Requests of 128 prompt and 64 output tokens, 1 / 8 / 32 at once, and the built-in mix of short chats and long
documents, open loop. The same threads and budgets for all, and the same requests to the token within each
place. Peers take turns, round after round, each round with new prompts; ratios are of output tokens a second
within a round, so that what slows the machine slows both. Only what was asked in the same way is compared.

A peer that is not there is said to be absent. With --record the benchmark can be done in parts, such as
`--peers llama_cpp --rounds 1`: the result is of all that the file holds.

    tables, then as the last line: {"tokens_per_s": ..., "ratio_vs_openvino_genai": ...,
    "ratio_vs_llama_cpp": ..., "ratio_vs_vllm": ..., "plan_share": ...}
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from bench.engine.in_process import THEIRS, InProcess
from bench.engine.load import MIXED, MIXED_S, POINTS, QUICK_MIXED_S, Point
from bench.engine.record import OURS, Place, Record, When
from bench.engine.report import print_tables, to_json
from bench.engine.servers import Contender, contenders, rest, visit, warm_up

ROUNDS = {"1": 11, "8": 7, "32": 5, MIXED: 2}
"""In one process, by point: the shorter a round, the more a neighbour's noise weighs in it."""
HTTP_ROUNDS = 3


def main() -> None:
    options = parse_options()
    points = [POINTS[name] for name in options.points]
    record, servers = Record(options.record), contenders()
    mixed_s = QUICK_MIXED_S if options.quick else options.mixed_seconds
    fixed = 1 if options.quick else options.rounds
    if THEIRS in options.peers:
        in_process(points, fixed, mixed_s, record)
    asked = [each for each in servers if each.name in options.peers and not each.absent]
    if asked:
        ours = [each for each in servers if each.name.startswith(OURS)]
        over_http([*ours, *asked], points, fixed or HTTP_ROUNDS, mixed_s, record)
    print_tables(record, servers)
    if options.json:
        print(json.dumps(to_json(record, servers)))


def parse_options() -> argparse.Namespace:
    peers = [THEIRS, *(each.name for each in contenders() if not each.name.startswith(OURS))]
    parser = argparse.ArgumentParser(
        prog="python -m bench.engine",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--peers", type=_names(peers), default=peers, help=f"of {','.join(peers)}")
    parser.add_argument("--points", type=_names([*POINTS]), default=[*POINTS], help=f"of {','.join(POINTS)}")
    parser.add_argument("--rounds", type=int, help=f"instead of {ROUNDS}, and of {HTTP_ROUNDS} over HTTP")
    parser.add_argument(
        "--quick", action="store_true", help="one round, the mix for 10 s: to see that it works"
    )
    parser.add_argument(
        "--record", type=Path, metavar="FILE.jsonl", help="keep what is measured, and go on from it"
    )
    parser.add_argument("--mixed-seconds", type=float, default=MIXED_S, help="of the mix (default 30)")
    parser.add_argument("--json", action="store_true", help="end with one JSON line")
    return parser.parse_args()


def in_process(points: list[Point], fixed: int | None, mixed_s: float, record: Record) -> None:
    engines = InProcess()
    engines.warm_up(POINTS["8"])
    for point in points:
        for _ in range(fixed or ROUNDS[point.name]):
            when = _now(Place.IN_PROCESS)
            engines.round(point, when, mixed_s, record)
        _say(f"in process, {point.name}: done")


def over_http(
    servers: list[Contender], points: list[Point], rounds: int, mixed_s: float, record: Record
) -> None:
    """A round is of one point, so that what is compared was measured within a minute or two."""
    with ExitStack() as running:
        started = [(each, running.enter_context(each.start())) for each in servers]
        for _, server in started:
            warm_up(server)
        for number in range(rounds):
            for point in points:
                when = _now(Place.HTTP)
                for each, server in started if number % 2 == 0 else reversed(started):
                    if point.name in each.points:
                        rest()
                        visit(each.name, server, point, when, mixed_s, record)
                _say(f"over HTTP, round {number + 1} of {rounds}, {point.name}: done")


def _now(place: Place) -> When:
    """A round that no record has yet, with prompts that nobody has seen."""
    seed = time.time_ns() // 1_000_000 % 1_000_000_000
    return When(place, time.strftime("%Y-%m-%dT%H:%M:%S") + f"/{seed}", seed)


def _names(known: list[str]) -> Callable[[str], list[str]]:
    def read(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
        return [name for name in known if name in names]

    return read


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
