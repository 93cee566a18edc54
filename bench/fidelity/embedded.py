"""The embedded engine on this machine: predicted first, then measured.

    calibrate -> for each scenario: simulate, then serve it, twice -> errors beside the real runs' spread
              -> for up to 12 settings of one workload: simulate all, then serve each -> Kendall's tau

Nothing that was measured after the calibration goes into a prediction. Every real run has a server of
its own, so that none finds the other's prefixes, and a crowd of other requests goes before it. That
crowd's steps tell how fast the machine is just then, beside the calibration. On a shared machine this
changes, so a second set of errors, "at its pace", has that factor taken out: what is left is the model's.
"""

import asyncio
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from bench.fidelity.scenarios import (
    FULL,
    QUICK,
    RANKED,
    RANKED_KIND,
    RANKED_LOAD,
    Budgets,
    Scenario,
    as_trace,
    requests,
)
from headrace.cli.calibrate import in_words
from headrace.cli.calibrating import Plan, calibrate_embedded
from headrace.cli.measuring import Target, run_timetable
from headrace.core.cost import CostModel, StepShape
from headrace.core.exchange import Arrival
from headrace.core.settings import Settings
from headrace.core.timeline import Failure, Timeline
from headrace.executor.cost import FittedCost
from headrace.executor.models import locate
from headrace.executor.tokenizer import OpenVinoTokenizer
from headrace.measure.serving import crowd, step_ns_of
from headrace.sim.measurement import timelines_and_failures
from headrace.sim.run import Fleet, simulate
from headrace.targets.embedded import EmbeddedServer
from headrace.workload.trace import TraceRequest

MODEL = "smollm2"
REPEATS = 2
WARM_UP_REQUESTS = 12
TIMEOUT_S = 90.0
PROBE_RPS = 8.0
"""Only says how many requests the twin is given to find the knee with."""
METRICS: dict[str, tuple[str, float]] = {
    "ttft_p50_s": ("TTFT P50, s", 1.0),
    "ttft_p95_s": ("TTFT P95, s", 1.0),
    "itl_mean_s": ("ITL mean, ms", 1e3),
    "output_tokens_per_s": ("output tokens/s", 1.0),
    "preemptions": ("preemptions", 1.0),
}
SHARES = tuple(name for name in METRICS if name != "preemptions")
"""Metrics whose errors are shares. Preemptions are small whole numbers, so they are told as they are."""


@dataclass(frozen=True, slots=True)
class Length:
    """How long the whole may take."""

    scenarios: tuple[Scenario, ...]
    ranked: tuple[Budgets, ...]
    calibrate_s: float
    run_s: float
    """Requests are due for so long."""
    ranked_run_s: float
    limit_s: float
    """When it is over nothing new is begun; what was left out is said."""


LENGTHS = {
    "full": Length(FULL, RANKED, 90.0, 12.0, 9.0, 690.0),
    "quick": Length(QUICK, RANKED[:5], 40.0, 8.0, 7.0, 225.0),
}
SHARE_OF_RANKING = 0.33
"""Of the whole time: the scenarios end early enough to leave it."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One run in numbers, real or predicted."""

    ttft_p50_s: float
    ttft_p95_s: float
    itl_mean_s: float
    output_tokens_per_s: float
    preemptions: float
    pace: float = 1.0
    """Of the machine just before: how long a step took, in those of the calibration."""


@dataclass(frozen=True, slots=True)
class Paced:
    """A cost model on a machine that is slower by a factor."""

    cost: CostModel
    pace: float

    def step_ns(self, shape: StepShape) -> int:
        return round(self.cost.step_ns(shape) * self.pace)


