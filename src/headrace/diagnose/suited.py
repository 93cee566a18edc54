"""Advice that a version can follow: of the flags it names, none that the version lacks, unless it says so.

Advice, version --suited_to--> the same, without the ways that are not there
"""

import re
from dataclasses import replace

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.finding import Advice
from headrace.diagnose.flag_history import Release, dotted, history
from headrace.diagnose.missing_flags import predecessor

_NAMED = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]+)(?!\S* ->)")
"""Not what stands before an arrow: that is the flag to be replaced."""
_BETWEEN_WAYS = re.compile(r"(; |, or )")


def suited_to(e: Evidence, advice: Advice) -> Advice:
    """For a vLLM whose version is known; other engines' flags are nobody's business here."""
    if e.release is None or e.engine not in {"vllm", ""}:
        return advice
    release = e.release
    return replace(
        advice,
        change=_told(_open_ways(advice.change, release), release),
        effect=_told(advice.effect, release),
        price=_told(advice.price, release),
        verify=_told(advice.verify, release),
    )


def lacking(text: str, release: Release) -> list[str]:
    """Flags that a text names and a version lacks, each once."""
    named = dict.fromkeys(name for name in _NAMED.findall(text) if name in history().spans)
    return [name for name in named if not history().has(name, release)]


def _open_ways(change: str, release: Release) -> str:
    """Of several ways those that the version has; all of them where it has none."""
    first, *rest = _BETWEEN_WAYS.split(change)
    ways = [("", first), *zip(rest[::2], rest[1::2], strict=True)]
    left = [(between, way) for between, way in ways if not lacking(way, release)]
    # After a comma stands another way, after a semicolon perhaps only how to go the first.
    if not left or len(left) == len(ways) or not _NAMED.search(left[0][1]):
        return change
    return left[0][1] + "".join(between + way for between, way in left[1:])


def _told(text: str, release: Release) -> str:
    """The text, and of each flag that the version lacks why, and what it has instead."""
    missing = [name for name in lacking(text, release) if not re.search(rf"--{name} (?:came|is not)", text)]
    notes = [_why(name, release) for name in missing]
    return f"{text} ({'; '.join(notes)})" if notes else text


def _why(name: str, release: Release) -> str:
    since, until = history().since(name), history().until(name)
    if since is None or release >= since:
        return f"--{name} is not in vLLM from {dotted(until or ())} on"
    before = predecessor(name, release)
    return f"--{name} came with vLLM {dotted(since)}" + (f"; here {before}" if before else "")
