"""Measures the embedded engine on this machine and makes a cost model of it.

    1  steps of chosen shapes, in this process                   -> executor.cost.fit
    2  a real server and a client beside it, the rest of the time -> what serving adds

Shared by `headrace calibrate` and the benchmark of how far the result can be trusted.
"""

import asyncio
import os
import platform
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import product
from pathlib import Path

from headrace import __version__
from headrace.capacity.kv import default_kv_cache_memory_bytes
from headrace.cli.measuring import Target, run_timetable
from headrace.cli.memory import affords_expanded, available_bytes
from headrace.cli.serve import DEFAULTS
from headrace.core.cost import Machine, StepShape
from headrace.core.exchange import Arrival
from headrace.core.ports import Overrides
from headrace.executor.cost import FittedCost, fit
from headrace.executor.models import ModelFiles
from headrace.executor.paged import KvCacheDtype, PagedExecutor, load
from headrace.measure.neighbours import Neighbours
from headrace.measure.serving import (
    CROWDS,
    Added,
    Results,
    added_by_serving,
    apart,
    crowd,
    front_end_of,
    served,
    step_ns_of,
)
from headrace.measure.steps import POOL_TOKENS, Cell, Timed, design, time_steps
from headrace.targets.embedded import EmbeddedServer

SHARE_OF_STEPS = 0.7
"""Of the time that may be taken: the rest is the server's."""
LEAST_SERVED_S = 20.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is calibrated, and how long it may take."""

    model: str
    files: ModelFiles
    kv_cache_dtype: str = KvCacheDtype.AUTO.value
    budget_s: float = 90.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Fit:
    """How well one cell is told: that of its steps whose error is the median."""

    cell: Cell
    measured_ns: float
    fitted_ns: float

    @property
    def error(self) -> float:
        return self.fitted_ns / self.measured_ns - 1.0


@dataclass(frozen=True, slots=True)
class Calibrated:
    """The cost model, and what is to be said of it."""

    cost: FittedCost
    added: Added
    cells: tuple[Fit, ...] = field(repr=False)

    @property
    def worst(self) -> Fit:
        return max(self.cells, key=lambda cell: abs(cell.error))


def calibrate_embedded(plan: Plan, say: Say) -> Calibrated:
    """Takes about `plan.budget_s`, loading aside. `say` gets lines of progress."""
    say(f"loading {plan.files.name}")
    timed, machine = _time_bare_steps(plan, say)
    bare = fit([(each.shape, each.ns) for each in timed], _provenance(plan), machine)
    say("starting a server, to see what serving adds")
    return _serve_and_compare(plan, bare, timed, say)


def _time_bare_steps(plan: Plan, say: Say) -> tuple[list[Timed], Machine]:
    model = load(plan.files, plan.kv_cache_dtype, expand_weights=affords_expanded(plan.files))
    machine = Machine(
        name=cpu_name(),
        model=plan.files.name,
        max_model_len=plan.files.max_model_len,
        kv_cache_bytes=default_kv_cache_memory_bytes(available_bytes()),
        kv_bytes_per_token=model.kv_bytes_per_block / model.block_size,
        async_scheduling=False,
        block_size=model.block_size,
        max_num_batched_tokens=DEFAULTS.batched_tokens,
        max_num_seqs=DEFAULTS.num_seqs,
    )
    timed = time_steps(
        PagedExecutor(model, 1 + POOL_TOKENS // model.block_size),
        design(plan.files.max_model_len),
        block_size=model.block_size,
        budget_s=min(plan.budget_s * SHARE_OF_STEPS, plan.budget_s - LEAST_SERVED_S),
        seed=plan.seed,
        on_round=lambda number, steps, gone_s: say(f"round {number}: {steps} steps in {gone_s:.0f} s"),
    )
    return timed, machine


def _serve_and_compare(plan: Plan, bare: FittedCost, timed: Sequence[Timed], say: Say) -> Calibrated:
    overrides: Overrides = {"kv_cache_dtype": plan.kv_cache_dtype}
    with EmbeddedServer(plan.model, overrides) as server:

        def send(arrivals: Sequence[Arrival]) -> Results:
            return asyncio.run(run_timetable(Target(server.url, plan.files.name), arrivals))

        send(crowd(max(CROWDS), plan.seed + 1))  # what a server does for the first time takes longer
        front_end = front_end_of(send(apart(2, plan.seed + 1_000)))
        steps: list[tuple[StepShape, float]] = []
        quiet: list[tuple[StepShape, float]] = []
        for again, count in product((1, 2), CROWDS):
            neighbours = Neighbours([server.session])
            steps.append(step_ns_of(send(crowd(count, plan.seed + 10_000 * again + 100 * count))))
            if not neighbours.disturb():
                quiet.append(steps[-1])
    added = added_by_serving(bare, quiet or steps)
    say(f"serving adds {added.step_ns / 1e6:.2f} ms a step and {added.seq_ns / 1e6:.3f} ms a token sent")
    return Calibrated(served(bare, added, front_end), added, _by_cell(bare, timed))


def _by_cell(cost: FittedCost, timed: Sequence[Timed]) -> tuple[Fit, ...]:
    cells = defaultdict[Cell, list[Timed]](list)
    for each in timed:
        cells[each.cell].append(each)
    return tuple(_middle(cost, cell, all_of) for cell, all_of in cells.items())


def _middle(cost: FittedCost, cell: Cell, steps: Sequence[Timed]) -> Fit:
    fits = [Fit(cell, each.ns, cost.step_ns(each.shape)) for each in steps]
    return sorted(fits, key=lambda fit: fit.error)[len(fits) // 2]


def _provenance(plan: Plan) -> dict[str, str]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    kept_as = KvCacheDtype.F32 if plan.kv_cache_dtype == KvCacheDtype.AUTO else plan.kv_cache_dtype
    return {
        "by": "headrace calibrate --embedded",
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": plan.files.name,
        "cpu": cpu_name(),
        "threads": str(cores),
        "precision": f"f32 arithmetic, {kept_as} KV cache",
        "headrace": __version__,
        "openvino": version("openvino"),
        "python": platform.python_version(),
        "seed": str(plan.seed),
    }


def cpu_name() -> str:
    """As the system calls it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
