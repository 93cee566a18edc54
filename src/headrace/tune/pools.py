"""Would short and long requests do better on servers of their own? Told by the twin, in servers for a load.

    Problem of everybody + Problem of each pool + Pace  --pools_of-->  PoolsFound

A server that sees one kind of request can be set for it, and nobody waits behind another kind. But a pool
has its own peaks and its own spare room. What a load takes is the sum over pools of load / capacity, each
pool at the best settings that the twin finds for it, beside one pool for all at theirs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from headrace.core.cost import Pace
from headrace.core.ports import Overrides
from headrace.tune.explore import explore
from headrace.tune.problem import Problem

WORTH = 0.95
"""Share of the servers that pools may take at most to be worth two of everything."""


@dataclass(frozen=True, slots=True)
class Pool:
    """One kind of request on servers of its own."""

    name: str
    overrides: Overrides
    servers: float
    """For the load, not rounded."""


@dataclass(frozen=True, slots=True)
class PoolsFound:
    together: Pool
    apart: tuple[Pool, ...]
    """Empty where a pool cannot meet its objectives at any load."""
    is_worth_it: bool
    why: str


def pools_of(everybody: Problem, pools: Mapping[str, Problem], pace: Pace, load: float) -> PoolsFound | None:
    """`pools`: the same workload's requests of each kind alone, by a name. `load`: what all servers carry
    together, in multiples of the workload's rate. None where the goal has no capacity, or nothing meets it.
    """
    together = _pool("all", everybody, pace, load)
    if together is None:
        return None
    apart = [_pool(name, problem, pace, load) for name, problem in pools.items()]
    found = tuple(pool for pool in apart if pool is not None)
    if len(found) < len(apart):
        lost = next(name for name, pool in zip(pools, apart, strict=True) if pool is None)
        return PoolsFound(
            together, (), is_worth_it=False, why=f"{lost} alone meets its objectives at no load"
        )
    servers = sum(pool.servers for pool in found)
    whole = sum(ceil(pool.servers - 1e-9) for pool in found)
    before = ceil(together.servers - 1e-9)
    is_worth_it = servers <= WORTH * together.servers and whole <= before
    why = (
        f"{servers:.2f} servers apart ({whole} whole ones), {together.servers:.2f} together ({before}), "
        f"at {load:g} times the load"
    )
    return PoolsFound(together, found, is_worth_it, why)


def _pool(name: str, problem: Problem, pace: Pace, load: float) -> Pool | None:
    best = explore(problem, pace).best if problem.goal.seeks_capacity else None
    return None if best is None else Pool(name, dict(best.overrides), load / best.load)
