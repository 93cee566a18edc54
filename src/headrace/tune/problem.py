"""What a search is asked: the goal, the settings that may be tried, the twin, and levers for the end."""

from dataclasses import dataclass, field, replace

from headrace.core.goal import Aim, Goal
from headrace.core.ports import Overrides
from headrace.tune.space import Space
from headrace.tune.twin import HIGHEST_RUNG, Remembered


@dataclass(frozen=True, slots=True)
class Extra:
    """A further lever, to be switched alone on top of what was proven."""

    name: str
    overrides: Overrides
    reason: str
    """Why it is worth a run here."""


@dataclass(frozen=True, slots=True)
class Problem:
    """The same problem and the same runs give the same answer."""

    goal: Goal
    space: Space
    twin: Remembered
    extras: tuple[Extra, ...] = field(default=())
    highest_rung: int = HIGHEST_RUNG
    """Of the loads that may be tried: at more the workload would end before a queue could miss a limit."""

    def at_own_load(self) -> "Problem":
        """The same, as a question of latency: for objectives that nothing meets at any load."""
        return replace(self, goal=replace(self.goal, aim=Aim.LATENCY))
