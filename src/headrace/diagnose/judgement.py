"""Rules and likeness together: which cause is named first, and what is too unlikely to be said.

    findings of rules + probability of each cause -> in_order -> findings, the likeliest cause first

A rule that is certain stands. Where rules are less sure, or say nothing, the cause that such incidents had
goes first: the rule's finding where one has that label, else a suspicion, which says that it is one.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from headrace.diagnose.causes import causes
from headrace.diagnose.evidence import Evidence
from headrace.diagnose.finding import Advice, Fact, Finding, Label, Severity
from headrace.diagnose.likeness import Likely
from headrace.diagnose.load import Load, load_of
from headrace.diagnose.messages import messages
from headrace.diagnose.rules.support import said, start_failed
from headrace.diagnose.suited import suited_to
from headrace.diagnose.traits import FULL, traits, traits_of_findings

Weigh = Callable[[Iterable[str]], Sequence[Likely]]

SUSPICION = "suspicion"
"""The name, in place of a rule's, of what nothing proves."""
CERTAIN = 0.75
"""A rule as sure as this is not overruled."""
LEAST = 0.15
"""Share of such incidents below which a cause is not even suspected."""
FEWEST, CLEAR = 24, 0.75
"""Of a report with fewer traits than that, as one in twenty is: nearly every cause is somewhat like it."""
AT_WORK = 0.4
"""Of a server that serves whoever asks: there the numbers speak against most causes."""
UNLIKELY, THIN = 0.05, 0.8
"""What has a smaller share, on thinner evidence than that, is not said."""


def in_order(e: Evidence, found: Sequence[Finding], weigh: Weigh) -> list[Finding]:
    """Of a report and of a start that failed; what else was read is weighed by nothing but rules, and by a
    line that hints at something where these say nothing. A page of metrics is like some incident, always.
    """
    if found and found[0].confidence >= CERTAIN:
        return list(found)
    if start_failed(e) or (e.is_report and not _looks_well(e)):
        found = _weighed(e, found, weigh)
    if not found and not load_of(e).running:  # of a server at work its load tells more
        found = list(_by_a_line(e))
    return list(found)


_TOLD_BY_THE_SERVER = ("vllm:", "sglang:", "llamacpp:", "headrace:", "log:", "startup:", "hardware:")


def _looks_well(e: Evidence) -> bool:
    """A server at work without waits, one that just started, or mere flags; of which nobody told anything."""
    told = (r for name, r in e.readings.items() if not name.startswith(_TOLD_BY_THE_SERVER))
    if any(not (r.numbers and r.name.startswith("workload:")) for r in told):
        return False
    load = load_of(e)
    if not load.running:
        measured = any(not name.startswith(("hardware:", "workload:")) for name in e.readings)
        flags_alone = not (e.events or e.lines or measured)
        return flags_alone or bool(e.counts.get("ready"))
    return _runs_without_waits(load)


def _weighed(e: Evidence, found: Sequence[Finding], weigh: Weigh) -> list[Finding]:
    shares = weigh(traits(e) | traits_of_findings(found))
    share_of = {each.label: each.share for each in shares}
    kept = [f for f in found if f.confidence >= THIN or share_of.get(f.label, 1.0) >= UNLIKELY]
    first = shares[0]
    named = [f for f in kept if f.label is first.label]
    if named:
        return named[:1] + [f for f in kept if f is not named[0]]
    if first.label is Label.UNDETERMINED or first.share < _least(e, first):
        return kept
    return [_suspicion(e, first, shares[1:3]), *kept]


def _least(e: Evidence, first: Likely) -> float:
    """The share from which a cause is suspected."""
    if first.traits < FEWEST:
        return CLEAR
    return AT_WORK if _runs_without_waits(load_of(e)) else LEAST


def _runs_without_waits(load: Load) -> bool:
    return bool(load.running) and bool(load.waiting) and not load.waits and load.peak_kv < FULL


def _by_a_line(e: Evidence) -> Iterator[Finding]:
    """A line that is printed without harm too, where nothing else was found."""
    weighty = [each for each in messages().values() if e.counts.get(each.kind) and each.weight >= 1]
    for message in sorted(weighty, key=lambda each: -each.weight)[:1]:
        todo = causes(e.engine)[message.label]
        yield Finding(
            message.label,
            f"It may be this, though the line is printed without harm too: {message.says}",
            tuple(said(line) for line in e.of(message.kind)[:2]),
            suited_to(e, Advice(f"confirm first: {todo.confirm}. If so: {message.change or todo.change}")),
            Severity.NOTE,
            0.4,
            rule=SUSPICION,
        )


def _suspicion(e: Evidence, first: Likely, others: Sequence[Likely]) -> Finding:
    """Never surer than even, whatever its share: nothing here proves it."""
    todo = causes(e.engine)[first.label]
    words = ", ".join(dict.fromkeys(map(_in_words, first.reasons)))
    advice = Advice(f"confirm first: {todo.confirm}. If so: {todo.change}", verify=todo.confirm)
    return Finding(
        first.label,
        _told(first, others),
        (Fact(f"what speaks for it: {words}"),),
        suited_to(e, advice),
        Severity.NOTE,
        min(0.5, first.share),
        rivals=tuple(
            f"{each.label}: {each.share:.0%} by likeness" for each in others if each.share >= LEAST / 2
        ),
        rule=SUSPICION,
    )


def _told(first: Likely, others: Sequence[Likely]) -> str:
    """How likely, in words that leave open what is open."""
    if first.share >= 0.5:
        return f"No rule proves it, but {first.share:.0%} of incidents like this one had this cause"
    shares = ", ".join(f"{each.label} {each.share:.0%}" for each in (first, *others))
    return f"Nothing here proves a cause. What incidents like this one had: {shares}"


_PLAIN = (
    (re.compile(r"^flag (.+)"), r"--\1"),
    (re.compile(r"^line (.+)"), r"a line of kind \1"),
    (re.compile(r"^(?:first|found) (\S+)(?: \w+)?"), r"a rule for \1"),
    (re.compile(r"^(?:seen|measured|workload|hardware) "), ""),
)


def _in_words(trait: str) -> str:
    """A trait for a person: what was seen, or a word of what was told."""
    for pattern, words in _PLAIN:
        trait = pattern.sub(words, trait)
    return trait.replace("_", " ")
