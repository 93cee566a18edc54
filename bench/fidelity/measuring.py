"""One real run on any server: a crowd ahead of it for the machine's pace, and whether others were at work."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from bench.fidelity.comparison import preemptions_of, seen_of
from bench.fidelity.record import Seen
from bench.fidelity.scenarios import Budgets
from bench.fidelity.twin import Twin
from headrace.cli.measuring import Target, run_timetable
from headrace.core.exchange import Arrival
from headrace.core.timeline import Timeline
from headrace.measure.neighbours import Neighbours
from headrace.measure.serving import crowd, step_ns_of
from headrace.targets.process import ServerProcess

WARM_UP_REQUESTS = 12
TIMEOUT_S = 240.0


def warm_up(target: Target, twin: Twin, budgets: Budgets) -> float:
    """How long a crowd's step takes just now, in those of the calibration."""
    count = min(WARM_UP_REQUESTS, twin.settings(budgets).max_num_seqs)
    shape, step_ns = step_ns_of(asyncio.run(run_timetable(target, crowd(count, seed=9_000_000))))
    return step_ns / twin.cost.step_ns(shape)


def measure(
    server: ServerProcess, target: Target, arrivals: Sequence[Arrival]
) -> tuple[Seen, list[Timeline]]:
    """The run in numbers, and as it was."""
    before = preemptions_of(server.url)
    neighbours = Neighbours([server.session])
    results = asyncio.run(run_timetable(target, arrivals, TIMEOUT_S))
    others = neighbours.cores() or 0.0
    seen = seen_of(results, preemptions_of(server.url) - before)
    timelines = [result for result in results if isinstance(result, Timeline)]
    return replace(seen, others_cores=round(others, 3)), timelines
