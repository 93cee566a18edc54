"""`headrace doctor --cost …`: the twin of what was looked at, and the doctor's advice tried in it.

Evidence or a record -> requests + settings -> simulate -> Twin, bill      (held against what was measured)
findings -> levers -> simulate each -> Trial -> the diagnosis with figures
"""

from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from headrace.capacity.roofline import Multipliers, Roofline
from headrace.cli.costs import LoadedCost
from headrace.cli.twin import TwinOptions, front_end_of, options_of, twin_of
from headrace.core.bill import CAUSES
from headrace.core.errors import BadInput
from headrace.core.measurement import ALL, Measurement
from headrace.core.settings import Settings
from headrace.diagnose.doctor import Diagnosis
from headrace.diagnose.evidence import Evidence
from headrace.diagnose.observed import FEWEST, Lengths, Traffic, settings_of, traffic_of
from headrace.diagnose.tested import Lever, Run, Trial, Twin, levers_by_place, with_trials
from headrace.executor.cost import FittedCost
from headrace.measure.summary import summarise
from headrace.sim.measurement import About, measurement_of
from headrace.sim.overload import Verdict, judge_load
from headrace.sim.run import Fleet, simulate
from headrace.workload.readers import read_trace
from headrace.workload.trace import TraceRequest

REQUESTS = 1000
"""At most so many are drawn where only histograms are known."""
FARTHEST = 5.0
"""Times by which a cost is stretched to the measured time between tokens; beyond, it is another machine's."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the twin is of, and held against: means as they were measured."""

    requests: tuple[TraceRequest, ...]
    ttft_s: float | None
    itl_s: float | None
    until_s: float = float("inf")
    """How long somebody looked: what got its first token later is not in the means."""


def seen_of(e: Evidence, record: tuple[Path, Measurement] | None) -> Seen:
    """A record's own requests, or ones drawn from a server's histograms. Raises `BadInput` where there is
    neither.
    """
    if record is not None:
        path, measurement = record
        of_all = summarise(measurement)[ALL]
        trace = read_trace(path)
        return Seen(
            tuple(trace.requests),
            of_all.ttft_s.mean if of_all.ttft_s else None,
            of_all.itl_s.mean if of_all.itl_s else None,
        )
    traffic = traffic_of(e)
    if traffic is None:
        raise BadInput(
            f"too little traffic is known: {FEWEST} requests must have ended between two looks at /metrics, "
            f"or there must be a record",
            "headrace doctor URL --for 2m, --prometheus URL, or a record of headrace bench",
        )
    until_s = min(traffic.window_s, REQUESTS / max(traffic.rate_per_s, 1e-6))
    return Seen(_drawn(traffic, until_s), traffic.ttft_s, traffic.itl_s, until_s)


def tested_in_twin(diagnosis: Diagnosis, seen: Seen, cost: LoadedCost) -> tuple[Diagnosis, Twin]:
    """Raises `BadInput` for settings that do not fit the cost's machine."""
    options = options_of(settings_of(diagnosis.evidence))
    run, measurement = _simulated(seen, cost, options)
    times = seen.itl_s / run.itl_mean_s if seen.itl_s and run.itl_mean_s else 1.0
    if times != 1.0 and 1 / FARTHEST < times < FARTHEST:
        cost = _stretched(cost, times)
        run, measurement = _simulated(seen, cost, options)
    twin = Twin(run, _bill(measurement), seen.ttft_s, _mean_ttft_s(measurement, seen.until_s), times)
    if not twin.is_trusted:
        return diagnosis, twin
    effective = _effective(twin_of(cost, options, seen.requests).settings)
    levers = levers_by_place(diagnosis.findings, effective, twin.bill)
    tried = {
        lever.words: _tried(lever, seen, cost, options) for lever in chain.from_iterable(levers.values())
    }
    trials = {place: [tried[lever.words] for lever in some] for place, some in levers.items()}
    return with_trials(diagnosis, twin, trials), twin


