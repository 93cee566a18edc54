"""What is known about a server, and where each part of it stands.

    files, scrapes, flags --readers--> Evidence --rules--> findings

Everything is a `Reading` under a name with a prefix: `vllm:…` and `sglang:…` metrics, `log:…` the periodic
line, `startup:…` what start-up printed, `client:…` outside the server, `gpu:…`, `host:…` and `machine:…` the
machine, `workload:…` and `hardware:…` what a person told. Log lines with a meaning of their own are `Event`s.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

Value = float | str


@dataclass(frozen=True, slots=True)
class Reading:
    """One quantity: its values in order of time, and where the last of them stands."""

    name: str
    values: tuple[Value, ...]
    where: str

    @property
    def numbers(self) -> tuple[float, ...]:
        return tuple(v for v in self.values if isinstance(v, int | float))

    @property
    def last(self) -> float | None:
        return self.numbers[-1] if self.numbers else None

    @property
    def text(self) -> str:
        return " ".join(str(v) for v in self.values)


@dataclass(frozen=True, slots=True)
class Event:
    """A log line that means something: `kind` as in data/log_lines.toml, `fields` what it says."""

    kind: str
    fields: Mapping[str, str]
    where: str
    text: str
    at: int
    """Its place among all lines that were read."""

    def number(self, name: str) -> float | None:
        """The field as a number; None where it is missing or none."""
        try:
            return float(self.fields[name].replace(",", ""))
        except (KeyError, ValueError):
            return None


@dataclass(frozen=True, slots=True)
class Flag:
    value: Value | bool
    where: str
    is_negated: bool = False
    """Turned off by its --no-x, which a version may lack."""

    @property
    def number(self) -> float | None:
        return float(self.value) if isinstance(self.value, int | float) else None


@dataclass(frozen=True, eq=False)
class Evidence:
    """All that was read. `counts` says how often each kind of event came, also those not kept."""

    engine: str = ""
    version: str = ""
    flags: Mapping[str, Flag] = field(default_factory=dict[str, Flag])
    readings: Mapping[str, Reading] = field(default_factory=dict[str, Reading])
    events: tuple[Event, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    is_report: bool = False
    """Whether somebody wrote this down because something was wrong."""
    lines: tuple[str, ...] = ()
    """Of a short log, what no pattern knows: words for `traits`, no evidence of anything."""
    notes: tuple[str, ...] = ()
    """What could not be read, or was left out, in words for a person."""
    sources: tuple[str, ...] = ()

    def __or__(self, other: "Evidence") -> "Evidence":
        """Both together; where they disagree the later one holds, series are joined in order."""
        joined = dict(self.readings)
        for name, reading in other.readings.items():
            before = joined.get(name)
            joined[name] = (
                replace(reading, values=before.values + reading.values)
                if before is not None and name.partition(":")[0] in SERIES
                else reading
            )
        offset = 1 + max((event.at for event in self.events), default=-1)
        counts = {
            kind: self.counts.get(kind, 0) + other.counts.get(kind, 0)
            for kind in self.counts.keys() | other.counts.keys()
        }
        return Evidence(
            engine=other.engine or self.engine,
            version=other.version or self.version,
            flags={**self.flags, **other.flags},
            readings=joined,
            events=self.events + tuple(replace(event, at=event.at + offset) for event in other.events),
            counts=counts,
            is_report=self.is_report or other.is_report,
            lines=(self.lines + other.lines)[:MOST_LINES],
            notes=self.notes + other.notes,
            sources=tuple(dict.fromkeys(self.sources + other.sources)),
        )

    def number(self, *names: str) -> float | None:
        """The latest value of the first of `names` that there is."""
        return next((r.last for name in names if (r := self.readings.get(name)) and r.numbers), None)

    def series(self, *names: str) -> tuple[float, ...]:
        """All values of the first of `names` that there is."""
        return next((r.numbers for name in names if (r := self.readings.get(name)) and r.numbers), ())

    def text(self, name: str) -> str:
        reading = self.readings.get(name)
        return reading.text if reading else ""

    def under(self, prefix: str) -> Iterator[Reading]:
        """All readings whose name starts so."""
        return (reading for name, reading in self.readings.items() if name.startswith(prefix))

    def flag(self, name: str) -> float | None:
        """A flag's number, by its name with dashes."""
        found = self.flags.get(name)
        return found.number if found else None

    def is_on(self, name: str) -> bool:
        """Whether a switch was given and not turned off."""
        found = self.flags.get(name)
        return found is not None and found.value not in (False, "false", "False", 0, "0")

    def of(self, *kinds: str) -> tuple[Event, ...]:
        return tuple(event for event in self.events if event.kind in kinds)

    def where(self, name: str) -> str:
        if reading := self.readings.get(name):
            return reading.where
        return self.flags[name].where if name in self.flags else ""

    @property
    def is_before_release(self) -> bool:
        """Of a build on the way to its version: what that one takes away may still be there."""
        return re.search(r"rc\d|dev|nightly", self.version) is not None

    @cached_property
    def release(self) -> tuple[int, ...] | None:
        """(0, 19, 1) of "0.19.1rc1.dev301"; of "V0" one that had it; None where the version is no number."""
        found = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", self.version)
        if found is None:
            return LAST_OF_V0 if re.match(r"v0\b", self.version.lower()) else None
        return tuple(int(part or 0) for part in found.groups())

    def told(self) -> str:
        """What a person said of the workload and the hardware, in one line of lower case."""
        words = (r.text for prefix in ("workload:", "hardware:") for r in self.under(prefix))
        return " | ".join(words).lower()


MOST_LINES = 60
LAST_OF_V0 = (0, 7, 3)
"""Before V1 was the default."""
SERIES = frozenset({"vllm", "sglang", "llamacpp", "headrace", "log", "process", "http", "machine"})
"""Prefixes whose readings come again with every scrape."""


def merged(parts: Iterable[Evidence]) -> Evidence:
    together = Evidence()
    for part in parts:
        together |= part
    return together
