"""One thing measured twice, and one difference between: a reference beside what is complained of, another
value of a setting beside the one that is set.
"""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from headrace.diagnose.evidence import Evidence, Reading
from headrace.diagnose.finding import Advice, Finding, Label, Severity
from headrace.diagnose.flag_facts import flag_facts
from headrace.diagnose.quantities import Quantity, quantities, quantity_of, told_changes
from headrace.diagnose.rules.support import fact, start_failed, tells_of_oom

_REFERENCE = re.compile(r"^workload:(?:reference|baseline|expected|same|other|previous|elsewhere)_(?=.)")


@dataclass(frozen=True, slots=True)
class Contrast:
    label: Label
    better: frozenset[str]
    worse: frozenset[str]
    ratio: float
    claim: str
    change: str


@cache
def contrasts() -> tuple[Contrast, ...]:
    table = tomllib.loads(files("headrace.diagnose").joinpath("data/contrasts.toml").read_text("utf-8"))
    return tuple(
        Contrast(
            Label(row["label"]),
            frozenset(row["better"]),
            frozenset(row["worse"]),
            float(row["ratio"]),
            row["claim"],
            row["change"],
        )
        for row in table["contrast"]
    )


def against_a_reference(e: Evidence) -> Iterator[Finding]:
    """The same was measured where it went well, and the one difference has a name: more cores, a faster link,
    a setting left out.
    """
    measured = quantities(e, ("client:", "runs:", "measured:", "sweep:")) + told_ratios(e) + told_changes(e)
    references = [q for r in e.under("workload:") if _REFERENCE.match(r.name) and (q := _as_measured(r))]
    if start_failed(e):
        return
    for others, least, confidence in ((references, 1.0, 0.8), (measured, ONE_REPORT, 0.65)):
        for now in measured:
            for other in others:
                found = _difference(now, other, least)
                if found and (found[0].label is not Label.DP_IMBALANCE or _has_replicas(e)):
                    yield _finding(e, *found, (now, other), confidence)
                    return


def _has_replicas(e: Evidence) -> bool:
    """Whether there is anything to balance."""
    told = f"{e.told()} {' '.join(e.flags)} {' '.join(e.readings)}".lower()
    return (
        re.search(r"replica|router|worker|\brank|pods?\b|instances|balanc|data-parallel|engine=1", told)
        is not None
    )


ONE_REPORT = 1.2
"""Two numbers of one report, neither called a reference, must differ by so much more."""


def _difference(now: Quantity, other: Quantity, least: float) -> tuple[Contrast, float] | None:
    """The contrast whose words are all that is between the two, and how many times better the other is."""
    ratio = _times_worse(now, other)
    words, own = other.situation - now.situation, now.situation - other.situation
    if ratio is None or not words | own:
        return None
    # What went better without a thing went worse with it.
    words, own = words | _denied(own), own | _denied(words)
    return next(
        (
            (contrast, ratio)
            for contrast in contrasts()
            if (words & contrast.better or own & contrast.worse) and ratio >= least * contrast.ratio
        ),
        None,
    )


def _denied(words: frozenset[str]) -> frozenset[str]:
    return frozenset(word.removeprefix("no-") for word in words if word.startswith("no-"))


_RATIO = re.compile(
    r"^(?:client|runs|measured):(?P<worse>slow\w*|worse|longer)?.*(?:_x|_times|_ratio|_factor)$"
)
_NAMES_THE_DIFFERENCE = (
    *("compared_with", "versus", "vs", "against", "baseline", "reference", "without", "setting"),
    *("feature", "changed", "difference", "lever"),
)


def _named_differences(e: Evidence) -> list[str]:
    """What somebody says is the one difference between two runs."""
    return [text for name in _NAMES_THE_DIFFERENCE if (text := e.text(f"workload:{name}")) and len(text) < 80]


def told_ratios(e: Evidence) -> list[Quantity]:
    """client:slowdown_x = 4 beside workload:compared_with = "no LoRA", as two times."""
    ratio = next(
        (r for r in e.readings.values() if r.last and (m := _RATIO.match(r.name)) and m["worse"]), None
    )
    found = list[Quantity]()
    for told in _named_differences(e) if ratio is not None else ():
        spelt = re.sub(r"\W+", "_", told.lower()).strip("_")
        both = ((ratio.name, "", ratio.last), (ratio.name, f"_{spelt}", 1.0)) if ratio is not None else ()
        for name, tail, value in both:
            if (q := quantity_of(Reading(f"client:latency{tail}", (value or 1.0,), ""), name)) is not None:
                found.append(q)
    return found


