"""Other ways to tune the same server, each given every advantage that its users could give it.

    Server (runs counted) -> rival -> the settings that it would choose

A trial is one run of one setting at one load, for all alike. Except for the full grid, which goes its way
in the manner of vLLM's `auto_tune`, all judge a new setting at one rung above what the best so far has
met: one run for a setting that is no better. Where the goal is a latency, one run is one setting.

    full grid    max_num_seqs times max_num_batched_tokens, each first far above what it can carry, then at
                 less and less load until the objectives are met
    by hand      sequences as they are; tokens up and down to the knee; then sequences, then the cap
    random       settings drawn from the same grid
    tpe          Optuna's, told how many rungs each run reached or missed by
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from math import inf
from typing import Any

import numpy as np

from bench.tune.truth import Server, Spent, rungs_short
from headrace.core.goal import Aim
from headrace.core.grade import Grade
from headrace.core.ports import Overrides
from headrace.tune.space import CAP, SEQS, TOKENS, Lever, Space
from headrace.tune.twin import load_of

DOWN = 4
"""Rungs of the full grid's steps down: a fifth less load each, then in between."""
FAR_ABOVE = 24
"""Rungs above what the start carries, where the full grid begins with each setting: three times."""
LOWEST = -60


@dataclass(slots=True)
class Climb:
    """Settings tried one after the other, each where it would beat the best so far."""

    server: Server
    best: Overrides = field(default_factory=dict[str, int | float | bool | str])
    height: float = -inf
    history: list[tuple[int, Overrides]] = field(default_factory=list[tuple[int, Overrides]])
    """After how many runs which setting was the best."""

    @property
    def is_capacity(self) -> bool:
        return self.server.truth.case.goal.aim is not Aim.LATENCY

    def begin(self) -> None:
        """With the defaults: at the workload's own load, then up, or down until they meet."""
        self.height = self._own_height({}) if self.is_capacity else self.try_one({})
        self._note({})

    def try_one(self, overrides: Overrides) -> float:
        """Higher is better, and what a sampler is told: rungs reached, or missed by so many."""
        if not self.is_capacity:
            return self._try_latency(overrides)
        rung = int(self.height) + 1
        outcome = self.server.run(overrides, load_of(rung))
        if not _meets(outcome):
            return rung - rungs_short(outcome)
        stride = 1
        while _meets(self.server.run(overrides, load_of(rung + stride))):
            rung, stride = rung + stride, 2 * stride
        self.height = rung
        self._note(overrides)
        return rung

    def keep(self, overrides: Overrides, rung: float) -> None:
        if rung > self.height:
            self.height = rung
            self._note(overrides)

    def _try_latency(self, overrides: Overrides) -> float:
        outcome = self.server.run(overrides, 1.0)
        if isinstance(outcome, Grade) and outcome.failed:
            return -100.0
        height = -rungs_short(outcome)
        self.keep(overrides, height)
        return height

    def _own_height(self, overrides: Overrides) -> float:
        rung, stride = 0, 1
        if _meets(self.server.run(overrides, load_of(0))):
            while _meets(self.server.run(overrides, load_of(rung + stride))):
                rung, stride = rung + stride, 2 * stride
            return rung
        while rung > LOWEST:
            rung, stride = rung - stride, 2 * stride
            if _meets(self.server.run(overrides, load_of(rung))):
                return rung
        return LOWEST

    def _note(self, overrides: Overrides) -> None:
        self.best = dict(overrides)
        self.history.append((self.server.runs, self.best))


Rival = Callable[[Climb, int], None]


def full_grid(climb: Climb, seed: int) -> None:
    del seed
    space = climb.server.truth.case.space
    own = int(climb.height) if climb.is_capacity else 0
    for overrides in space.grid([TOKENS, SEQS], most=10**6):
        if not climb.is_capacity:
            climb.try_one(overrides)
            continue
        rung = own + FAR_ABOVE
        while rung > LOWEST and not _meets(climb.server.run(overrides, load_of(rung))):
            rung -= DOWN
        climb.keep(overrides, rung)


def by_hand(climb: Climb, seed: int) -> None:
    del seed
    space = climb.server.truth.case.space
    for name in (TOKENS, SEQS, CAP):
        lever = next((each for each in space.levers if each.name == name), None)
        if lever is not None:
            _along(climb, space, lever)


def _along(climb: Climb, space: Space, lever: Lever) -> None:
    """Up from where it is while that helps, else down."""
    values = [each.value for each in lever.choices]
    at = values.index(climb.best.get(lever.name, lever.start))
    for direction in (1, -1):
        moved = False
        for value in _walk(values, at, direction):
            overrides = space.canonical({**climb.best, lever.name: value})
            before = climb.height
            if not space.is_safe(overrides) or (climb.try_one(overrides) <= before):
                break
            moved = True
        if moved:
            return


def _walk(values: Sequence[Any], at: int, direction: int) -> Iterator[Any]:
    at += direction
    while 0 <= at < len(values):
        yield values[at]
        at += direction


def random_search(climb: Climb, seed: int) -> None:
    settings = climb.server.truth.grid()
    for place in np.random.default_rng(seed).permutation(len(settings)):
        climb.try_one(settings[int(place)])


def tpe(climb: Climb, seed: int) -> None:
    """Raises `ModuleNotFoundError` where Optuna is not installed."""
    optuna: Any = import_module("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space = climb.server.truth.case.space
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    values = {lever.name: [choice.value for choice in lever.choices] for lever in space.levers}
    start = {lever.name: values[lever.name].index(lever.start) for lever in space.levers}
    kinds = {name: optuna.distributions.IntDistribution(0, len(each) - 1) for name, each in values.items()}
    study.add_trial(optuna.trial.create_trial(params=start, distributions=kinds, value=float(climb.height)))
    while True:
        trial = study.ask(kinds)
        overrides = space.canonical({name: values[name][place] for name, place in trial.params.items()})
        if not space.is_safe(overrides):
            study.tell(trial, climb.height - 100.0)  # known without a run
            continue
        study.tell(trial, climb.try_one(overrides))


RIVALS: dict[str, Rival] = {"full grid": full_grid, "by hand": by_hand, "random": random_search, "tpe": tpe}
SEEDED = ("random", "tpe")


def play(rival: Rival, server: Server, seed: int) -> Climb:
    """Until it ends, or the server's runs are spent."""
    climb = Climb(server)
    try:
        climb.begin()
        rival(climb, seed)
    except Spent:
        pass
    return climb


def _meets(outcome: object) -> bool:
    return isinstance(outcome, Grade) and outcome.meets
