"""How fast a workload is simulated: `python -m bench.sim [--json]`.

The Azure conversation trace of 2023 (58 minutes, 19,366 requests, 4.1 million output tokens) on an 8B
model and one H100, with prefix caching, vLLM's default budgets, on one core: from the requests to a
`Measurement` with every token's time and every request's bill. Without and with async scheduling in
turns, so that a noisy neighbour hits both.

    HEADRACE_SHARED/traces/azure_2023/AzureLLMInferenceTrace_conv.csv is the trace
    a table, then as the last line: {"azure_conv_s": ..., "requests_per_s": ..., "output_tokens_per_s": ...}

The last line is of async scheduling, vLLM's default on GPUs; the median of the repeats.
"""

import argparse
import cProfile
import gc
import json
import os
import pstats
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from headrace.cli.costs import load_cost
from headrace.core.cost import CostModel
from headrace.core.measurement import Measurement
from headrace.core.settings import Settings
from headrace.sim.measurement import About, measurement_of
from headrace.sim.overload import judge_load
from headrace.sim.run import simulate
from headrace.workload.readers import read_trace
from headrace.workload.trace import TraceRequest

TRACE = "traces/azure_2023/AzureLLMInferenceTrace_conv.csv"
COST = "llama-3.1-8b/h100"
REPEATS = 5


@dataclass(frozen=True, slots=True)
class Timing:
    """Of one run, in seconds: to the end of the simulation, and with the record of it."""

    simulated_s: float
    whole_s: float
    cpu_s: float


def main() -> None:
    options = parse_options()
    requests = read_trace(trace_path()).requests
    cost, settings = vllm_defaults()
    kinds = {"sync": settings, "async": replace(settings, async_scheduling=True)}
    timings: dict[str, list[Timing]] = {kind: [] for kind in kinds}
    outcomes: dict[str, Measurement] = {}
    if options.profile:
        profile(requests, kinds["async"], cost)
        return
    for _ in range(options.repeats):
        for kind, each in kinds.items():
            timing, outcomes[kind] = run_once(requests, each, cost)
            timings[kind].append(timing)
    print(f"{len(requests):,} requests over {requests[-1].due_at:,.0f} s, {COST}, {settings}")
    for kind, measured in timings.items():
        print_row(kind, measured, outcomes[kind])
    if options.json:
        print(to_json(requests, timings["async"]))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.sim", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=REPEATS, help=f"of each kind (default {REPEATS})")
    parser.add_argument("--profile", action="store_true", help="where one run spends its time, instead")
    parser.add_argument("--json", action="store_true", help="end with one JSON line")
    return parser.parse_args()


def trace_path() -> Path:
    shared = os.environ.get("HEADRACE_SHARED")
    if shared is None:
        sys.exit(f"set HEADRACE_SHARED to the folder that holds {TRACE}")
    return Path(shared) / TRACE


def vllm_defaults() -> tuple[CostModel, Settings]:
    cost = load_cost(COST)
    assert cost.machine is not None, "a cost of the catalogue knows its machine"
    return cost, Settings(
        max_model_len=cost.machine.max_model_len,
        num_gpu_blocks=cost.machine.num_gpu_blocks(16),
        block_size=16,
        max_num_batched_tokens=8192,
        max_num_seqs=1024,
    )


def run_once(
    requests: Sequence[TraceRequest], settings: Settings, cost: CostModel
) -> tuple[Timing, Measurement]:
    gc.collect()
    began, cpu = time.perf_counter(), time.process_time()
    simulated = simulate(requests, settings, cost)
    simulated_s = time.perf_counter() - began
    measurement = measurement_of(simulated, About("twin", COST, {}, TRACE, {}))
    return (
        Timing(simulated_s, time.perf_counter() - began, time.process_time() - cpu),
        measurement,
    )


def print_row(kind: str, timings: Sequence[Timing], outcome: Measurement) -> None:
    wholes = sorted(timing.whole_s for timing in timings)
    print(
        f"{kind:>6}: {median(wholes):6.2f} s ({wholes[0]:.2f} to {wholes[-1]:.2f}), of which simulating "
        f"{median(t.simulated_s for t in timings):.2f} s; CPU {median(t.cpu_s for t in timings):.2f} s; "
        f"{judge_load(outcome.timelines).verdict}"
    )


def to_json(requests: Sequence[TraceRequest], timings: Sequence[Timing]) -> str:
    whole_s = median(timing.whole_s for timing in timings)
    tokens = sum(traced.output_tokens for traced in requests)
    return json.dumps(
        {
            "azure_conv_s": round(whole_s, 3),
            "requests_per_s": round(len(requests) / whole_s),
            "output_tokens_per_s": round(tokens / whole_s),
        }
    )


def profile(requests: Sequence[TraceRequest], settings: Settings, cost: CostModel) -> None:
    profiler = cProfile.Profile()
    profiler.runcall(run_once, requests, settings, cost)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(30)


if __name__ == "__main__":
    main()