def _as_measured(reading: Reading) -> Quantity | None:
    """workload:reference_tok_s_cpu_6 as if it were client:tok_s_cpu_6."""
    short = _REFERENCE.sub("client:", reading.name)
    return quantity_of(Reading(short, reading.values, reading.where), reading.name)


_RATES = frozenset({"tok", "decode", "output", "generation", "gen", "throughput"})


def _times_worse(now: Quantity, reference: Quantity) -> float | None:
    """How many times better the reference is; None where the two are not of one kind."""
    alike = now.what == reference.what or (now.is_rate and {now.what, reference.what} <= _RATES)
    same_stat = now.stat == reference.stat or not now.stat or not reference.stat
    if (
        not alike
        or now.is_rate is not reference.is_rate
        or not same_stat
        or min(now.last, reference.last) <= 0
    ):
        return None
    return reference.last / now.last if now.is_rate else now.last / reference.last


def _finding(
    e: Evidence, contrast: Contrast, ratio: float, both: tuple[Quantity, Quantity], confidence: float
) -> Finding:
    return Finding(
        contrast.label,
        contrast.claim.format(ratio=ratio),
        tuple(fact(e, q.name) for q in both),
        Advice(contrast.change, f"up to {ratio:.1f} times", verify="the same measurement after the change"),
        Severity.NOTE if contrast.label is Label.EXPECTED else Severity.WARNING,
        confidence,
        rivals=("a second difference between the two runs: change one thing at a time",),
        explains=frozenset({Label.UNDETERMINED, Label.MEMORY_BANDWIDTH, Label.COMPUTE, Label.QUEUEING}),
    )


_HELPS = re.compile(
    r"(?:\d+(?:\.\d+)?(?: ?- ?\d+(?:\.\d+)?)? ?(?:%|x|times) ?(?:more|faster|higher|better|less "
    r"latency|lower)|"
    r"\b(?:fixes|fixed|solves|solved|works|helps|helped|faster|restores?|back to normal|starts|normal "
    r"speed)\b)"
)
_NO_DIFFERENCE = re.compile(
    r"\b(?:same|no (?:change|difference|effect|improvement)|unchanged|does not help|did not help)\b"
)


def other_values(e: Evidence) -> Iterator[tuple[str, Reading]]:
    """(flag, reading) of each mention of a run with another value of a flag, or without it."""
    known = {re.sub("-", "_", name): name for name in (*flag_facts().options, *flag_facts().switches)}
    for reading in (*e.under("workload:"), *e.under("hardware:")):
        name = re.sub(r"[\s\-]+", "_", reading.name.partition(":")[2].lower())
        if not re.search(r"with|without|no_|when|after|higher|lower|if_|set|_\d", name):
            continue
        found = [
            flag
            for spelt, flag in known.items()
            if len(spelt) > 6 and re.search(rf"(?:^|_){spelt}(?:_|$)", name)
        ]
        if found and not reading.numbers:
            yield max(found, key=len), reading


def told_to_change_nothing(e: Evidence) -> Iterator[tuple[str, Reading]]:
    """Those of which somebody says that another value made no difference."""
    for flag, reading in other_values(e):
        if _NO_DIFFERENCE.search(reading.text.lower()):
            yield flag, reading


def changed_nothing(e: Evidence) -> frozenset[str]:
    """Flags that are not the cause."""
    return frozenset(flag for flag, _ in told_to_change_nothing(e))


def another_value_helps(e: Evidence) -> Iterator[Finding]:
    """A run with another value of one flag went better, and nothing else was changed."""
    measured = quantities(e, ("client:", "sweep:", "runs:", "measured:"))
    tried = [
        (flag, reading.text, reading.name)
        for flag, reading in other_values(e)
        if _HELPS.search(reading.text.lower()) and not _NO_DIFFERENCE.search(reading.text.lower())
    ] + [*_in_names(measured), *_named_beside(e, measured)]
    if not tried or start_failed(e) or tells_of_oom(e):
        return
    flag, how, name = tried[0]
    slots = _ADMITS.search(flag) is not None
    label, also = (Label.QUEUEING, Label.BAD_FLAGS) if slots else (Label.BAD_FLAGS, Label.QUEUEING)
    yield Finding(
        label,
        f"With another --{flag} it went better ({how[:80]}): the value it has now is what holds it up",
        (fact(e, name), *((fact(e, flag),) if flag in e.flags else ())),
        Advice(
            f"--{flag} as in the better run", "what that run had", verify="the same load with both values"
        ),
        Severity.WARNING,
        0.75,
        also=(also,) if slots or "batched" in flag else (),
        explains=frozenset({Label.UNDETERMINED, Label.COMPUTE, Label.MEMORY_BANDWIDTH, Label.KV_CAPACITY}),
    )


