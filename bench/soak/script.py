"""Which client comes when, and when the engine is killed: the whole of a round, from its seed.

    make_script(facts, chance, length_s, places) -> Script

Between two rounds the server is left alone until it is idle, and counted.
"""

import random
from dataclasses import dataclass, replace

from bench.soak.requests import MIX, Facts, Visit, known, sampled, stalled_body

VISITS_PER_S = 4.0
"""About two in three run the model; two cores can answer as many, so that a soak is not one long refusal."""
BURST = 10
"""A burst is so many times what the server lets in."""
STALL_S = 60.0
"""So long the server waits for the rest of a body."""
KILL_AT_S = (4.0, 10.0)
"""In each round; so the next is further away than a death that counts as one of a row (`net/restarts.py`)."""
BURST_AT = (0.6, 0.8)
"""Of the round: well after the kill, or one would hide what the other does."""


@dataclass(frozen=True, slots=True)
class Due:
    """A visit, and when it begins, in seconds from the start of the round."""

    at_s: float
    visit: Visit


@dataclass(frozen=True, slots=True)
class Script:
    visits: tuple[Due, ...]
    kills_at_s: tuple[float, ...]


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
    burst_at_s = chance.uniform(*BURST_AT) * length_s
    for _ in range(BURST * places):
        visit = chance.choice([known, sampled])(facts, chance)
        visits.append(Due(burst_at_s + chance.uniform(0.0, 0.5), replace(visit, name="good, in a burst")))
    kills = (chance.uniform(*KILL_AT_S),)
    return Script(tuple(sorted(visits, key=lambda due: due.at_s)), kills)
