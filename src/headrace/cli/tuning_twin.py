"""The twin of the server that is tuned: many settings at many loads, without it.

    cost model + start + requests --> TwinServer --Point--> (Measurement, Seen) --grade--> Grade

Small batches are simulated here; large ones in other processes, or over a Ray cluster. Where they run
changes nothing in what comes out.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil

from headrace.cli.costs import LoadedCost
from headrace.cli.pool import OnDone, Unjudged, judge_in_processes, judge_over_ray
from headrace.cli.tuning_workload import warm_up_s
from headrace.cli.twin import TwinOptions, front_end_of, options_of, twin_of
from headrace.core.cost import PacedCost
from headrace.core.errors import BadInput, TargetFailed
from headrace.core.goal import Goal
from headrace.core.grade import Grade
from headrace.core.measurement import Measurement
from headrace.core.ports import Overrides
from headrace.core.trial import NoResult
from headrace.core.versions import VLLM_VERSION
from headrace.sim.measurement import About, measurement_of
from headrace.sim.overload import judge_load
from headrace.sim.run import Fleet, simulate
from headrace.tune.grade import Seen, grade
from headrace.tune.twin import Point
from headrace.workload.reshape import scaled
from headrace.workload.trace import TraceRequest

USUAL_START_S = 3.0
"""Of processes, until some were started: they read the package's modules first."""


@dataclass(frozen=True, slots=True)
class TwinServer:
    """Stands for the server under its starting settings. Picklable, with the workload in it."""

    cost: LoadedCost
    start: Overrides
    """Full values of the levers."""
    requests: tuple[TraceRequest, ...]
    says: str = ""
    """What the requests are, for records."""
    num_gpu_blocks: int | None = None
    """As the server tells it, under its starting settings; None: from the cost's machine."""

    def run(self, point: Point) -> tuple[Measurement, Seen]:
        """Raises `BadInput` for settings that vLLM would refuse."""
        requests = scaled(self.requests[: max(1, ceil(point.share * len(self.requests)))], point.load)
        twin = twin_of(self.cost, self._options(point.overrides), requests)
        paced = PacedCost(twin.cost, point.pace)
        simulated = simulate(
            requests, twin.settings, paced, fleet=Fleet(1, front_end=front_end_of(twin.cost))
        )
        about = About("twin", "", self.start | point.overrides, self.says, {"vllm": VLLM_VERSION})
        measurement = replace(
            measurement_of(simulated, about), warm_up_s=warm_up_s(requests[-1].due_at - requests[0].due_at)
        )
        if not measurement.timelines:
            refused = next((life.refused for life in simulated.lives if life.refused), "nothing was due")
            raise TargetFailed(f"not one request was answered: {refused}")
        steady = judge_load(measurement.timelines).is_steady
        return measurement, Seen(steady, simulated.preemptions)

    def _options(self, overrides: Overrides) -> TwinOptions:
        blocks = None if "kv_cache_memory_bytes" in overrides else self.num_gpu_blocks
        return options_of({"num_gpu_blocks_override": blocks} | self.start | overrides)


@dataclass(frozen=True, slots=True)
class Grader:
    """One point, graded. Picklable."""

    twin: TwinServer
    goal: Goal

    def __call__(self, point: Point) -> Grade:
        measurement, seen = self.twin.run(point)
        return grade(measurement, self.goal, seen)


def _nobody(_done: int) -> None:
    """Is told how many are done, and tells nobody."""


@dataclass(slots=True)
class Predictor:
    """A `tune.twin.Predict`: here, in processes, or over Ray."""

    grader: Grader
    ray_address: str | None = None
    workers: int = field(default_factory=lambda: os.cpu_count() or 1)
    on_done: Callable[[int, int], None] | None = None
    """Told how many of a batch are done, and of how many, where they take a while."""
    took_s: float = 0.0
    _one_s: float = 0.0
    """What a simulation takes, as last seen here."""
    _start_s: float = USUAL_START_S
    """What passed before the first result came back from elsewhere, but for a simulation's own time."""

    def __call__(self, points: Sequence[Point]) -> list[Grade | NoResult]:
        began = time.monotonic()
        try:
            found = self._elsewhere(points) if self._is_worth_starting(len(points)) else self._here(points)
        finally:
            self.took_s += time.monotonic() - began
        return [NoResult(each.cause) if isinstance(each, Unjudged) else each for each in found]

    def _is_worth_starting(self, count: int) -> bool:
        """Whether others would be done sooner, the time to start them included."""
        at_once = count if self.ray_address is not None else self.workers
        return self._one_s * count > self._start_s + self._one_s * ceil(count / max(1, at_once))

    def _elsewhere(self, points: Sequence[Point]) -> list[Grade | Unjudged]:
        began, tell = time.monotonic(), self._telling(len(points))

        def on_done(done: int) -> None:
            if done == 1:
                self._start_s = max(1.0, time.monotonic() - began - self._one_s)
            tell(done)

        if self.ray_address is not None:
            return judge_over_ray(self.grader, points, self.ray_address, on_done)
        return judge_in_processes(self.grader, points, self.workers, on_done)

    def _here(self, points: Sequence[Point]) -> list[Grade | Unjudged]:
        found: list[Grade | Unjudged] = []
        began, tell = time.monotonic(), self._telling(len(points))
        for point in points:
            try:
                found.append(self.grader(point))
            except (BadInput, TargetFailed) as error:
                found.append(Unjudged(str(error)))
            tell(len(found))
        self._one_s = (time.monotonic() - began) / max(1, len(points))
        return found

    def _telling(self, of: int) -> OnDone:
        tell = self.on_done
        return _nobody if tell is None else lambda done: tell(done, of)
