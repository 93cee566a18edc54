"""Which client comes when, and when the engine is killed: the whole of a round, from its seed.

    make_script(facts, chance, length_s, places) -> Script

Between two rounds the server is left alone until it is idle, and counted.
"""

import random
from dataclasses import dataclass

from bench.soak.requests import MIX, Facts, Visit, known, sampled, stalled_body

VISITS_PER_S = 6.0
BURST = 10
"""A burst is so many times what the server lets in."""
STALL_S = 60.0
"""So long the server waits for the rest of a body."""
FIRST_KILL_S = (4.0, 12.0)
BETWEEN_KILLS_S = (15.0, 30.0)
"""Longer than an engine must live for its death not to count as one of a row (`net/restarts.py`)."""


@dataclass(frozen=True, slots=True)
class Due:
    """A visit, and when it begins, in seconds from the start of the round."""

    at_s: float
    visit: Visit


@dataclass(frozen=True, slots=True)
class Script:
    visits: tuple[Due, ...]
    kills_at_s: tuple[float, ...]
    bursts: int


def make_script(facts: Facts, chance: random.Random, length_s: float, places: int, *, stalls: bool) -> Script:
    """A round of `length_s` seconds against a server that lets `places` requests in.

    With `stalls`, some clients stop in the middle of a body; the round lasts STALL_S longer for them.
    """
    kinds = [kind for kind in MIX if stalls or kind is not stalled_body]
    weights = [MIX[kind] for kind in kinds]
    visits: list[Due] = []
    at_s = 0.0
    while (at_s := at_s + chance.expovariate(VISITS_PER_S)) < length_s:
        kind = chance.choices(kinds, weights)[0]
        visits.append(Due(at_s, kind(facts, chance)))
    burst_at_s = chance.uniform(0.5, 0.9) * length_s
    visits += [
        Due(burst_at_s + chance.uniform(0.0, 0.5), chance.choice([known, sampled])(facts, chance))
        for _ in range(BURST * places)
    ]
    kills: list[float] = []
    kill_at_s = chance.uniform(*FIRST_KILL_S)
    while kill_at_s < length_s:
        kills.append(kill_at_s)
        kill_at_s += chance.uniform(*BETWEEN_KILLS_S)
    return Script(tuple(sorted(visits, key=lambda due: due.at_s)), tuple(kills), bursts=1)