def _tried(lever: Lever, seen: Seen, cost: LoadedCost, options: TwinOptions) -> Trial:
    changed: Any = {**options, **lever.change}
    try:
        return Trial(lever, _simulated(seen, cost, changed)[0])
    except BadInput:
        return Trial(lever, None)


def _simulated(seen: Seen, cost: LoadedCost, options: TwinOptions) -> tuple[Run, Measurement]:
    twin = twin_of(cost, options, seen.requests)
    simulated = simulate(
        seen.requests, twin.settings, twin.cost, fleet=Fleet(front_end=front_end_of(twin.cost))
    )
    measurement = measurement_of(simulated, About("twin", "", {}, "", {}))
    if not measurement.timelines:
        raise BadInput("not one request fits these settings in the twin", "is it the cost of this server?")
    of_all = summarise(measurement)[ALL]
    overloaded = judge_load(measurement.timelines).verdict is Verdict.OVERLOADED
    run = Run(
        0.0 if of_all.ttft_s is None else of_all.ttft_s.p95,
        0.0 if of_all.itl_s is None else of_all.itl_s.mean,
        of_all.output_tokens_per_s,
        simulated.preemptions,
        overloaded,
    )
    return run, measurement


def _mean_ttft_s(measurement: Measurement, until_s: float) -> float | None:
    """As a server counts it, of what got its first token by then: in a growing queue later ones wait more."""
    waits = [line.ttft_s for line in measurement.timelines if line.token_at[0] <= until_s]
    return float(np.mean(waits)) if waits else None


def _bill(measurement: Measurement) -> dict[str, float]:
    """Shares of all time to first tokens, by cause."""
    bills = [line.bill_s for line in measurement.timelines if line.bill_s is not None]
    sums = {cause.value: sum(bill.get(cause, 0.0) for bill in bills) for cause in CAUSES}
    whole = sum(sums.values())
    return {name: part / whole for name, part in sums.items()} if whole > 0 else {}


def _stretched(cost: LoadedCost, times: float) -> LoadedCost:
    """A machine that takes so many times as long for everything."""
    if isinstance(cost, FittedCost):
        return replace(cost, ns={name: ns * times for name, ns in cost.ns.items()})
    found = {name: getattr(cost.multipliers, name) * times for name in Multipliers.names()}
    return Roofline(cost.deployment, Multipliers(**found), cost.residual, cost.provenance)


def _effective(settings: Settings) -> dict[str, int | bool | str]:
    """The budgets that levers start from, defaults filled in."""
    return {
        "max_num_seqs": settings.max_num_seqs,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "long_prefill_token_threshold": settings.long_prefill_token_threshold,
        "num_gpu_blocks_override": settings.num_gpu_blocks,
    }


def _drawn(traffic: Traffic, until_s: float) -> tuple[TraceRequest, ...]:
    """The backlog at once, then what comes until then at the observed rate, lengths evenly from both
    histograms. The same evidence gives the same requests.
    """
    chance = np.random.RandomState(0)
    arriving = max(1, round(traffic.rate_per_s * until_s))
    count = arriving + min(traffic.waiting, REQUESTS)
    gaps = chance.exponential(1 / max(traffic.rate_per_s, 1e-6), arriving)
    due = [0.0] * (count - arriving) + np.cumsum(gaps).tolist()
    prompts, answers = (_evenly(lengths, count, chance) for lengths in (traffic.prompts, traffic.answers))
    return tuple(
        TraceRequest(at, prompt, answer) for at, prompt, answer in zip(due, prompts, answers, strict=True)
    )


def _evenly(lengths: Lengths, count: int, chance: np.random.RandomState) -> list[int]:
    """`count` quantiles in random order."""
    found = [max(1, round(lengths.quantile((i + 0.5) / count))) for i in range(count)]
    chance.shuffle(found)
    return found
