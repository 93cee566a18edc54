"""Which words each release of vLLM takes: flags, their negations and choices, variables of the environment.

data/flag_history.toml (made by tools/vllm_flags.py) -> history() -> has("kv-cache-dtype=nvfp4", (0, 19, 1))
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

Release = tuple[int, ...]

_VARIABLES_KNOWN: Release = (0, 4, 2)
"""The first release with a list of its variables: what is in it may be older."""
_ALWAYS: Release = (0,)


@dataclass(frozen=True, slots=True)
class Span:
    """From the first release that has a word to the first that has it no more; None while it is there."""

    since: Release
    until: Release | None = None

    def holds(self, release: Release) -> bool:
        return self.since <= release and (self.until is None or release < self.until)


@dataclass(frozen=True)
class History:
    spans: Mapping[str, tuple[Span, ...]]
    switches: frozenset[str]
    """Flags that take no value, of any release."""
    newest: Release

    def has(self, word: str, release: Release) -> bool:
        """Whether a release takes a word; one newer than those that were read is taken for the newest."""
        return any(span.holds(min(release, self.newest)) for span in self.spans.get(word, ()))

    def since(self, word: str) -> Release | None:
        """None for what the first release that was read had, and for what none has."""
        first = self.spans[word][0].since if word in self.spans else _ALWAYS
        return None if first == _ALWAYS else first

    def until(self, word: str) -> Release | None:
        return self.spans[word][-1].until if word in self.spans else None

    def choices(self, flag: str) -> Iterator[str]:
        """All values that a flag could be given in some release."""
        return (word.partition("=")[2] for word in self.spans if word.startswith(f"{flag}="))

    @property
    def flags(self) -> Iterator[str]:
        """All flags of all releases, without negations."""
        return (word for word in self.spans if is_flag(word) and not self.is_negation(word))

    def is_negation(self, word: str) -> bool:
        return word.startswith("no-") and word[3:] in self.switches


def is_flag(word: str) -> bool:
    return "=" not in word and not is_variable(word)


def is_variable(word: str) -> bool:
    return word.startswith("VLLM_")


def dotted(release: Release) -> str:
    return ".".join(map(str, release))


def release_of(text: str) -> Release:
    """Of `dotted`."""
    return tuple(int(part) for part in text.split("."))


@cache
def history() -> History:
    table = tomllib.loads(files("headrace.diagnose").joinpath("data/flag_history.toml").read_text("utf-8"))
    spans, newest = dict[str, tuple[Span, ...]](), _ALWAYS
    for place, entry in enumerate(table["release"]):
        newest = release_of(entry["version"])
        for word in entry.get("came", ()):
            is_old = place == 0 or (is_variable(word) and newest <= _VARIABLES_KNOWN)
            spans[word] = (*spans.get(word, ()), Span(_ALWAYS if is_old else newest))
        for word in entry.get("went", ()):
            *before, last = spans[word]
            spans[word] = (*before, Span(last.since, newest))
    return History(spans, frozenset(table["switches"]), newest)
