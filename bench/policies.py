"""What each scheduling policy gives and costs: `python -m bench.policies [--real] [--json]`.

In the twin: three public traces on an 8B model and one H100, near its knee, the same requests under each
policy. Short and long are told apart by the prompt's length. Deterministic: two runs print the same.

With `--real`: the embedded engine on this machine under the built-in mix of short chats and long documents,
each policy in turn with a server of its own and the same requests, round after round, so that a noisy
neighbour hits all; medians over the rounds, and from the least to the most.

    HEADRACE_SHARED/traces holds the traces
    tables, then as the last line: {"twin": {trace: {policy: {...}}}, "real": {policy: {...}}}

TTFT counts from when a request was due. `met` is the share of requests whose TTFT was within the goal that
`slo` has where none is given (core.slo.USUAL), and 95 % of whose gaps between tokens were within its ITL.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np

from headrace.cli.costs import load_cost
from headrace.cli.measuring import Target, measure
from headrace.core.ports import Overrides
from headrace.core.settings import SchedulingPolicy, Settings
from headrace.core.slo import USUAL
from headrace.core.timeline import Timeline
from headrace.sim.measurement import timelines_and_failures
from headrace.sim.run import simulate
from headrace.targets.embedded import EmbeddedServer
from headrace.workload.mixed import MixedWorkload
from headrace.workload.readers import read_trace
from headrace.workload.reshape import scaled, spread
from headrace.workload.slices import Slice

COST = "llama-3.1-8b/h100"
MODEL = "smollm2"
TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Case:
    """A trace at a load near the knee."""

    path: str
    first: int
    scale: float
    long_over_tokens: int


TWIN: dict[str, Case] = {
    "azure_2023 conversation": Case("azure_2023/AzureLLMInferenceTrace_conv.csv", 6000, 4.0, 2000),
    "azure_2023 code": Case("azure_2023/AzureLLMInferenceTrace_code.csv", 3000, 2.2, 2000),
    "mooncake conversation": Case(
        "mooncake_conversation/slice_head_conversation_trace.jsonl", 1000, 0.3, 8000
    ),
}
TWIN_ARMS: dict[str, Overrides] = {
    "fcfs": {},
    "fcfs, threshold 512": {"long_prefill_token_threshold": 512},
    "shortest": {"scheduling_policy": "shortest"},
    "slo": {"scheduling_policy": "slo"},
}
REAL_ARMS: dict[str, Overrides] = {
    "fcfs": {},
    "fcfs, threshold 128": {"long_prefill_token_threshold": 128},
    "shortest": {"scheduling_policy": "shortest"},
    "shortest, thresh. 128": {"scheduling_policy": "shortest", "long_prefill_token_threshold": 128},
    "slo": {"scheduling_policy": "slo"},
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run, or the median of several."""

    short_ttft_p50_s: float
    short_ttft_p95_s: float
    long_ttft_p50_s: float
    long_ttft_p95_s: float
    long_ttft_max_s: float
    itl_p95_s: float
    itl_p99_s: float
    output_tokens_per_s: float
    met_pct: float


def main() -> None:
    options = parse_options()
    found: dict[str, object] = {}
    if options.real:
        found["real"] = real(options.rounds, options.seconds)
    else:
        found["twin"] = {name: twin(name, case) for name, case in TWIN.items()}
    if options.json:
        print(json.dumps(found))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.policies", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--real", action="store_true", help="the embedded engine, instead of the twin")
    parser.add_argument("--rounds", type=int, default=2, help="of the real engine (default 2)")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each real run (default 30)")
    parser.add_argument("--json", action="store_true", help="end with one JSON line")
    return parser.parse_args()


def twin(name: str, case: Case) -> dict[str, dict[str, float]]:
    requests = read_trace(traces() / case.path, part=Slice(case.first)).requests
    requests = scaled(spread(requests), case.scale)
    print(f"\n{name}: {len(requests):,} requests at {case.scale:g} times their rate, {COST}")
    print_head(case.long_over_tokens)
    outcomes: dict[str, Outcome] = {}
    for arm, overrides in TWIN_ARMS.items():
        simulated = simulate(requests, settings_of(overrides), load_cost(COST))
        results = [each for each in timelines_and_failures(simulated) if isinstance(each, Timeline)]
        outcomes[arm] = outcome_of(results, case.long_over_tokens)
        print_row(arm, [outcomes[arm]])
    return {arm: rounded(outcome) for arm, outcome in outcomes.items()}


def traces() -> Path:
    shared = os.environ.get("HEADRACE_SHARED")
    if shared is None:
        sys.exit("set HEADRACE_SHARED to the folder that holds traces/")
    return Path(shared) / "traces"


def settings_of(overrides: Overrides) -> Settings:
    """What vLLM takes on that machine by default."""
    machine = load_cost(COST).machine
    assert machine is not None, "a cost of the catalogue knows its machine"
    cap = int(overrides.get("long_prefill_token_threshold", 0))
    return Settings(
        max_model_len=machine.max_model_len,
        num_gpu_blocks=machine.num_gpu_blocks(16),
        block_size=16,
        max_num_batched_tokens=8192,
        max_num_seqs=1024,
        long_prefill_token_threshold=cap,
        scheduling_policy=SchedulingPolicy(str(overrides.get("scheduling_policy", "fcfs"))),
        async_scheduling=True,
    )


