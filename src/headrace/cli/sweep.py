"""`headrace simulate --sweep NAME=V,V ...`: the same workload under every combination, and one table.

NAME=V,V ... --choices_of--> [settings, ...] --SimulationJudge--> [Swept, ...] --> table, JSON
"""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from headrace.cli.costs import LoadedCost
from headrace.cli.pool import Unjudged, judge_in_processes, judge_over_ray, product_of
from headrace.cli.twin import TwinOptions, front_end_of, refuse_what_fits_nowhere, twin_of
from headrace.core.errors import BadInput
from headrace.core.measurement import ALL
from headrace.core.ports import Overrides
from headrace.gateway.router import Router
from headrace.measure.summary import summarise
from headrace.report.sweep import Swept
from headrace.sim.measurement import About, measurement_of
from headrace.sim.overload import Verdict, judge_load
from headrace.sim.run import Fleet, simulate
from headrace.workload.trace import TraceRequest

MOST_SIMULATIONS = 10_000
"""More is a slip: at seconds apiece it would take hours."""


@dataclass(frozen=True, slots=True)
class SimulationJudge:
    """Simulates one choice of settings. Picklable, with the workload in it."""

    requests: Sequence[TraceRequest]
    cost: LoadedCost
    options: TwinOptions
    replicas: int
    make_router: type[Router]

    def __call__(self, overrides: Overrides) -> Swept:
        options: Any = {**self.options, **overrides}
        twin = twin_of(self.cost, options, self.requests)
        fleet = Fleet(self.replicas, self.make_router, front_end_of(twin.cost))
        simulated = simulate(self.requests, twin.settings, twin.cost, fleet=fleet)
        refused = sum(bool(life.refused) for life in simulated.lives)
        refuse_what_fits_nowhere(simulated)
        measurement = measurement_of(simulated, About("twin", "", {}, "", {}))
        load, of_all = judge_load(measurement.timelines), summarise(measurement)[ALL]
        why = f"{load.why}; {refused:,} of {len(simulated.lives):,} refused" if refused else load.why
        ttft_s, itl_s = of_all.ttft_s, of_all.itl_s
        if load.verdict is Verdict.OVERLOADED:
            ttft_s = itl_s = None
        return Swept(
            overrides,
            load.verdict,
            why,
            None if ttft_s is None else ttft_s.p50,
            None if ttft_s is None else ttft_s.p95,
            None if itl_s is None else itl_s.mean,
            of_all.output_tokens_per_s,
            simulated.preemptions,
        )


def choices_of(said: Sequence[str], context: click.Context) -> list[Overrides]:
    """Every combination. Raises `BadInput` for a name that is no setting here, or a value it cannot have."""
    options = {each.name: each for each in context.command.params if each.name in TwinOptions.__annotations__}
    values: list[tuple[str, list[Any]]] = []
    for each in said:
        name, _, listed = each.partition("=")
        name = name.replace("-", "_")
        option = options.get(name)
        if option is None or not listed:
            raise BadInput(
                f"--sweep {each}: write NAME=VALUE,VALUE with a setting's name",
                f"one of {', '.join(sorted(str(known) for known in options))}",
            )
        try:
            each_value = [option.type.convert(value, option, context) for value in listed.split(",")]
        except click.BadParameter as error:
            raise BadInput(f"--sweep {each}: {error.message}") from error
        values.append((name, each_value))
    twice = [name for name, count in Counter(name for name, _ in values).items() if count > 1]
    if twice:
        raise BadInput(f"--sweep names {twice[0]} twice", f"--sweep {twice[0]}=V,V with all its values")
    choices = product_of(values)
    if len(choices) > MOST_SIMULATIONS:
        raise BadInput(f"{len(choices):,} simulations are asked for; at most {MOST_SIMULATIONS:,}")
    return choices


def sweep(
    judge: SimulationJudge, choices: Sequence[Overrides], workers: int | None, ray_address: str | None
) -> list[Swept]:
    """In the order of `choices`, however many run at once. Says on stderr how far it is."""

    def on_done(done: int) -> None:
        click.echo(f"{done} of {len(choices)} simulations done", err=True)

    if ray_address is not None:
        results = judge_over_ray(judge, choices, ray_address, on_done)
    else:
        workers = (os.cpu_count() or 1) if workers is None else workers
        results = judge_in_processes(judge, choices, workers, on_done)
    return [
        Swept(choice, None, result.cause) if isinstance(result, Unjudged) else result
        for choice, result in zip(choices, results, strict=True)
    ]
