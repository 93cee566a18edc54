"""Twins as servers: what a search asks is simulated, with the costs of one machine or of a wrong idea of it.

Twin(requests, cost, start, goal) -> predict([Point, ...]) -> [Grade | NoResult, ...]
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from headrace.capacity.roofline import Roofline
from headrace.cli.costs import LoadedCost
from headrace.cli.twin import options_of, twin_of
from headrace.core.cost import PacedCost
from headrace.core.errors import BadInput
from headrace.core.goal import Goal
from headrace.core.grade import Grade
from headrace.core.trial import NoResult
from headrace.executor.cost import FittedCost
from headrace.sim.measurement import About, measurement_of
from headrace.sim.overload import judge_load
from headrace.sim.run import simulate
from headrace.tune.grade import Seen, grade
from headrace.tune.twin import Point
from headrace.workload.reshape import scaled
from headrace.workload.trace import TraceRequest


@dataclass(frozen=True, slots=True)
class Twin:
    """One server that exists as a simulation only."""

    requests: Sequence[TraceRequest]
    cost: LoadedCost
    start: Mapping[str, int | float | bool | str]
    goal: Goal
    _scaled: dict[float, tuple[TraceRequest, ...]] = field(
        default_factory=dict[float, tuple[TraceRequest, ...]], repr=False
    )

    def __call__(self, points: Sequence[Point]) -> list[Grade | NoResult]:
        return [self._one(point) for point in points]

    def _one(self, point: Point) -> Grade | NoResult:
        requests = self._at(point.load)
        options = options_of({**self.start, **point.overrides})
        try:
            twin = twin_of(self.cost, options, requests)
        except BadInput as error:
            return NoResult(str(error))
        simulated = simulate(requests, twin.settings, PacedCost(twin.cost, point.pace))
        measurement = measurement_of(simulated, About("twin", "", {}, "", {}))
        steady = judge_load(measurement.timelines).is_steady
        return grade(measurement, self.goal, Seen(steady, simulated.preemptions))

    def _at(self, load: float) -> tuple[TraceRequest, ...]:
        if load not in self._scaled:
            self._scaled[load] = scaled(self.requests, load)
        return self._scaled[load]


def miscalibrated(cost: LoadedCost, off: Sequence[float]) -> LoadedCost:
    """The same machine, each kind of work wrong by a factor of its own, in turn."""
    if isinstance(cost, Roofline):
        right = cost.multipliers
        names = type(right).names()
        wrong = {name: getattr(right, name) * factor for name, factor in zip(names, off, strict=False)}
        return Roofline(cost.deployment, replace(right, **wrong), cost.residual, cost.provenance)
    rates = {name: rate * off[at % len(off)] for at, (name, rate) in enumerate(sorted(cost.ns.items()))}
    return FittedCost(rates, cost.residual, cost.provenance, cost.machine, cost.front_end)