class Bench:
    """The twin and the real thing, with the same requests for both."""

    def __init__(self, cost: FittedCost) -> None:
        self._cost = cost
        self._tokenizer = OpenVinoTokenizer(locate(MODEL))
        assert cost.machine is not None, "a calibration says what machine it is of"
        self._machine = cost.machine

    def arrivals(self, scenario: Scenario, run_s: float, seed: int) -> tuple[Arrival, ...]:
        """At `scenario.load` times the rate at which the twin, given everything at once, gets done."""
        probe = requests(scenario.kind, PROBE_RPS, run_s, seed)
        at_once = [replace(traced, due_at=0.0) for traced in self._trace(probe)]
        knee_rps = len(probe) / max(self._ends_s(at_once, scenario.budgets))
        return requests(scenario.kind, scenario.load * knee_rps, run_s, seed)

    def predict(self, arrivals: Sequence[Arrival], budgets: Budgets, pace: float = 1.0) -> Seen:
        assert self._cost.front_end is not None, "a calibration measures it"
        simulated = simulate(
            self._trace(arrivals),
            self._settings(budgets),
            Paced(self._cost, pace),
            fleet=Fleet(front_end=self._cost.front_end),
        )
        return _seen(timelines_and_failures(simulated), simulated.preemptions)

    def measure(self, arrivals: Sequence[Arrival], budgets: Budgets) -> Seen:
        with EmbeddedServer(MODEL, dict(budgets)) as server:
            target = Target(server.url, MODEL)
            count = min(WARM_UP_REQUESTS, self._settings(budgets).max_num_seqs)
            shape, step_ns = step_ns_of(asyncio.run(run_timetable(target, crowd(count, seed=9_000_000))))
            pace = step_ns / self._cost.step_ns(shape)
            before = _preemptions(server.url)
            results = asyncio.run(run_timetable(target, arrivals, TIMEOUT_S))
            return replace(_seen(results, _preemptions(server.url) - before), pace=pace)

    def _trace(self, arrivals: Sequence[Arrival]) -> tuple[TraceRequest, ...]:
        return as_trace(arrivals, self._tokenizer, self._machine.block_size)

    def _ends_s(self, trace: Sequence[TraceRequest], budgets: Budgets) -> list[float]:
        simulated = simulate(trace, self._settings(budgets), self._cost)
        return [ends[-1] / 1e9 for ends in simulated.step_ends_ns]

    def _settings(self, budgets: Budgets) -> Settings:
        machine = self._machine
        batched = budgets.get("max_num_batched_tokens", machine.max_num_batched_tokens)
        blocks = machine.num_gpu_blocks(machine.block_size)
        return Settings(
            max_model_len=budgets.get("max_model_len", machine.max_model_len),
            num_gpu_blocks=budgets.get("num_gpu_blocks_override", blocks),
            block_size=machine.block_size,
            max_num_batched_tokens=batched,
            max_num_seqs=budgets.get("max_num_seqs", min(machine.max_num_seqs, batched)),
            long_prefill_token_threshold=budgets.get("long_prefill_token_threshold", 0),
        )


def run(length: Length) -> dict[str, object]:
    """Print the tables as they come and give the result."""
    began = time.monotonic()
    calibrated = calibrate_embedded(
        Plan(MODEL, locate(MODEL), budget_s=length.calibrate_s), lambda line: print(line, file=sys.stderr)
    )
    print("\n".join(in_words(calibrated)), flush=True)
    bench = Bench(calibrated.cost)
    errors: dict[str, dict[str, float]] = {}
    at_its_pace: list[float] = []
    paces: list[float] = []
    spreads: list[float] = []
    for number, scenario in enumerate(length.scenarios):
        if time.monotonic() - began > length.limit_s * (1 - SHARE_OF_RANKING):
            print(f"\nno time left for {len(length.scenarios) - number} of the points", flush=True)
            break
        arrivals = bench.arrivals(scenario, length.run_s, 100 + number)
        predicted = bench.predict(arrivals, scenario.budgets)
        measured = [bench.measure(arrivals, scenario.budgets) for _ in range(REPEATS)]
        errors[str(scenario)] = _compare(scenario, len(arrivals), predicted, measured)
        spreads += [_spread_pct(measured, name) for name in SHARES]
        pace = float(np.mean([each.pace for each in measured]))
        paces.append(pace)
        paced = bench.predict(arrivals, scenario.budgets, pace)
        at_its_pace += [abs(_error_pct(paced, measured, name)) for name in SHARES]
        print(f"  machine at {pace:.2f} of the calibration's step time", flush=True)
    tau, ranked = _rank(bench, length, began + length.limit_s)
    sizes = [abs(by_name[name]) for by_name in errors.values() for name in SHARES]
    return {
        "median_error_pct": round(float(np.median(sizes)), 2),
        "worst_error_pct": round(max(sizes), 2),
        "spread_pct": round(float(np.median(spreads)), 2),
        "kendall_tau": round(tau, 3),
        "worst_spread_pct": round(max(spreads), 2),
        "median_error_at_its_pace_pct": round(float(np.median(at_its_pace)), 2),
        "paces": [round(pace, 3) for pace in paces],
        "median_error_pct_by_metric": {
            name: round(float(np.median([abs(by_name[name]) for by_name in errors.values()])), 2)
            for name in SHARES
        },
        "preemptions": {
            name: {"predicted": by_name["predicted_preemptions"], "measured": by_name["preemptions"]}
            for name, by_name in errors.items()
            if by_name["predicted_preemptions"] or by_name["preemptions"]
        },
        "calibration_median_residual_pct": round(100 * calibrated.cost.residual.median, 2),
        "points": len(errors),
        "settings_ranked": ranked,
        "took_s": round(time.monotonic() - began),
    }


