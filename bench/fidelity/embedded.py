"""The embedded engine on this machine: predicted first, then measured.

    calibrate -> predict all points -> serve each, until two runs were undisturbed -> errors, spread
              -> up to 12 settings of one workload: predict all, then serve each   -> Kendall's tau

Nothing that was measured after the calibration goes into a prediction. Every real run has a server of
its own, so that none finds the other's prefixes, and a crowd of other requests goes before it. A run
while others used the machine (`measure.neighbours`) is done again; its results are kept but not counted.
With a record the benchmark can be done in parts, each going on where the one before it ended.
"""

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bench.fidelity.comparison import (
    METRICS,
    SHARES,
    error_pct,
    kendall_tau,
    preemptions_of,
    seen_of,
    spread_pct,
)
from bench.fidelity.record import Record, Seen
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
from headrace.core.exchange import Arrival
from headrace.core.settings import Settings
from headrace.executor.cost import FittedCost
from headrace.executor.models import locate
from headrace.executor.tokenizer import OpenVinoTokenizer
from headrace.measure.neighbours import Neighbours
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
AIM_PCT = 5.0
RANKED_SEED = 7
RANKED_PREFIX = "ranked: "


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
    "full": Length(FULL, RANKED, 60.0, 10.0, 9.0, 1500.0),
    "quick": Length(QUICK, RANKED[:5], 40.0, 8.0, 7.0, 300.0),
}


@dataclass(slots=True)
class Point:
    """What is predicted, then measured."""

    name: str
    budgets: Budgets
    arrivals: Sequence[Arrival]
    repeats: int
    predicted: Seen | None = None


@dataclass(frozen=True, slots=True)
class Compared:
    """One point's errors and, of more than one run, their spread, by metric; preemptions said and seen."""

    name: str
    errors_pct: Mapping[str, float]
    spreads_pct: Mapping[str, float]
    preemptions: tuple[float, float]


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

    def predict(self, arrivals: Sequence[Arrival], budgets: Budgets) -> Seen:
        assert self._cost.front_end is not None, "a calibration measures it"
        fleet = Fleet(front_end=self._cost.front_end)
        simulated = simulate(self._trace(arrivals), self._settings(budgets), self._cost, fleet=fleet)
        return seen_of(timelines_and_failures(simulated), simulated.preemptions)

    def measure(self, arrivals: Sequence[Arrival], budgets: Budgets) -> Seen:
        with EmbeddedServer(MODEL, dict(budgets)) as server:
            target = Target(server.url, MODEL)
            count = min(WARM_UP_REQUESTS, self._settings(budgets).max_num_seqs)
            shape, step_ns = step_ns_of(asyncio.run(run_timetable(target, crowd(count, seed=9_000_000))))
            pace = step_ns / self._cost.step_ns(shape)
            before = preemptions_of(server.url)
            neighbours = Neighbours([server.session])
            results = asyncio.run(run_timetable(target, arrivals, TIMEOUT_S))
            others = neighbours.cores() or 0.0
            preempted = preemptions_of(server.url) - before
            return replace(seen_of(results, preempted), pace=pace, others_cores=round(others, 3))

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


def run(length: Length, record_path: Path | None = None, limit_s: float | None = None) -> dict[str, object]:
    """Measure what the record lacks, as far as the time goes; print the tables and give the result."""
    end_at = time.monotonic() + (length.limit_s if limit_s is None else limit_s)
    record = Record(record_path)
    cost = record.cost() or _calibrate(length, record)
    bench = Bench(cost)
    points = [_point(bench, length, number) for number in range(len(length.scenarios))]
    shared = bench.arrivals(Scenario(RANKED_KIND, RANKED_LOAD, {}), length.ranked_run_s, RANKED_SEED)
    settings = [Point(_ranked_name(budgets), budgets, shared, 1) for budgets in length.ranked]
    for point in (*points, *settings):
        point.predicted = bench.predict(point.arrivals, point.budgets)
    for run_number in range(REPEATS):
        for point in (*points, *settings) if run_number else points:
            _measure_until_quiet(bench, point, run_number + 1, record, end_at)
    measured = [point for point in points if record.quiet(point.name)]
    compared = [_compare(point, record.quiet(point.name)) for point in measured]
    seen = [point for point in settings if record.quiet(point.name)]
    tau = _rank(seen, [record.quiet(point.name)[0].ttft_p95_s for point in seen])
    for left in (point.name for point in (*points, *settings) if point not in (*measured, *seen)):
        print(f"not measured yet: {left}")
    return _result(compared, tau, len(seen)) | {
        "disturbed_runs_left_out": record.disturbed,
        "calibration_median_residual_pct": round(100 * cost.residual.median, 2),
    }


