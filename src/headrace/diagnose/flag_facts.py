"""vLLM's flags by version, from data/flags.toml: which there are, where old ones went, what is new."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

NEWEST = (0, 32, 0)
"""The version whose flags are the list of known ones."""

Release = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Gone:
    """A flag of old articles. `until`: the first version without it; None if there never was one."""

    name: str
    until: Release | None
    instead: str
    source: str
    idle: Release | None = None
    """The first version in which it is refused with most values, or does nothing."""


@dataclass(frozen=True)
class FlagFacts:
    switches: frozenset[str]
    options: frozenset[str]
    defaults: Mapping[str, float]
    short: Mapping[str, str]
    gone: Mapping[str, Gone]
    since: Mapping[str, Release]
    inferred: frozenset[str]
    """Flags of `since` whose version was inferred from the date of a change."""

    def full_name(self, written: str) -> str:
        """The name with dashes that a spelling stands for: short forms, prefixes that fit only one. What
        follows a dot is a key of the flag's value.
        """
        name, dot, part = written.lstrip("-").partition(".")
        return self._whole(name.replace("_", "-")) + dot + part

    def _whole(self, name: str) -> str:
        if (full := self.short.get(name)) is not None:
            return full
        if self._is_known(name) or name in self.gone:
            return name
        fits = [known for known in self.switches | self.options if known.startswith(name)]
        return fits[0] if len(fits) == 1 and name else name

    def _is_known(self, name: str) -> bool:
        return name in self.switches or name in self.options

    def is_switch(self, name: str) -> bool:
        return name in self.switches or (name.startswith("no-") and name[3:] in self.switches)

    def surely_later(self, name: str, release: Release) -> bool:
        """Whether a flag came after `release`. Where its version was only inferred, two minors after."""
        since = self.since.get(name)
        if since is None or release >= since:
            return False
        return name not in self.inferred or (since[0], since[1] - 2) >= release[:2]

    def has(self, name: str, release: Release | None) -> bool:
        """Whether a version has a flag; unknown versions are taken for new."""
        gone = self.gone.get(name)
        now = release or NEWEST
        if gone is not None:
            return gone.until is not None and now < gone.until
        return now >= self.since.get(name, (0, 0, 0))


def _release(text: str) -> Release | None:
    return None if text == "never" else tuple(int(part) for part in text.split("."))


@cache
def flag_facts() -> FlagFacts:
    table = tomllib.loads(files("headrace.diagnose").joinpath("data/flags.toml").read_text("utf-8"))
    return FlagFacts(
        switches=frozenset(table["switches"]),
        options=frozenset(table["options"]),
        defaults=table["defaults"],
        short=table["short"],
        gone={
            flag["name"]: Gone(
                flag["name"],
                _release(flag["until"]),
                flag["instead"],
                flag["source"],
                _release(flag.get("idle", "never")),
            )
            for flag in table["gone"]
        },
        since={flag["name"]: _release(flag["since"]) or (0, 0, 0) for flag in table["new"]},
        inferred=frozenset(flag["name"] for flag in table["new"] if "~" in flag["source"]),
    )
