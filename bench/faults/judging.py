"""Whether the doctor was right: what it said against what had to be named.

Fault, Examined -> judge -> Row        rows -> result -> {"right": 11, "of": 11, "healthy_clean": true}
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.faults.running import Examined
from bench.faults.scenarios import FAULTS, Disturbance, Fault

DISTURBED_CORES, DISTURBED_THREADS = 0.35, 0.2
"""Others took so much, and so many of the server's threads had to wait, that slow steps were theirs. The
doctor itself takes a tenth of a core."""
_ASKS_FOR_A_CHANGE = frozenset({"warning", "critical"})


@dataclass(frozen=True, slots=True)
class Row:
    target: str
    fault: str
    right: bool
    why: str
    """Where it is wrong."""
    first: str
    also: tuple[str, ...]
    took_s: float
    others_cores: float
    kept_waiting: float

    @property
    def is_disturbed(self) -> bool:
        made_on_purpose = FAULTS[self.fault].disturbance is Disturbance.BUSY_NEIGHBOURS
        disturbed = self.others_cores > DISTURBED_CORES and self.kept_waiting > DISTURBED_THREADS
        return disturbed and not made_on_purpose


def judge(target: str, name: str, seen: Examined) -> Row:
    findings = _findings(seen)
    why = _wrong(FAULTS[name], findings, seen)
    first = _in_words(findings[0]) if findings else "nothing is wrong" if seen.said else seen.error.strip()
    also = tuple(f"{finding['severity']} {finding['label']}" for finding in findings[1:])
    return Row(
        target,
        name,
        not why,
        why,
        first,
        also,
        round(seen.took_s, 1),
        round(seen.others_cores, 2),
        round(seen.kept_waiting, 2),
    )


def _findings(seen: Examined) -> Sequence[dict[str, Any]]:
    found = (seen.said or {}).get("findings")
    return found if isinstance(found, list) else []


def _wrong(fault: Fault, findings: Sequence[dict[str, Any]], seen: Examined) -> str:
    """Empty where it is right."""
    if seen.said is None:
        return f"no diagnosis, exit code {seen.exit_code}"
    if fault.expected is None:
        asked = [f"{f['severity']} {f['label']}" for f in findings if f["severity"] in _ASKS_FOR_A_CHANGE]
        unsure = [f["label"] for f in findings if f["label"] == "other:undetermined"]
        return f"a healthy server, but {', '.join(asked + unsure)}" if asked or unsure else ""
    if not findings:
        return "nothing was named"
    label = findings[0]["label"]
    if label != fault.expected.label:
        return f"{label} instead of {fault.expected.label}"
    text = f"{findings[0]['claim']} {findings[0]['change']}"
    return "" if fault.expected.words.search(text) else f"does not say {fault.expected.words.pattern}"


def _in_words(finding: dict[str, Any]) -> str:
    return f"{finding['severity']} {finding['label']}: {finding['claim']}"


def result(rows: Iterable[Row]) -> dict[str, object]:
    by_target: dict[str, list[Row]] = {}
    for row in rows:
        by_target.setdefault(row.target, []).append(row)
    return {target: _of_one(of_target) for target, of_target in by_target.items()}


def _of_one(rows: Sequence[Row]) -> dict[str, object]:
    healthy = [row.right for row in rows if FAULTS[row.fault].expected is None]
    return {
        "right": sum(row.right for row in rows),
        "of": len(rows),
        "healthy_clean": all(healthy) if healthy else None,
        "wrong": [row.fault for row in rows if not row.right],
        "disturbed": [row.fault for row in rows if row.is_disturbed],
    }
