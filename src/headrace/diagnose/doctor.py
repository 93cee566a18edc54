"""From evidence to findings, the likeliest cause first.

    evidence -> every rule -> findings - symptoms of others -> ranked

A cause outranks its symptoms: a finding names the labels it explains, and findings with such a label are left
out unless they stand higher: surer, or as sure and more severe.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.finding import Advice, Finding, Label, Severity
from headrace.diagnose.judgement import Weigh, in_order
from headrace.diagnose.likeness import likely
from headrace.diagnose.load import load_of
from headrace.diagnose.missing_flags import flags_alone
from headrace.diagnose.quantities import quantities
from headrace.diagnose.rules import (
    arithmetic,
    arrivals,
    bill,
    cache,
    client,
    contradictions,
    contrasts,
    cpu,
    crash,
    disagree,
    fit,
    front_end,
    generator,
    grammars,
    host_memory,
    links,
    long_prompts,
    machine,
    memory,
    memory_in_use,
    messages,
    neighbours,
    over_time,
    pool,
    preempted,
    prefixes,
    probes,
    queue,
    reading,
    refused,
    settings,
    slots_and_pool,
    speed,
    standstill,
    start,
    steps,
    sweeps,
    two_runs,
    waits,
)
from headrace.diagnose.suited import suited_to

Rule = Callable[[Evidence], Iterator[Finding]]

ROOMS = (
    bill,
    start,
    neighbours,
    steps,
    memory,
    memory_in_use,
    crash,
    refused,
    contradictions,
    settings,
    contrasts,
    speed,
    probes,
    messages,
    fit,
    standstill,
    sweeps,
    two_runs,
    arithmetic,
    queue,
    waits,
    preempted,
    pool,
    slots_and_pool,
    long_prompts,
    machine,
    host_memory,
    links,
    cpu,
    grammars,
    front_end,
    over_time,
    cache,
    prefixes,
    arrivals,
    client,
    generator,
    reading,
    disagree,
)

RULES: tuple[Rule, ...] = tuple(rule for room in ROOMS for rule in room.RULES)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`findings` likeliest first; empty where the evidence shows a healthy server."""

    evidence: Evidence
    findings: tuple[Finding, ...]

    @property
    def severity(self) -> Severity:
        return max((finding.severity for finding in self.findings), default=Severity.NOTE)


def diagnose(evidence: Evidence, weigh: Weigh = likely) -> Diagnosis:
    """`weigh`: how likely each cause is by the traits of an incident."""
    found = in_order(evidence, by_rules(evidence), weigh)
    return Diagnosis(evidence, tuple(found) or tuple(_cannot_tell(evidence)))


def by_rules(evidence: Evidence) -> list[Finding]:
    """What rules find, without what is only a symptom of something else, worst first."""
    found = [
        replace(finding, rule=rule.__name__, advice=suited_to(evidence, finding.advice))
        for rule in RULES
        for finding in rule(evidence)
    ]
    ranked = sorted(found, key=_standing, reverse=True)
    kept = list[Finding]()
    for place, finding in enumerate(ranked):
        before, after = ranked[:place], ranked[place + 1 :]
        if not any(_is_symptom(finding, c) for c in before) and not any(_is_below(finding, c) for c in after):
            kept.append(
                replace(finding, also=tuple(a for a in finding.also if not _explained(a, finding, kept)))
            )
    return worst_first(kept)


GOOD = 0.65
"""From here on a finding rests on good evidence, and how bad it is decides its place."""


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """What rests on good evidence, worst first; then the rest, worst first: a grave word on thin grounds does
    not go before what is known. Of those alike the likeliest.
    """
    return sorted(findings, key=lambda f: (f.confidence >= GOOD, f.severity, f.confidence), reverse=True)


def _standing(finding: Finding) -> float:
    """Who may be whose cause: how sure, and a little how severe."""
    return finding.confidence + 0.1 * finding.severity


def _is_symptom(finding: Finding, cause: Finding) -> bool:
    return finding.label in cause.explains


def _is_below(finding: Finding, cause: Finding) -> bool:
    """Whether a cause that stands lower explains it all the same: where it is none of its symptoms, and no
    mere note that would hide a warning.
    """
    mutual = cause.label in finding.explains
    return _is_symptom(finding, cause) and not mutual and cause.severity >= finding.severity


def _explained(label: Label, finding: Finding, kept: list[Finding]) -> bool:
    return any(label in cause.explains for cause in kept if cause is not finding)


def _cannot_tell(e: Evidence) -> Iterator[Finding]:
    """Nothing stands out. A server seen at work without waits is healthy; anything else is not known."""
    load = load_of(e)
    if load.running and load.waiting and not load.waits and load.peak_kv < 0.9:
        return
    yield Finding(
        Label.UNDETERMINED,
        "These flags are in order by themselves; how the server fares with them they do not tell"
        if e.flags and flags_alone(e)
        else "Nothing here tells what holds requests up",
        (),
        Advice(
            f"collect, while it is slow: {_still_missing(e)}",
            "usage of each budget, and so the one that binds",
        ),
        Severity.NOTE,
        0.5,
    )


def _still_missing(e: Evidence) -> str:
    """What would tell, without what is there."""
    measured = {q.what for q in quantities(e, ("client:",))}
    alike = {"TTFT": {"ttft"}, "ITL": {"itl", "tpot"}}
    waits = [name for name, known in alike.items() if measured.isdisjoint(known)]
    wanted = [
        ("two scrapes of /metrics 30 s apart (or headrace doctor URL)", not load_of(e).running),
        ("the server's log from its start", not e.events and not any(e.under("log:"))),
        ("its command line", not e.flags),
        (f"client-side {' and '.join(waits)}", bool(waits)),
    ]
    missing = [what for what, absent in wanted if absent]
    return ", ".join(missing) or "the same over a longer time, from before it was slow"
