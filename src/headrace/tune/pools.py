"""Would short and long requests do better on servers of their own? Told by the twin, in servers for a load.

    lengths --length_bound--> tokens    Problem of all + Problem of each pool + Pace --pools_of--> Pools

A server that sees one kind of request can be set for it, and nobody waits behind another kind. But a pool
has its own peaks and its own spare room. What a load takes is the sum over pools of load / capacity, each
pool at the best settings that the twin finds for it, beside one pool for all at theirs.
"""

from collections.abc import Mapping, Sequence
from math import ceil

import numpy as np

from headrace.core.conclusion import Pool, Pools
from headrace.core.cost import Pace
from headrace.tune.explore import explore
from headrace.tune.problem import Problem

WORTH = 0.95
"""Share of the servers that pools may take at most to be worth two of everything."""
LARGEST_FLEET = 64
"""Servers together, up to which it is looked for the first fleet that pools make smaller."""


def length_bound(prompt_tokens: Sequence[int]) -> int | None:
    """The longest prompt that is short, where short and long differ most; None where all are alike.

    Otsu's threshold (1979) on logarithms: of all bounds the one with the largest variance between the two.
    """
    logs = np.sort(np.log(np.maximum(1, np.asarray(prompt_tokens))))
    below = np.flatnonzero(np.diff(logs) > 0) + 1
    if not below.size:
        return None
    sums, whole = np.cumsum(logs), float(logs.sum())
    means_apart = (whole - sums[below - 1]) / (len(logs) - below) - sums[below - 1] / below
    between = below * (len(logs) - below) * means_apart**2
    return round(float(np.exp(logs[below[int(between.argmax())] - 1])))


def pools_of(everybody: Problem, pools: Mapping[str, Problem], pace: Pace) -> Pools | None:
    """`pools`: the same workload's requests of each kind alone, by a name. None where the goal has no
    capacity, or nothing meets it.
    """
    together = _pool("all", everybody, pace)
    if together is None:
        return None
    apart = {name: _pool(name, problem, pace) for name, problem in pools.items()}
    lost = [name for name, pool in apart.items() if pool is None]
    if lost:
        return Pools(together, (), None, None, f"{lost[0]} alone meet their objectives at no load")
    found = tuple(pool for pool in apart.values() if pool is not None)
    share = sum(together.capacity / pool.capacity for pool in found)
    if share > WORTH:
        return Pools(together, found, share, None, f"{share:.2f} times the servers for the same load")
    smaller = (
        fleet for fleet in range(1, LARGEST_FLEET + 1) if _whole(found, fleet * together.capacity) < fleet
    )
    first = next(smaller, None)
    return Pools(together, found, share, first, f"{share:.2f} of the servers for the same load")


def _whole(pools: Sequence[Pool], load: float) -> int:
    """Servers for a load, since there are no halves of one."""
    return sum(ceil(load / pool.capacity - 1e-9) for pool in pools)


def _pool(name: str, problem: Problem, pace: Pace) -> Pool | None:
    best = explore(problem, pace).best if problem.goal.seeks_capacity else None
    return None if best is None else Pool(name, dict(best.overrides), best.load)
