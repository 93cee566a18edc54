"""What a class of requests was promised: goals for its first token and for the gaps between tokens.

    "chat: ttft 500ms, itl 60ms; docs: ttft 2s + 3ms/token; ttft 1s"  --parse_goals-->  Goals

A goal without a class is everybody else's. What a goal leaves out it takes from that one, and that one
from `USUAL`.
"""

import re
from dataclasses import dataclass, replace

from headrace.core.errors import BadInput

_UNITS_NS = {"us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9}
_DURATION = r"(\d+(?:\.\d+)?)\s*(us|ms|s|m)"
_PROMISE = re.compile(rf"(ttft|itl)\s+{_DURATION}(?:\s*\+\s*{_DURATION}\s*/\s*token)?")
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
    for said in filter(None, (part.strip() for part in text.split(";"))):
        name, colon, rest = said.rpartition(":")
        name = name.strip()
        if colon and not name:
            raise BadInput(f"slo {said!r}: the class has no name", _EXAMPLE)
        if name in promises:
            raise BadInput(f"slo {said!r}: {name or 'everybody else'} has a goal already", _EXAMPLE)
        promises[name] = _promises(said, rest)
    default = replace(USUAL, **promises.pop("", {}))
    return Goals(default, {name: replace(default, **each) for name, each in promises.items()})


def _promises(said: str, text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in text.split(","):
        match = _PROMISE.fullmatch(part.strip())
        if match is None or f"{match[1]}_ns" in found or (match[1] == "itl" and match[4]):
            raise BadInput(f"slo {said!r}: {part.strip()!r} is no goal, or said twice", _EXAMPLE)
        found[f"{match[1]}_ns"] = _nanoseconds(match[2], match[3])
        if match[1] == "ttft":
            found["ttft_ns_per_token"] = _nanoseconds(match[4], match[5]) if match[4] else 0
    if 0 in (found.get("ttft_ns", 1) + found.get("ttft_ns_per_token", 0), found.get("itl_ns", 1)):
        raise BadInput(f"slo {said!r}: nothing takes no time", _EXAMPLE)
    return found


def _nanoseconds(amount: str, unit: str) -> int:
    return round(float(amount) * _UNITS_NS[unit])