def _compare(scenario: Scenario, count: int, predicted: Seen, measured: Sequence[Seen]) -> dict[str, float]:
    print(f"\n{scenario}: {count} requests")
    heads = "".join(f"{f'run {number + 1}':>10}" for number in range(len(measured)))
    print(f"  {'':<18}{'predicted':>11}{heads}{'error':>9}{'spread':>9}")
    errors: dict[str, float] = {}
    for name, (label, unit) in METRICS.items():
        said, seen = getattr(predicted, name), [getattr(each, name) for each in measured]
        cells = "".join(f"{value * unit:>10.2f}" for value in seen)
        mean = float(np.mean(seen))
        if name == "preemptions":
            errors |= {"predicted_preemptions": said, "preemptions": mean}
            print(f"  {label:<18}{said:>11.0f}" + "".join(f"{value:>10.0f}" for value in seen), flush=True)
        else:
            errors[name] = _error_pct(predicted, measured, name)
            spread = _spread_pct(measured, name)
            print(f"  {label:<18}{said * unit:>11.2f}{cells}{errors[name]:>+8.1f}%{spread:>8.1f}%")
    return errors


def _rank(bench: Bench, length: Length, end_at: float) -> tuple[float, int]:
    """Kendall's tau of P95 TTFT, and of how many settings. All of them meet the same requests."""
    arrivals = bench.arrivals(Scenario(RANKED_KIND, RANKED_LOAD, {}), length.ranked_run_s, 7)
    said = [bench.predict(arrivals, budgets).ttft_p95_s for budgets in length.ranked]
    seen: list[float] = []
    for budgets in length.ranked:
        if len(seen) >= 2 and time.monotonic() > end_at:
            print(f"\nno time left for {len(said) - len(seen)} of the settings to rank")
            break
        seen.append(bench.measure(arrivals, budgets).ttft_p95_s)
    rows = list(zip(length.ranked, said, seen, strict=False))
    print(f"\nTTFT P95 under {len(seen)} settings, {RANKED_KIND.name} at {RANKED_LOAD:g} of the knee, s")
    print(f"  {'':<66}{'said':>8}{'seen':>8}")
    for budgets, predicted, measured in sorted(rows, key=lambda row: row[2]):
        words = ", ".join(f"{name} {value}" for name, value in budgets.items()) or "defaults"
        print(f"  {words:<66}{predicted:>8.2f}{measured:>8.2f}", flush=True)
    return kendall_tau(said[: len(seen)], seen), len(seen)


def kendall_tau(some: Sequence[float], others: Sequence[float]) -> float:
    """Pairs in the same order less those in the opposite one, of all pairs. Ties are neither."""
    pairs = list(combinations(range(len(some)), 2))
    return sum(float(np.sign((some[a] - some[b]) * (others[a] - others[b]))) for a, b in pairs) / len(pairs)


def _error_pct(predicted: Seen, measured: Sequence[Seen], name: str) -> float:
    return 100 * (getattr(predicted, name) / float(np.mean([getattr(each, name) for each in measured])) - 1)


def _spread_pct(measured: Sequence[Seen], name: str) -> float:
    """From the least to the most of the real runs, as a share of their mean."""
    values = [getattr(each, name) for each in measured]
    return 100 * (max(values) - min(values)) / float(np.mean(values))


def _seen(results: Sequence[Timeline | Failure], preemptions: float) -> Seen:
    failed = [result for result in results if isinstance(result, Failure)]
    assert not failed, f"{len(failed)} of {len(results)} requests failed, the first: {failed[0].reason}"
    timelines = [result for result in results if isinstance(result, Timeline)]
    ttfts = [timeline.ttft_s for timeline in timelines]
    gaps = [gap for timeline in timelines for gap in timeline.itl_s]
    tokens = sum(len(timeline.token_at) for timeline in timelines)
    over_s = max(timeline.token_at[-1] for timeline in timelines) - timelines[0].due_at
    p50, p95 = (float(np.quantile(ttfts, share)) for share in (0.5, 0.95))
    return Seen(p50, p95, float(np.mean(gaps)), tokens / over_s, preemptions)


def _preemptions(url: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    counted = [line for line in lines if line.startswith("vllm:num_preemptions_total")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in counted)
