"""One case of the benchmark from end to end, in a process of its own.

(workload, target) --one_case--> Row
"""

from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import median

from bench.tune.cases import ASKED, case_of
from bench.tune.ours import Tuned, tune
from bench.tune.rivals import RIVALS, SEEDED, Climb, play
from bench.tune.truth import Server, Truth
from headrace.core.ports import Overrides

OFF = ((1.15, 0.88, 1.2, 0.85), (0.87, 1.14, 0.84, 1.18))
"""Factors on compute, weights, context and overhead, in turn from case to case."""
MOST_RUNS = 16
SEEDS = 3
PATIENCE = 60
"""Trials after which a rival gives up, if it has not ended."""
SLACK = 0.995
"""Of our share: capacities are told to 1 %."""


@dataclass(frozen=True, slots=True)
class Rivalled:
    """Medians, where chance decides."""

    share: float
    """Of the best, with as many trials as ours made."""
    trials: float | None
    """For the share that ours has; None where it does not get there within `PATIENCE`."""
    end_share: float
    """When it ended, or its patience did."""
    end_trials: int


@dataclass(frozen=True, slots=True)
class Row:
    """One case."""

    case: str
    best: Overrides
    best_value: float
    start_share: float
    chosen: Overrides
    verdict: str
    share: float
    trials: int
    simulated: int
    settings: int
    rivals: dict[str, Rivalled]


def one_case(which: tuple[str, str], memory: Path | None = None) -> Row:
    truth = Truth.of(case_of(*which), memory)
    best, best_value = truth.best()
    place = list(ASKED).index(which)
    tuned = tune(truth, OFF[place % len(OFF)], seed=place, most_runs=MOST_RUNS, memory=memory)
    share = truth.value(tuned.chosen) / best_value
    return Row(
        case=truth.case.name,
        best=best,
        best_value=best_value,
        start_share=truth.value({}) / best_value,
        chosen=tuned.chosen,
        verdict=tuned.conclusion.verdict,
        share=share,
        trials=len(tuned.runs),
        simulated=tuned.conclusion.simulated,
        settings=len(truth.grid()),
        rivals={name: rivalled(name, truth, tuned, share * best_value, best_value) for name in RIVALS},
    )


def rivalled(name: str, truth: Truth, tuned: Tuned, our_value: float, best_value: float) -> Rivalled:
    """With the same number of trials, and until the same quality; medians where chance decides."""
    seeds = range(SEEDS if name in SEEDED else 1)
    climbs = [play(RIVALS[name], Server(truth, 1000 + seed, most=PATIENCE), seed) for seed in seeds]
    shares = [value_after(truth, climb, len(tuned.runs)) / best_value for climb in climbs]
    needed = median(trials_until(truth, climb, SLACK * our_value) for climb in climbs)
    ends = median(truth.value(climb.best) for climb in climbs) / best_value
    made = median(climb.server.runs for climb in climbs)
    return Rivalled(median(shares), None if needed == inf else needed, ends, int(made))


def value_after(truth: Truth, climb: Climb, trials: int) -> float:
    """Of what it holds for the best then; the defaults before it has anything."""
    held = [overrides for runs, overrides in climb.history if runs <= trials]
    return truth.value(held[-1] if held else {})


def trials_until(truth: Truth, climb: Climb, value: float) -> float:
    """To hold such a setting for the best, at some time; infinite if never."""
    return next((float(runs) for runs, overrides in climb.history if truth.is_worth(overrides, value)), inf)