def _result(compared: Sequence[Compared], tau: float | None, ranked: int) -> dict[str, object]:
    sizes = [abs(point.errors_pct[name]) for point in compared for name in SHARES]
    if not sizes:
        return {"points": 0, "kendall_tau": tau, "settings_ranked": ranked}
    spreads = [spread for point in compared for spread in point.spreads_pct.values()]
    aims = [max(AIM_PCT, point.spreads_pct.get(name, 0.0)) for point in compared for name in SHARES]
    within = [size <= aim for size, aim in zip(sizes, aims, strict=True)]
    return {
        "median_error_pct": round(float(np.median(sizes)), 2),
        "worst_error_pct": round(max(sizes), 2),
        "spread_pct": round(float(np.median(spreads)), 2) if spreads else None,
        "kendall_tau": tau,
        "worst_spread_pct": round(max(spreads), 2) if spreads else None,
        "within_aim": f"{sum(within)} of {len(within)}",
        "median_error_pct_by_metric": {
            name: round(float(np.median([abs(point.errors_pct[name]) for point in compared])), 2)
            for name in SHARES
        },
        "preemptions": {
            point.name: {"predicted": point.preemptions[0], "measured": point.preemptions[1]}
            for point in compared
            if any(point.preemptions)
        },
        "points": len(compared),
        "settings_ranked": ranked,
    }


def _calibrate(length: Length, record: Record) -> FittedCost:
    calibrated = calibrate_embedded(
        Plan(MODEL, locate(MODEL), budget_s=length.calibrate_s), lambda line: print(line, file=sys.stderr)
    )
    print("\n".join(in_words(calibrated)), flush=True)
    record.keep_cost(calibrated.cost)
    return calibrated.cost


def _point(bench: Bench, length: Length, number: int) -> Point:
    scenario = length.scenarios[number]
    arrivals = bench.arrivals(scenario, length.run_s, 100 + number)
    return Point(str(scenario), scenario.budgets, arrivals, REPEATS)


def _measure_until_quiet(bench: Bench, point: Point, runs: int, record: Record, end_at: float) -> None:
    """As often as it takes to have so many undisturbed, while there is time."""
    while len(record.quiet(point.name)) < min(runs, point.repeats) and time.monotonic() < end_at:
        seen = bench.measure(point.arrivals, point.budgets)
        record.add(point.name, seen)
        print(f"{point.name}: {seen}", file=sys.stderr, flush=True)


def _compare(point: Point, measured: Sequence[Seen]) -> Compared:
    predicted = point.predicted
    assert predicted is not None, "predicted before measured"
    print(f"\n{point.name}: {len(point.arrivals)} requests")
    heads = "".join(f"{f'run {number + 1}':>10}" for number in range(len(measured)))
    print(f"  {'':<18}{'predicted':>11}{heads}{'error':>9}{'spread':>9}")
    errors: dict[str, float] = {}
    spreads: dict[str, float] = {}
    for name, (label, unit) in METRICS.items():
        said, seen = getattr(predicted, name), [getattr(each, name) for each in measured]
        cells = "".join(f"{value * unit:>10.2f}" for value in seen)
        if name == "preemptions":
            print(f"  {label:<18}{said:>11.0f}" + "".join(f"{value:>10.0f}" for value in seen))
        else:
            errors[name] = error_pct(predicted, measured, name)
            spread = f"{'one run':>9}"
            if len(measured) > 1:
                spreads[name] = spread_pct(measured, name)
                spread = f"{spreads[name]:>8.1f}%"
            print(f"  {label:<18}{said * unit:>11.2f}{cells}{errors[name]:>+8.1f}%{spread}")
    print(f"  machine at {np.mean([each.pace for each in measured]):.2f} of the calibration's step time")
    counted = float(np.mean([each.preemptions for each in measured]))
    return Compared(point.name, errors, spreads, (predicted.preemptions, counted))


def _rank(points: Sequence[Point], seen: Sequence[float]) -> float | None:
    """Kendall's tau of P95 TTFT. All of them met the same requests."""
    if len(points) < 2:
        return None
    said = [point.predicted.ttft_p95_s for point in points if point.predicted is not None]
    print(f"\nTTFT P95 under {len(seen)} settings, {RANKED_KIND.name} at {RANKED_LOAD:g} of the knee, s")
    print(f"  {'':<66}{'said':>8}{'seen':>8}")
    for point, predicted, measured in sorted(zip(points, said, seen, strict=True), key=lambda row: row[2]):
        print(f"  {point.name.removeprefix(RANKED_PREFIX):<66}{predicted:>8.2f}{measured:>8.2f}", flush=True)
    return round(kendall_tau(said, seen), 3)


def _ranked_name(budgets: Budgets) -> str:
    words = ", ".join(f"{name} {value}" for name, value in budgets.items()) or "defaults"
    return f"{RANKED_PREFIX}{words}"
