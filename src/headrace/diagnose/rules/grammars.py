"""Answers that follow a grammar: it is compiled on the CPU before admission, and masks each token."""

import re
from collections.abc import Iterator

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.finding import Advice, Finding, Label, Severity
from headrace.diagnose.load import load_of
from headrace.diagnose.quantities import PLAIN, STRUCTURED, Pair, pairs, quantities, told_changes
from headrace.diagnose.rules.support import fact, start_failed


def grammars_cost(e: Evidence) -> Iterator[Finding]:
    """A grammar is compiled on the CPU before a request is admitted and gives a mask for every token."""
    found = quantities(e) + told_changes(e)
    told = _STRUCTURED_TOLD.search(" ".join(f"{r.name} {r.text}" for r in e.under("workload:")).lower())
    named = (*pairs(found, STRUCTURED, None), *pairs(found, STRUCTURED, PLAIN))
    without = [Pair(p.other, p.base) for p in pairs(found, _UNSTRUCTURED, None)] if told else []
    slower = [p for p in (*named, *without) if 1 / max(p.times_worse, 1e-9) > 1.25]
    late = [q for q in found if q.what == "ttft" and not q.is_rate and q.last > SLOW_TTFT_S]
    if start_failed(e) or not (slower or (told and late and load_of(e).peak_waiting == 0)):
        return
    worst = min(slower, key=lambda pair: pair.times_worse, default=None)
    times = 1 / max(worst.times_worse, 1e-9) if worst else 0.0
    yield Finding(
        Label.CPU,
        f"With a grammar {worst.base.what} is {times:.1f} times worse than without"
        if worst
        else f"TTFT is {late[0].last:.1f} s, nobody waits, and answers follow a grammar: it is compiled "
        f"first",
        (fact(e, worst.base.name), fact(e, worst.other.name)) if worst else (fact(e, late[0].name),),
        Advice(
            "the xgrammar or llguidance backend (--structured-outputs-config), schemas that are reused, "
            "fewer "
            "alternatives and no long bounded repeats",
            "the speed of free text",
            "backends know different parts of JSON schema",
            "the same prompts with and without",
        ),
        Severity.WARNING,
        0.85 if worst else 0.55,
        # With and without at the same load: whatever else is full is full in both.
        explains=frozenset({Label.QUEUEING, Label.COMPUTE, Label.UNDETERMINED})
        | (frozenset({Label.CLIENT, Label.KV_CAPACITY, Label.MEMORY_BANDWIDTH}) if worst else frozenset()),
    )


_STRUCTURED_TOLD = re.compile(r"guided|structured|json.?schema|grammar|response.?format|xgrammar|outlines")
_UNSTRUCTURED = frozenset({"unguided", "unstructured", "unconstrained", "plain", "free"})
SLOW_TTFT_S = 1.0


RULES = (grammars_cost,)
