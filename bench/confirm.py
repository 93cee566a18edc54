"""Somebody else's client on what `headrace tune --target vllm` found: `python -m bench.confirm JOURNAL`.

    journal + settings --> vLLM as it was and as tuned, in turns, each under two `vllm bench serve` at once
    (short requests and long ones, at the journal's rates and lengths) --> table, last line JSON

Two processes, because `vllm bench serve` does not tell kinds of requests apart. Its TTFT counts from when a
request was sent, its arrivals are Poisson squeezed to end on time (facts/peers.md, 1.3); the random prompts
are its own. So the load is like the tuner's and not the same: what is confirmed is the size of the gain.
Nothing of ours is between its client and the server.
"""

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from headrace.core.ports import Overrides
from headrace.net.ports import reserved_port
from headrace.targets.vllm import SERVED_NAME, VllmInstallation, VllmServer
from headrace.workload.readers import read_trace
from headrace.workload.trace import TraceRequest

INSTALLATION = VllmInstallation(Path(".vllm"))
ROUNDS = 2
TIMEOUT_S = 420.0


@dataclass(frozen=True, slots=True)
class Kind:
    """One of the two clients."""

    name: str
    rps: float
    prompt_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    duration_s: float

    def words(self, url: str, seed: int, result: Path) -> list[str]:
        middle, spread = _middle(self.prompt_tokens)
        answers, _ = _middle(self.output_tokens)
        return [
            *(str(INSTALLATION.program), "bench", "serve", "--backend", "openai-chat"),
            *("--endpoint", "/v1/chat/completions", "--base-url", url, "--model", SERVED_NAME),
            *("--tokenizer", str(INSTALLATION.model), "--dataset-name", "random", "--ignore-eos"),
            *("--random-input-len", str(middle), "--random-range-ratio", f"{spread:.2f}"),
            *("--random-output-len", str(answers), "--request-rate", f"{self.rps:.3f}"),
            *("--num-prompts", str(max(2, round(self.rps * self.duration_s))), "--seed", str(seed)),
            *("--percentile-metrics", "ttft,itl", "--metric-percentiles", "50,95", "--disable-tqdm"),
            *("--save-result", "--result-filename", str(result)),
        ]


@dataclass(frozen=True, slots=True)
class Seen:
    """One round under one choice of settings."""

    short_ttft_p95_s: float
    short_ttft_p50_s: float
    long_ttft_p95_s: float
    throughput_rps: float
    """Answers of both kinds by the time that the slower client took."""
    failed: int


def measure(settings: Overrides, kinds: list[Kind], seed: int) -> Seen:
    """Start vLLM under `settings`, and both clients at once."""
    with (
        reserved_port() as port,
        VllmServer(INSTALLATION, settings, port=port) as server,
        tempfile.TemporaryDirectory() as folder,
    ):
        results = [Path(folder) / f"{kind.name}.json" for kind in kinds]
        _run([kinds[0].words(server.url, seed + 77, Path(folder) / "warm-up.json")])
        _run([kind.words(server.url, seed, path) for kind, path in zip(kinds, results, strict=True)])
        short, long = (json.loads(path.read_text()) for path in results)
    answered = short["completed"] + long["completed"]
    return Seen(
        short["p95_ttft_ms"] / 1e3,
        short["p50_ttft_ms"] / 1e3,
        long["p95_ttft_ms"] / 1e3,
        answered / max(short["duration"], long["duration"]),
        short["failed"] + long["failed"],
    )


def _run(commands: list[list[str]]) -> None:
    """All at once, to their ends."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    running = [subprocess.Popen(words, stdout=subprocess.DEVNULL, env=environment) for words in commands]
    try:
        for process in running:
            if process.wait(TIMEOUT_S):
                raise SystemExit(f"vllm bench serve ended with {process.returncode}")
    finally:
        for process in running:
            process.kill()
            process.wait()


def kinds_of(requests: Sequence[TraceRequest], duration_s: float) -> list[Kind]:
    """Of the two classes, the one with the shorter prompts first."""
    span_s = requests[-1].due_at
    classes: dict[str, list[TraceRequest]] = {}
    for request in requests:
        classes.setdefault(request.request_class, []).append(request)
    if len(classes) != 2 or span_s <= 0:
        raise SystemExit(f"two classes of requests are wanted, short and long; there are {len(classes)}")
    kinds = [
        Kind(
            name,
            len(each) / span_s,
            _bounds([request.prompt_tokens for request in each]),
            _bounds([request.output_tokens for request in each]),
            duration_s,
        )
        for name, each in classes.items()
    ]
    return sorted(kinds, key=lambda kind: kind.prompt_tokens)


def _bounds(amounts: list[int]) -> tuple[int, int]:
    return min(amounts), max(amounts)


def _middle(bounds: tuple[int, int]) -> tuple[int, float]:
    """As `vllm bench serve` says a range: its middle, and how far it goes to both sides."""
    fewest, most = bounds
    middle = (fewest + most) // 2
    return middle, (most - middle) / middle


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("journal", type=Path, help="of a tuning of vLLM under two classes of requests")
    parser.add_argument("settings", type=json.loads, help="what it recommends: '{\"max_num_seqs\": 64}'")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--duration", type=float, default=90.0, help="seconds of each round")
    options = parser.parse_args()
    kinds = kinds_of(read_trace(options.journal / "workload.jsonl").requests, options.duration)
    choices: dict[str, Overrides] = {"defaults": {}, "tuned": options.settings}
    seen: dict[str, list[Seen]] = {name: [] for name in choices}
    print(f"{'':10}{'short P95':>11}{'short P50':>11}{'long P95':>10}{'req/s':>8}{'failed':>8}", flush=True)
    for number in range(options.rounds):
        for name, settings in choices.items():
            one = measure(settings, kinds, 1000 + number)
            seen[name].append(one)
            print(
                f"{name:10}{one.short_ttft_p95_s:>10.2f}s{one.short_ttft_p50_s:>10.2f}s"
                f"{one.long_ttft_p95_s:>9.2f}s{one.throughput_rps:>8.2f}{one.failed:>8}",
                flush=True,
            )
    print(json.dumps(_summary(seen, kinds)))


def _summary(seen: dict[str, list[Seen]], kinds: list[Kind]) -> dict[str, Any]:
    before, after = seen["defaults"], seen["tuned"]
    short = [median(each.short_ttft_p95_s for each in side) for side in (before, after)]
    rates = [median(each.throughput_rps for each in side) for side in (before, after)]
    return {
        "load": {kind.name: asdict(kind) for kind in kinds},
        "rounds": len(before),
        "short_ttft_p95_s": {"defaults": short[0], "tuned": short[1], "ratio": short[1] / short[0]},
        "throughput_rps": {"defaults": rates[0], "tuned": rates[1], "ratio": rates[1] / rates[0]},
        "failed": sum(each.failed for each in [*before, *after]),
    }


if __name__ == "__main__":
    main()
