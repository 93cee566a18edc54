"""The highest rate at which a server keeps its promises: doubled until it does not, then halved in between.

    judge(rate) -> Probe(verdict, …)       find(judge, start) -> Capacity(rate, between, …)

        met     met     met    missed            doubling, or halving where the first one misses
    ----1-------2-------4---|---8------> rate
                        met 5.6  missed 6.7      then geometric means, until the two are near enough

A run in which the queue grew has missed, whatever its percentiles say: they would be worse in a longer one.
A run that cannot tell (the limit lies in the percentile's interval) is made again, longer; if that cannot
tell either, the rate is as near to the edge as can be seen, and the search ends. The last rate that met
is proven by one more run with other requests, since it was chosen for having met.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from headrace.measure.goodput import Verdict

NEAR = 1.1
"""Upper over lower bound at which the search ends."""
MOST_PROBES = 16
MOST_DOUBLINGS, MOST_HALVINGS = 12, 8
LONGER = 2.0


@dataclass(frozen=True, slots=True)
class Probe:
    """One run at one rate."""

    rate: float
    verdict: Verdict
    is_steady: bool | None
    why: str
    ttft_p95_s: float | None = None
    """Of all classes together, for a picture."""
    is_valid: bool = True
    """False where the client was the bottleneck: then the rate says nothing of the server."""


class Found(StrEnum):
    """How the search ended."""

    FOUND = "found"
    NO_STEADY_STATE = "no_steady_state"
    """Even at the lowest rate tried the queue grew."""
    NEVER_MET = "never_met"
    """Steady at the lowest rate tried, and too slow."""
    NEVER_MISSED = "never_missed"
    """At the highest rate tried it still met: the capacity is higher."""
    CLIENT_LIMIT = "client_limit"
    """This client cannot send more."""
    UNDECIDED = "undecided"
    """Nothing could be told, even of longer runs."""


Judge = Callable[[float, int, float], Probe]
"""Rate, number of the probe (for other requests each time), times the usual length."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The highest rate that met, and where the true one lies."""

    found: Found
    met: float | None
    missed: float | None
    """The lowest rate that missed."""
    probes: tuple[Probe, ...]


@dataclass(slots=True)
class _Search:
    judge: Judge
    probes: list[Probe] = field(default_factory=list[Probe])
    met: float | None = None
    missed: float | None = None

    def probe(self, rate: float) -> Probe:
        """Again where the client was disturbed, which may pass; again and longer where it cannot tell."""
        found = self._once(rate, 1.0)
        if not found.is_valid:
            found = self._once(rate, 1.0)
        if found.verdict is Verdict.UNDECIDED and found.is_valid:
            found = self._once(rate, LONGER)
        if found.is_valid and found.verdict is Verdict.MET:
            self.met = max(rate, self.met or rate)
        elif found.is_valid and found.verdict is Verdict.MISSED:
            self.missed = min(rate, self.missed or rate)
        return found

    def _once(self, rate: float, longer: float) -> Probe:
        found = self.judge(rate, len(self.probes), longer)
        self.probes.append(found)
        return found

    def ended(self, found: Found) -> Capacity:
        return Capacity(found, self.met, self.missed, tuple(self.probes))


def find(judge: Judge, start: float) -> Capacity:
    """`start` is the first rate tried."""
    search = _Search(judge)
    end = _bracket(search, start) or _narrow(search)
    return search.ended(end)


def _bracket(search: _Search, start: float) -> Found | None:
    """Find a rate that meets below one that misses; else how the search ended."""
    found = search.probe(start)
    factor, most = (2.0, MOST_DOUBLINGS) if found.verdict is Verdict.MET else (0.5, MOST_HALVINGS)
    for step in range(1, most + 1):
        if end := _cannot_tell(search, found):
            return end
        if search.met is not None and search.missed is not None:
            return None
        found = search.probe(start * factor**step)
    if search.met is not None and search.missed is not None:
        return None
    if search.met is not None:
        return Found.NEVER_MISSED
    return Found.NO_STEADY_STATE if found.is_steady is False else Found.NEVER_MET


def _narrow(search: _Search) -> Found:
    assert search.met is not None, "bracketed"
    assert search.missed is not None, "bracketed"
    while search.missed / search.met > NEAR and len(search.probes) < MOST_PROBES:
        found = search.probe((search.met * search.missed) ** 0.5)
        if _cannot_tell(search, found):
            break
    proof = search.judge(search.met, len(search.probes), 1.0)
    search.probes.append(proof)
    if proof.verdict is not Verdict.MISSED:
        return Found.FOUND
    lower = [p.rate for p in search.probes if p.verdict is Verdict.MET and p.rate < search.met]
    search.missed, search.met = search.met, max(lower, default=None)
    return Found.FOUND if search.met is not None else Found.UNDECIDED


def _cannot_tell(search: _Search, found: Probe) -> Found | None:
    if not found.is_valid:
        return Found.CLIENT_LIMIT
    if found.verdict is Verdict.UNDECIDED:
        return Found.FOUND if search.met is not None else Found.UNDECIDED
    return None
