"""What an incident looks like, as a set of words: what `likeness` compares incidents by.

    Evidence -> traits -> {"flag max-num-seqs", "kv_cache_usage_perc is full", "line kv_too_short", …}
    findings -> traits_of_findings -> {"found bad_flags", "first bad_flags sure"}

A trait is the kind of a line, the name of a flag or of a number and where that stands (nothing, low, full,
rising), a word of what was told, two words in a row, or what a rule says. No number is one.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from headrace.diagnose.evidence import Evidence, Flag, Reading
from headrace.diagnose.finding import Finding
from headrace.diagnose.load import share
from headrace.diagnose.rules.contrasts import told_to_change_nothing
from headrace.diagnose.states import STATES

_WORD = re.compile(r"[a-z]+|#")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_OWN = ("vllm", "log", "gpu", "host", "startup", "sglang", "server", "machine", "process")
_SHARE = re.compile(r"perc|usage|util|rate$")
FULL, LOW = 0.9, 0.5
_FIRST_V1, _LATE_V1 = (0, 8, 0), (0, 12, 0)
_MOST_WORDS = 400
"""Of one part: who writes more tells of many things."""


def traits(e: Evidence) -> frozenset[str]:
    found = set[str](_of_server(e))
    idle = {name for flag, reading in told_to_change_nothing(e) for name in (flag, reading.name)}
    for name, flag in e.flags.items():
        if name not in idle:
            found.update(_of_flag(name, flag))
    for reading in e.readings.values():
        if reading.name not in idle:
            found.update(_of_reading(reading))
    found.update(f"line {kind}" for kind in e.counts)
    for text in (*(event.text for event in e.events[:_MOST_WORDS]), *e.lines):
        found.update(_phrases(text))
    found.update(f"seen {name}" for name, test in STATES.items() if test(e))
    return frozenset(found)


def _of_server(e: Evidence) -> Iterator[str]:
    yield f"engine {e.engine}"
    if release := e.release:
        yield f"era {'v0' if release < _FIRST_V1 else 'early v1' if release < _LATE_V1 else 'v1'}"
    yield from (f"has {part}" for part in ("flags", "readings", "events") if getattr(e, part))


def _of_flag(name: str, flag: Flag) -> Iterator[str]:
    yield f"flag {name}"
    if flag.value in (False, "false", "False"):
        yield f"flag {name} off"
    if name == "gpu-memory-utilization" and flag.number is not None:
        yield f"utilization {'high' if flag.number >= 0.94 else 'low' if flag.number <= 0.7 else 'usual'}"


def _of_reading(reading: Reading) -> Iterator[str]:
    whose, _, rest = reading.name.partition(":")
    yield f"of {whose}"
    prefix = whose if whose in {"workload", "hardware"} else "measured"
    yield from (f"{prefix} {word}" for word in _words(rest))
    if whose == "hardware":
        yield from (f"hardware {word}" for word in _words(reading.text))
        return
    yield from _phrases(rest)
    if reading.numbers:
        yield from _states(whose, rest, reading.numbers)
    else:
        yield from _phrases(reading.text)


def _states(whose: str, name: str, numbers: tuple[float, ...]) -> Iterator[str]:
    """Where the number of a server's own stands, and which way it goes."""
    first, *_, last = (*numbers[:1], *numbers)
    if len(numbers) > 1:
        yield f"series of {whose}"
    if whose not in _OWN:
        return
    short = "_".join(_words(name))
    yield f"{short} is {'something' if last else 'nothing'}"
    if _SHARE.search(name):
        used = share(last)
        yield f"{short} is {'full' if used >= FULL else 'low' if used < LOW else 'between'}"
    if len(numbers) > 1:
        yield f"{short} {'rises' if last > first else 'falls' if last < first else 'stays'}"


def _phrases(text: str) -> Iterator[str]:
    """Words, and two in a row."""
    words = _words(text)
    yield from words
    yield from (f"{first} {second}" for first, second in pairwise(words))


def _words(text: str) -> list[str]:
    return _WORD.findall(_NUMBER.sub("#", text.lower()))[:_MOST_WORDS]


_SURE, _GOOD = 0.85, 0.7


def traits_of_findings(found: Sequence[Finding]) -> frozenset[str]:
    """What the rules say of it, likeliest first."""
    if not found:
        return frozenset({"nothing found"})
    first = found[0]
    how = "sure" if first.confidence >= _SURE else "good" if first.confidence >= _GOOD else "weak"
    return frozenset(
        {f"first {first.label}", f"first {first.label} {how}", *(f"found {f.label}" for f in found)}
    )
