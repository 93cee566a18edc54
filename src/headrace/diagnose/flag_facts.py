"""vLLM's flags by version: which there are, where old ones went, what is new, and what they are by default.

flag_history.toml says when each came and went; flags.toml what replaces it, and the defaults.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from headrace.diagnose.flag_history import History, Release, history, is_flag, release_of

NEWEST: Release = (0, 32, 0)
"""The version whose flags are the list of known ones."""


@dataclass(frozen=True, slots=True)
class Gone:
    """A word of old articles. `until`: the first version without it; None if there never was one."""

    name: str
    until: Release | None
    instead: str
    source: str
    idle: Release | None = None
    """The first version in which it is refused with most values, or does nothing."""


@dataclass(frozen=True)
class FlagFacts:
    history: History
    switches: frozenset[str]
    """Of the newest version, as `options`."""
    options: frozenset[str]
    steps: Mapping[str, tuple[tuple[Release, float], ...]]
    """Defaults of a flag: from which version on, oldest first."""
    short: Mapping[str, str]
    gone: Mapping[str, Gone]
    lost: Mapping[str, Gone]
    """Values of flags and variables that went."""

    def full_name(self, written: str) -> str:
        """The name with dashes that a spelling stands for: short forms, prefixes that fit only one. What
        follows a dot is a key of the flag's value.
        """
        name, dot, part = written.lstrip("-").partition(".")
        return self._whole(name.replace("_", "-")) + dot + part

    def _whole(self, name: str) -> str:
        if (full := self.short.get(name)) is not None:
            return full
        if name in self.history.spans or name in self.gone:
            return name
        fits = [known for known in self.switches | self.options if known.startswith(name)]
        return fits[0] if len(fits) == 1 and name else name

    def is_switch(self, name: str) -> bool:
        return name.removeprefix("no-") in self.history.switches

    def has(self, name: str, release: Release | None) -> bool:
        """Whether a version has a flag; unknown versions are taken for new."""
        return self.history.has(name, release or NEWEST)

    def default(self, name: str, release: Release | None) -> float:
        """What a flag is on most cards where it is not given. Raises `KeyError` for one not in the table."""
        held = [value for since, value in self.steps[name] if since <= (release or NEWEST)]
        return held[-1] if held else self.steps[name][0][1]


@cache
def flag_facts() -> FlagFacts:
    table = tomllib.loads(files("headrace.diagnose").joinpath("data/flags.toml").read_text("utf-8"))
    past = history()
    now = {flag for flag in past.flags if past.has(flag, NEWEST)}
    steps = dict[str, tuple[tuple[Release, float], ...]]()
    for step in table["default"]:
        steps[step["flag"]] = (*steps.get(step["flag"], ()), (release_of(step["since"]), step["value"]))
    gone = _gone({entry["name"]: entry for entry in table["gone"]})
    return FlagFacts(
        history=past,
        switches=frozenset(now & past.switches),
        options=frozenset(now - past.switches),
        steps=steps,
        short=table["short"],
        gone={name: word for name, word in gone.items() if is_flag(name)},
        lost={name: word for name, word in gone.items() if not is_flag(name)},
    )


def _gone(told: Mapping[str, Mapping[str, str]]) -> dict[str, Gone]:
    """Words that went, with what is told of them, and those of old articles that never were."""
    past = history()
    went = [word for word in past.spans if past.until(word) and not past.is_negation(word)]
    return {name: _word(name, past.until(name), told.get(name, {})) for name in (*told, *went)}


def _word(name: str, until: Release | None, told: Mapping[str, str]) -> Gone:
    """What went before the first release that was read has its `until` beside it."""
    if until is None and told["until"] != "never":
        until = release_of(told["until"])
    idle = release_of(told["idle"]) if "idle" in told else None
    return Gone(name, until, told.get("instead", "leave it out"), told.get("source", ""), idle)
