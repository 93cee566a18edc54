"""The highest rate at which a server keeps its promises, as two rates that it lies between.

    judge(rate) -> Probe(verdict, …)       find(judge, start) -> Capacity(found, met, missed, probes)

        met     met     met    missed            doubling, or halving where the first one misses
    ----1-------2-------4---|---8------> rate
                        met 5.6  missed 6.7      then geometric means, until the two are near enough
                        met 5.6  missed 6.7      and each end again, with other requests

A run in which the queue grew has missed, whatever its percentiles say: they would be worse in a longer one.
A run that cannot tell (the limit lies in the percentile's interval) is made again, longer. A rate of which
its runs say different things is undecided as well. `met` has no rate below it that did not meet, `missed`
none above it that did not miss; what lies between is undecided. An end was chosen for how its run went,
which may have been luck: so it counts as found only once `PROOFS` further runs agree.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from math import ceil, log, log2

from headrace.measure.goodput import Verdict

NEAR = 1.1
"""No two neighbouring rates are further apart when the search ends."""
FOUND_WITHIN = NEAR**2
"""Missed over met: one undecided rate may be left between them."""
PROOFS = 1
MOST_PROBES = 30
MOST_DOUBLINGS, MOST_HALVINGS = 12, 8
MOST_UNDECIDED = 3
"""In a row, doubling or halving."""
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
    would_do_s: float | None = None
    """A run of so long would have had enough requests to tell; None where it had, or where nobody knows."""


class Found(StrEnum):
    """How the search ended."""

    FOUND = "found"
    """Between `met` and `missed`, both proven and at most `FOUND_WITHIN` apart."""
    NO_STEADY_STATE = "no_steady_state"
    """Even at the lowest rate tried the queue grew."""
    NEVER_MET = "never_met"
    """Steady at the lowest rate tried, and too slow."""
    NEVER_MISSED = "never_missed"
    """At the highest rate tried it still met: the capacity is higher."""
    CLIENT_LIMIT = "client_limit"
    """This client cannot send more."""
    UNDECIDED = "undecided"
    """Between `met` and `missed`, as far as there are two, runs of this length cannot tell."""


Judge = Callable[[float, int, float], Probe]
"""Rate, number of the probe (for other requests each time), times the usual length."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The rates between which the capacity lies."""

    found: Found
    met: float | None
    """The highest rate that met, as did all tried below it."""
    missed: float | None
    """The lowest rate that missed, as did all tried above it."""
    probes: tuple[Probe, ...]


@dataclass(slots=True)
class _Rate:
    """What its runs have said so far."""

    verdicts: list[Verdict] = field(default_factory=list[Verdict])
    longer: float = 1.0

    @property
    def verdict(self) -> Verdict:
        return self.verdicts[0] if len(set(self.verdicts)) == 1 else Verdict.UNDECIDED


@dataclass(slots=True)
class _Search:
    judge: Judge
    probes: list[Probe] = field(default_factory=list[Probe])
    rates: dict[float, _Rate] = field(default_factory=dict[float, _Rate])
    is_clients_limit: bool = False

    def probe(self, rate: float) -> None:
        """Again where the client was disturbed, which may pass; again and longer where it cannot tell."""
        known = self.rates.get(rate, _Rate())
        found = self._once(rate, known.longer)
        if not found.is_valid:
            found = self._once(rate, known.longer)
        if found.is_valid and found.verdict is Verdict.UNDECIDED and known.longer < LONGER:
            known.longer = LONGER
            found = self._once(rate, known.longer)
        if found.is_valid:
            known.verdicts.append(found.verdict)
            self.rates[rate] = known
        self.is_clients_limit = not found.is_valid

    def _once(self, rate: float, longer: float) -> Probe:
        found = self.judge(rate, len(self.probes), longer)
        self.probes.append(found)
        return found

    @property
    def met(self) -> float | None:
        """No rate below it did not meet."""
        return _last_of(Verdict.MET, sorted(self.rates.items()))

    @property
    def missed(self) -> float | None:
        return _last_of(Verdict.MISSED, sorted(self.rates.items(), reverse=True))

    def is_proven(self, rate: float) -> bool:
        return len(self.rates[rate].verdicts) > PROOFS

    def undecided(self, *, upwards: bool) -> int:
        """How many of the outermost rates, on one side, could not be told."""
        count = 0
        for _, known in sorted(self.rates.items(), reverse=upwards):
            if known.verdict is not Verdict.UNDECIDED:
                break
            count += 1
        return count