def real(rounds: int, seconds: float) -> dict[str, dict[str, float]]:
    """Each arm once a round, in an order that turns.

    Of the built-in mix, but twice as many documents of half the length, so that a short run has some.
    """
    outcomes: dict[str, list[Outcome]] = {arm: [] for arm in REAL_ARMS}
    workload = MixedWorkload(long_rps=0.14, long_prompt_tokens=(1500, 2500), duration_s=seconds)
    print(f"\nembedded {MODEL}: {workload.describe()}, {rounds} rounds")
    for turn in range(rounds):
        for arm in REAL_ARMS if turn % 2 == 0 else reversed(REAL_ARMS):
            outcomes[arm].append(serve_once(REAL_ARMS[arm], replace(workload, seed=turn)))
            print(f"  {arm}: {outcomes[arm][-1]}", file=sys.stderr, flush=True)
    print_head(workload.long_prompt_tokens[0] - 1)
    for arm, measured in outcomes.items():
        print_row(arm, measured)
    return {arm: rounded(in_the_middle(measured)) for arm, measured in outcomes.items()}


def serve_once(overrides: Overrides, workload: MixedWorkload) -> Outcome:
    with EmbeddedServer(MODEL, overrides) as server:
        measurement = measure(Target(server.url, MODEL), workload, timeout_s=TIMEOUT_S)
    if measurement.failures:
        print(f"  {len(measurement.failures)} requests failed", file=sys.stderr)
    return outcome_of(measurement.timelines, workload.long_prompt_tokens[0] - 1)


def outcome_of(results: Sequence[Timeline], long_over_tokens: int) -> Outcome:
    short = [each.ttft_s for each in results if each.prompt_tokens <= long_over_tokens]
    long = [each.ttft_s for each in results if each.prompt_tokens > long_over_tokens]
    gaps = np.concatenate([np.diff(each.token_at) for each in results])
    tokens = sum(len(each.token_at) for each in results)
    return Outcome(
        *(float(np.percentile(short, share)) for share in (50, 95)),
        *(float(np.percentile(long, share)) for share in (50, 95, 100)),
        *(float(np.percentile(gaps, share)) for share in (95, 99)),
        output_tokens_per_s=tokens / max(each.token_at[-1] for each in results),
        met_pct=100.0 * sum(meets_the_usual_goal(each) for each in results) / len(results),
    )


def meets_the_usual_goal(timeline: Timeline) -> bool:
    if timeline.ttft_s > USUAL.first_token_ns(timeline.prompt_tokens) / 1e9:
        return False
    gaps_s = timeline.itl_s
    return not gaps_s or float(np.percentile(gaps_s, 95)) <= USUAL.itl_ns / 1e9


def in_the_middle(outcomes: Sequence[Outcome]) -> Outcome:
    return Outcome(
        *(median(values) for values in zip(*(asdict(each).values() for each in outcomes), strict=True))
    )


def rounded(outcome: Outcome) -> dict[str, float]:
    return {name: float(f"{value:.4g}") for name, value in asdict(outcome).items()}


def print_head(long_over_tokens: int) -> None:
    print(f"(long: prompts over {long_over_tokens:,} tokens; times in s, ITL in ms)")
    print(
        f"{'':<22} {'TTFT short':>12} {'TTFT long':>19} {'ITL':>10} {'tokens':>7} {'met':>5}\n"
        f"{'':<22} {'P50':>6}{'P95':>6} {'P50':>6}{'P95':>6}{'max':>7} {'P95':>5}{'P99':>5} "
        f"{'/s':>7} {'%':>5}"
    )


def print_row(arm: str, outcomes: Sequence[Outcome]) -> None:
    """The medians; where there are several, below them from the least to the most."""
    print(f"{arm:<22} {columns(in_the_middle(outcomes))}", flush=True)
    if len(outcomes) > 1:
        values = [list(asdict(each).values()) for each in outcomes]
        print(f"{'  from':<22} {columns(Outcome(*map(min, zip(*values, strict=True))))}")
        print(f"{'  to':<22} {columns(Outcome(*map(max, zip(*values, strict=True))))}", flush=True)


def columns(o: Outcome) -> str:
    return (
        f"{o.short_ttft_p50_s:>6.2f}{o.short_ttft_p95_s:>6.2f} "
        f"{o.long_ttft_p50_s:>6.2f}{o.long_ttft_p95_s:>6.2f}{o.long_ttft_max_s:>7.2f} "
        f"{o.itl_p95_s * 1e3:>5.0f}{o.itl_p99_s * 1e3:>5.0f} {o.output_tokens_per_s:>7.1f} {o.met_pct:>5.1f}"
    )


if __name__ == "__main__":
    main()
