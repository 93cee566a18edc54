"""What a class of requests was promised: goals for its first token and for the gaps between tokens.

    "chat: ttft 500ms, itl 60ms; docs: ttft 2s + 3ms/token; ttft 1s"  --parse_goals-->  Goals

A goal without a class is everybody else's. What a goal leaves out it takes from that one, and that one
from `USUAL`.
"""

import re
from dataclasses import dataclass, replace

from headrace.core.errors import BadInput
from headrace.core.goal_text import DURATION, GoalParts, duration_ns, goal_parts

_PROMISE = re.compile(rf"(ttft|itl)\s+{DURATION}(?:\s*\+\s*{DURATION}\s*/\s*token)?")
_EXAMPLE = 'write it as in "chat: ttft 500ms, itl 60ms" or "docs: ttft 2s + 3ms/token"'


@dataclass(frozen=True, slots=True)
class Goal:
    """What one class was promised."""

    ttft_ns: int
    ttft_ns_per_token: int
    """Added for each token of the prompt, so that one goal suits short and long."""
    itl_ns: int

    def first_token_ns(self, prompt_tokens: int) -> int:
        """From its arrival."""
        return self.ttft_ns + self.ttft_ns_per_token * prompt_tokens


USUAL = Goal(ttft_ns=500_000_000, ttft_ns_per_token=2_000_000, itl_ns=200_000_000)
"""Where nothing else is said: half a second, and 2 ms a token of the prompt; five tokens a second,
which is about how fast people read."""


@dataclass(frozen=True, slots=True)
class Goals:
    """The goal of every class."""

    default: Goal
    by_class: dict[str, Goal]

    def of(self, request_class: str) -> Goal:
        return self.by_class.get(request_class, self.default)


def parse_goals(text: str) -> Goals:
    """Raises `BadInput` for what is no goal, or for two goals of one class."""
    promises: dict[str, dict[str, int]] = {}
    for goal in goal_parts(text, _EXAMPLE):
        name = goal.request_class
        if name in promises:
            raise BadInput(f"slo {goal.said!r}: {name or 'everybody else'} has a goal already", _EXAMPLE)
        promises[name] = _promises(goal)
    default = replace(USUAL, **promises.pop("", {}))
    return Goals(default, {name: replace(default, **each) for name, each in promises.items()})


def _promises(goal: GoalParts) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in goal.parts:
        match = _PROMISE.fullmatch(part)
        if match is None or f"{match[1]}_ns" in found or (match[1] == "itl" and match[4]):
            raise BadInput(f"slo {goal.said!r}: {part!r} is no goal, or said twice", _EXAMPLE)
        found[f"{match[1]}_ns"] = duration_ns(match[2], match[3])
        if match[1] == "ttft":
            found["ttft_ns_per_token"] = duration_ns(match[4], match[5]) if match[4] else 0
    if 0 in (found.get("ttft_ns", 1) + found.get("ttft_ns_per_token", 0), found.get("itl_ns", 1)):
        raise BadInput(f"slo {goal.said!r}: nothing takes no time", _EXAMPLE)
    return found