_ADMITS = re.compile(
    r"max-num-seqs|max-running-requests|^parallel$|partial-prefills|long-prefill|scheduling-policy"
)
"""Flags that say who may run, and whose prompt is read first."""


def _named_beside(e: Evidence, measured: list[Quantity]) -> Iterator[tuple[str, str, str]]:
    """Two runs of one thing, and the flag that is said to be their difference."""
    known = (*flag_facts().options, *flag_facts().switches, *flag_facts().gone)
    told = [
        flag for text in _named_differences(e) for flag in known if flag in text.lower().replace("_", "-")
    ]
    for now in measured if told else ():
        for other in measured:
            ratio = _times_worse(now, other)
            if ratio is not None and ratio > ONE_REPORT and other.situation > now.situation:
                flag = max(told, key=len)
                yield flag, f"{ratio:.1f} times as good", other.name


def _in_names(measured: list[Quantity]) -> Iterator[tuple[str, str, str]]:
    """Rates whose name ends in another value of a flag (output_tok_s_max_num_seqs_1024), higher ones."""
    for flag in ("max-num-seqs", "max-num-batched-tokens", "max-running-requests", "block-size"):
        spelt = re.compile(rf"{flag.replace('-', '_')}_?(\d+)")
        plain = [
            q for q in measured if q.is_rate and not spelt.search(q.name) and q.name.startswith("client:")
        ]
        for q in measured:
            found = spelt.search(q.name)
            if found and q.is_rate and plain and max(q.values) > 1.3 * plain[0].last > 0:
                yield flag, f"{max(q.values):,.0f} beside {plain[0].last:,.0f} with {found[1]}", q.name


def makes_no_difference(e: Evidence) -> Iterator[Finding]:
    """The same with and without a feature: it is neither the cause nor the cure, and its budget is not what
    binds.
    """
    found = quantities(e, ("client:", "runs:", "sweep:", "measured:"))
    for on in found:
        for off in found:
            words = on.situation ^ off.situation
            same = (on.what, on.is_rate, on.stat, len(on.values)) == (
                off.what,
                off.is_rate,
                off.stat,
                len(off.values),
            )
            if not same or not on.situation & _ON or not off.situation & _OFF or words - _ON - _OFF:
                continue
            if all(abs(a - b) <= NO_MORE * max(a, b) for a, b in zip(on.values, off.values, strict=True)):
                yield Finding(
                    Label.EXPECTED,
                    "With and without it the same is measured: it has no work to save here, and is no fault",
                    (fact(e, on.name), fact(e, off.name)),
                    Advice(
                        "measure what it is for (TTFT of long prompts that begin alike, for a cache)", "none"
                    ),
                    Severity.NOTE,
                    0.6 if _something_else_differs(on, found) else 0.75,
                    also=(Label.MEMORY_BANDWIDTH,)
                    if on.what in {"latency", "e2e", "e2el", "request"}
                    else (),
                    explains=frozenset({Label.UNDETERMINED, Label.PREFIX_MISS, Label.BAD_FLAGS}),
                )
                return


def _something_else_differs(same: Quantity, found: list[Quantity]) -> bool:
    """Of the same thing another run is better or worse by far: then that is what is asked about."""
    return any(
        (q.what, q.is_rate) == (same.what, same.is_rate)
        and not ONE_REPORT * min(q.last, same.last) > max(q.last, same.last)
        for q in found
        if min(q.last, same.last) > 0
    )


_ON, _OFF = (
    frozenset({"on", "with", "enabled", "true"}),
    frozenset({"off", "without", "disabled", "false", "no"}),
)
NO_MORE = 0.05
"""Of a measurement: two runs of the same differ by as much."""


RULES = (against_a_reference, another_value_helps, makes_no_difference)
