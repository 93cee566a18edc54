"""How goals are written, whoever reads them: classes, then what each was promised.

"chat: ttft 500ms, itl 60ms; ttft 1s"  --goal_parts-->  GoalParts("chat", ["ttft 500ms", "itl 60ms"]), …
"""

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.core.errors import BadInput

DURATION = r"(\d+(?:\.\d+)?)\s*(us|ms|s|m)"
"""As a regular expression; its groups are what `duration_ns` takes."""
_UNITS_NS = {"us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9}


@dataclass(frozen=True, slots=True)
class GoalParts:
    """What one class was promised, as it is written."""

    said: str
    """All of it, for complaints."""
    request_class: str
    """Empty: everybody else."""
    parts: tuple[str, ...]


def goal_parts(text: str, example: str) -> Iterator[GoalParts]:
    """In their order. Raises `BadInput`, with `example` as what to do, for a class without a name."""
    for said in filter(None, (part.strip() for part in text.split(";"))):
        name, colon, rest = said.rpartition(":")
        if colon and not name.strip():
            raise BadInput(f"slo {said!r}: the class has no name", example)
        yield GoalParts(said, name.strip(), tuple(part.strip() for part in rest.split(",")))


def duration_ns(amount: str, unit: str) -> int:
    return round(float(amount) * _UNITS_NS[unit])