def _last_of(verdict: Verdict, rates: list[tuple[float, _Rate]]) -> float | None:
    last = None
    for rate, known in rates:
        if known.verdict is not verdict:
            break
        last = rate
    return last


def find(judge: Judge, start: float, on_next: Callable[[int], None] | None = None) -> Capacity:
    """`start` is the first rate tried. Before each, `on_next` is told how many runs are left at least."""
    search = _Search(judge)
    rate: float | None = start
    while rate is not None and not search.is_clients_limit and len(search.probes) < MOST_PROBES:
        if on_next is not None:
            on_next(_fewest_left(search))
        search.probe(rate)
        rate = _next(search, start)
    return Capacity(_ended(search), search.met, search.missed, tuple(search.probes))


def _next(search: _Search, start: float) -> float | None:
    """Which rate would tell most; None when there is nothing more to learn."""
    met, missed = search.met, search.missed
    if missed is None:
        return _beyond(search, start, upwards=True) or (
            _beyond(search, start, upwards=False) if met is None else None
        )
    if met is None:
        return _beyond(search, start, upwards=False)
    between = _between(search, met, missed)
    if between is not None:
        return between
    return next((end for end in (met, missed) if not search.is_proven(end)), None)


def _beyond(search: _Search, start: float, *, upwards: bool) -> float | None:
    """Twice the highest rate, or half the lowest; None where that goes nowhere."""
    rate = 2.0 * max(search.rates) if upwards else 0.5 * min(search.rates)
    is_far = rate > start * 2.0**MOST_DOUBLINGS if upwards else rate < start * 0.5**MOST_HALVINGS
    return None if is_far or search.undecided(upwards=upwards) >= MOST_UNDECIDED else rate


def _between(search: _Search, met: float, missed: float) -> float | None:
    """Where a gap beside either end is wide still."""
    tried = sorted(rate for rate in search.rates if met <= rate <= missed)
    for low, high in (tried[:2], tried[-2:]):
        if high / low > NEAR:
            return (low * high) ** 0.5
    return None


def _fewest_left(search: _Search) -> int:
    """If each run tells at once and moves an end: halvings down to `NEAR`, and the ends once more."""
    met, missed = search.met, search.missed
    if met is None or missed is None:
        sides = 1 if search.rates else 2
        return sides + _halvings(2.0) + 2 * PROOFS
    tried = sorted(rate for rate in search.rates if met <= rate <= missed)
    halvings = min(filter(None, (_halvings(b / a) for a, b in (tried[:2], tried[-2:]))), default=0)
    unproven = sum(not search.is_proven(end) for end in (met, missed))
    return halvings + (max(PROOFS, unproven) if halvings else unproven)


def _halvings(times: float) -> int:
    """Of a gap between two rates, until they are near."""
    return ceil(log2(log(times) / log(NEAR))) if times > NEAR else 0


def _ended(search: _Search) -> Found:
    met, missed = search.met, search.missed
    if search.is_clients_limit:
        return Found.CLIENT_LIMIT
    lowest, highest = search.rates[min(search.rates)], search.rates[max(search.rates)]
    if met is not None and missed is not None:
        is_found = all(map(search.is_proven, (met, missed))) and missed / met <= FOUND_WITHIN
        return Found.FOUND if is_found else Found.UNDECIDED
    if lowest.verdict is Verdict.MISSED:
        last = next(probe for probe in reversed(search.probes) if probe.rate == min(search.rates))
        return Found.NO_STEADY_STATE if last.is_steady is False else Found.NEVER_MET
    return Found.NEVER_MISSED if highest.verdict is Verdict.MET else Found.UNDECIDED
