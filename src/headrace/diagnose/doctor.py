"""From evidence to findings, worst first.

    evidence -> every rule -> findings - symptoms of others -> ranked

A cause outranks its symptoms: a finding names the labels it explains, and findings with such a label are left
out unless they are as severe and surer.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.finding import Advice, Fact, Finding, Label, Severity
from headrace.diagnose.load import load_of
from headrace.diagnose.rules import (
    arrivals,
    bill,
    cache,
    client,
    cpu,
    crash,
    fit,
    generator,
    links,
    long_prompts,
    machine,
    memory,
    neighbours,
    over_time,
    pool,
    prefixes,
    queue,
    reading,
    settings,
    speed,
    standstill,
    start,
    steps,
    sweeps,
    warned,
)
from headrace.diagnose.signs import causes, suspects

Rule = Callable[[Evidence], Iterator[Finding]]

_ROOMS = (
    bill,
    start,
    neighbours,
    steps,
    memory,
    crash,
    settings,
    speed,
    warned,
    fit,
    standstill,
    sweeps,
    queue,
    pool,
    long_prompts,
    machine,
    links,
    cpu,
    over_time,
    cache,
    prefixes,
    arrivals,
    client,
    generator,
    reading,
)

RULES: tuple[Rule, ...] = tuple(rule for room in _ROOMS for rule in room.RULES)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`findings` worst first; empty where the evidence shows a healthy server."""

    evidence: Evidence
    findings: tuple[Finding, ...]

    @property
    def severity(self) -> Severity:
        return max((finding.severity for finding in self.findings), default=Severity.NOTE)


def diagnose(evidence: Evidence) -> Diagnosis:
    found = [replace(finding, rule=rule.__name__) for rule in RULES for finding in rule(evidence)]
    ranked = sorted(found, key=lambda f: (-f.severity, -f.confidence))
    kept = list[Finding]()
    for finding in ranked:
        if not any(_is_symptom(finding, cause) for cause in ranked if cause is not finding):
            kept.append(
                replace(finding, also=tuple(a for a in finding.also if not _explained(a, finding, kept)))
            )
    return Diagnosis(evidence, tuple(kept) or tuple(_suspicion(evidence)) or tuple(_cannot_tell(evidence)))


def _is_symptom(finding: Finding, cause: Finding) -> bool:
    """Whether `cause` explains it and is the surer of the two where both explain each other."""
    if finding.label not in cause.explains:
        return False
    mutual = cause.label in finding.explains
    return not mutual or (cause.severity, cause.confidence) >= (finding.severity, finding.confidence)


def _explained(label: Label, finding: Finding, kept: list[Finding]) -> bool:
    return any(label in cause.explains for cause in kept if cause is not finding)


def _suspicion(e: Evidence) -> Iterator[Finding]:
    """What the signs point to where no rule has spoken: at most an even chance, and how to confirm it."""
    found = suspects(e)
    if not found or found[0].label is Label.UNDETERMINED:
        return
    first, *others = found
    todo = causes()[first.label]
    yield Finding(
        first.label,
        f"No number here proves it, but the signs point to it: {'; '.join(first.reasons[:2])}",
        tuple(Fact(reason) for reason in first.reasons),
        Advice(f"confirm first: {todo.confirm}. If so: {todo.change}", verify=todo.confirm),
        Severity.NOTE,
        min(0.5, 0.1 + 0.1 * first.weight),
        rivals=tuple(f"{other.label}: {other.reasons[0]}" for other in others[:3]),
        rule=_suspicion.__name__.strip("_"),
    )


def _cannot_tell(e: Evidence) -> Iterator[Finding]:
    """Nothing stands out. A server seen at work without waits is healthy; anything else is not known."""
    load = load_of(e)
    if load.running and load.waiting and not load.waits and load.peak_kv < 0.9:
        return
    yield Finding(
        Label.UNDETERMINED,
        "Nothing here tells what holds requests up",
        (),
        Advice(
            "collect, while it is slow: two scrapes of /metrics 30 s apart (or headrace doctor URL), "
            "the server's log from its start, its command line; and client-side TTFT and ITL",
            "usage of each budget, and so the one that binds",
        ),
        Severity.NOTE,
        0.5,
    )
