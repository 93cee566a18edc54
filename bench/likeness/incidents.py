"""Solved incidents, with the traits that the doctor sees in them.

    fresh.jsonl       incidents that others solved and no rule was fitted to, with the address of each thread
    read.jsonl        the shared cases, and fresh ones that rules were mended for since; with
                      tests/diagnose/incidents.jsonl: what rules were fitted to
    textbook.jsonl    invented ones: mechanisms as engineers know them, told in many ways

What a rule says of an incident that it was fitted to tells nothing of how far to trust it; there its findings
are no traits.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from headrace.diagnose.doctor import by_rules
from headrace.diagnose.evidence import Evidence
from headrace.diagnose.finding import Finding
from headrace.diagnose.readers.incident import read_incident
from headrace.diagnose.traits import traits, traits_of_findings

_HERE = Path(__file__).parent


class Origin(Enum):
    """`weight`: of one incident in the fit. An invented one is no draw from what happens."""

    FRESH = (_HERE / "fresh.jsonl", 1.0)
    READ = (_HERE / "read.jsonl", 1.0)
    TESTS = (_HERE.parents[1] / "tests" / "diagnose" / "incidents.jsonl", 1.0)
    TEXTBOOK = (_HERE / "textbook.jsonl", 0.5)

    @property
    def path(self) -> Path:
        return self.value[0]

    @property
    def weight(self) -> float:
        return self.value[1]

    @property
    def rules_saw_it(self) -> bool:
        return self in (Origin.READ, Origin.TESTS)


@dataclass(frozen=True, slots=True)
class Solved:
    """The first of `labels` is the cause; `found` is what rules say of it."""

    origin: Origin
    labels: tuple[str, ...]
    never: frozenset[str]
    evidence: Evidence
    found: tuple[Finding, ...]
    traits: frozenset[str]


def solved() -> list[Solved]:
    """All of them, in the files' order."""
    return [_solved(origin, row) for origin in Origin for row in _rows(origin.path)]


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        yield from (json.loads(line) for line in lines)


_ANSWERS = frozenset({"source", "name", "label", "labels", "never"})


def _solved(origin: Origin, row: dict[str, Any]) -> Solved:
    shown = {key: value for key, value in row.items() if key not in _ANSWERS}
    evidence = read_incident(shown, "incident")
    found = tuple(by_rules(evidence))
    seen = traits(evidence) if origin.rules_saw_it else traits(evidence) | traits_of_findings(found)
    labels = tuple(row["labels"]) if "labels" in row else (row["label"],)
    return Solved(origin, labels, frozenset(row.get("never", ())), evidence, found, seen)
