"""How good our load generator is, against a scripted server whose every instant is known.

    python -m bench.loadgen [--json] [--rounds N] [--profile]
    python -m bench.loadgen --peers [--url URL --model NAME] [--json] [--rounds N]

    load     500 streaming requests a second, Poisson, one process    dispatch lag, error of a known TTFT
    arriving those that the server saw of 2,500, 100 a second         dispersion and autocorrelation
    closed   as fast as it goes, short and long answers               requests and token events a second
    stall    the server stands still                                  every latency is what it must be
    --peers  `vllm bench serve`, guidellm and aiperf beside ours, on the scripted server or at URL

The error of a TTFT is what the client says (from when the request was due) less what the server knows it
was (from reading the request to writing the token), so it has everything of ours in it: lag, connecting, the
way, and the reading.
"""

import argparse
import cProfile
import json
import pstats
from statistics import median

from bench.loadgen.runs import Figures, arriving, closed, loaded, stalled
from bench.loadgen.side_by_side import RATE, compare

ARRIVING_RATE, ARRIVING_S = 100.0, 25.0
HELP_ROUNDS = "Repeat all of it; the medians are shown."


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.loadgen", description="How good our load generator is.")
    parser.add_argument("--json", action="store_true", help="End with one JSON object.")
    parser.add_argument("--rounds", type=int, default=1, help=HELP_ROUNDS)
    parser.add_argument("--rate", type=float, default=500.0, help="Streaming requests a second.")
    parser.add_argument("--seconds", type=float, default=20.0, help="Length of the open loop.")
    parser.add_argument("--stall", type=float, default=10.0, help="How long the server stands still.")
    parser.add_argument("--profile", action="store_true", help="Only the open loop, under cProfile.")
    parser.add_argument("--peers", action="store_true", help="Ours beside other load testers.")
    parser.add_argument("--url", help="With --peers: this server instead of the scripted one.")
    parser.add_argument("--model", default="scripted", help="With --url: the model to ask for.")
    parser.add_argument("--peers-rate", type=float, default=RATE, help="With --peers: requests a second.")
    asked = parser.parse_args()
    if asked.peers:
        found = compare(asked.rounds, asked.url, asked.model, asked.peers_rate)
        if asked.json:
            print(json.dumps(found))
        return
    if asked.profile:
        profiler = cProfile.Profile()
        profiler.runcall(loaded, asked.rate, asked.seconds, 0)
        pstats.Stats(profiler).sort_stats("tottime").print_stats(40)
        return
    rounds = list[Figures]()
    for number in range(asked.rounds):
        rounds.append(
            loaded(asked.rate, asked.seconds, number)
            | arriving(ARRIVING_RATE, ARRIVING_S, number)
            | closed()
            | stalled(asked.stall, number)
        )
        print("  ".join(f"{name} {value:g}" for name, value in rounds[-1].items()), flush=True)
    if asked.json:
        names = rounds[0]
        print(json.dumps({name: round(median(each[name] for each in rounds), 4) for name in names}))


if __name__ == "__main__":
    main()
