"""The embedded engine on this machine: predicted first, then measured.

    calibrate -> predict all points -> serve each, until two runs were undisturbed -> errors, spread
              -> up to 12 settings of one workload: predict all, then serve each   -> Kendall's tau

Nothing that was measured after the calibration goes into a prediction. Every real run has a server of
its own, so that none finds the other's prefixes, and a crowd of other requests goes before it. A run
while others used the machine (`measure.neighbours`) is done again; its results are kept but not counted.
With a record the benchmark can be done in parts, each going on where the one before it ended.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.fidelity.comparison import (
    Point,
    compare,
    rank,
    ranked_name,
    result_of,
)
from bench.fidelity.measuring import measure, warm_up
from bench.fidelity.record import Record, Seen
from bench.fidelity.scenarios import (
    FULL,
    QUICK,
    RANKED,
    RANKED_KIND,
    RANKED_LOAD,
    Budgets,
    Scenario,
)
from bench.fidelity.twin import Twin
from headrace.cli.calibrate import in_words
from headrace.cli.calibrating import Plan, calibrate_embedded
from headrace.cli.measuring import Target
from headrace.core.exchange import Arrival
from headrace.executor.cost import FittedCost
from headrace.executor.models import locate
from headrace.executor.tokenizer import OpenVinoTokenizer
from headrace.targets.embedded import EmbeddedServer

MODEL = "smollm2"
REPEATS = 2
WARM_UP_REQUESTS = 12
TIMEOUT_S = 90.0
PROBE_RPS = 8.0
"""Only says how many requests the twin is given to find the knee with."""
AIM_PCT = 5.0
RANKED_SEED = 7


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


class Bench(Twin):
    """The twin and the real thing, with the same requests for both."""

    def __init__(self, cost: FittedCost) -> None:
        super().__init__(cost, OpenVinoTokenizer(locate(MODEL)), PROBE_RPS)

    def measure(self, arrivals: Sequence[Arrival], budgets: Budgets) -> Seen:
        with EmbeddedServer(MODEL, dict(budgets)) as server:
            target = Target(server.url, MODEL)
            pace = warm_up(target, self, budgets)
            seen, _ = measure(server, target, arrivals)
            return replace(seen, pace=pace)


def run(length: Length, record_path: Path | None = None, limit_s: float | None = None) -> dict[str, object]:
    """Measure what the record lacks, as far as the time goes; print the tables and give the result."""
    end_at = time.monotonic() + (length.limit_s if limit_s is None else limit_s)
    record = Record(record_path)
    cost = record.cost() or _calibrate(length, record)
    bench = Bench(cost)
    points = [_point(bench, length, number) for number in range(len(length.scenarios))]
    shared = bench.arrivals(Scenario(RANKED_KIND, RANKED_LOAD, {}), length.ranked_run_s, RANKED_SEED)
    settings = [Point(ranked_name(budgets), budgets, shared, 1) for budgets in length.ranked]
    for point in (*points, *settings):
        point.predicted = bench.predict(point.arrivals, point.budgets)
    for run_number in range(REPEATS):
        for point in (*points, *settings) if run_number else points:
            _measure_until_quiet(bench, point, run_number + 1, record, end_at)
    measured = [point for point in points if record.quiet(point.name)]
    compared = [compare(point, record.quiet(point.name)) for point in measured]
    seen = [point for point in settings if record.quiet(point.name)]
    tau = rank(
        f"{RANKED_KIND.name} at {RANKED_LOAD:g} of the knee",
        seen,
        [record.quiet(point.name)[0].ttft_p95_s for point in seen],
    )
    for left in (point.name for point in (*points, *settings) if point not in (*measured, *seen)):
        print(f"not measured yet: {left}")
    return result_of(compared, tau, len(seen), AIM_PCT) | {
        "disturbed_runs_left_out": record.disturbed,
        "calibration_median_residual_pct": round(100 * cost.residual.median, 2),
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
