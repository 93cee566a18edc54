"""Is B faster than A? From slices of the same load sent to each in turns.

    A B  B A  A B  B A ...      each pair the same requests --> log(B / A) of each pair --> mean, interval

The unit is the pair of slices, not the request: requests of one slice share its queues and whatever else
the machine did. Turns take drift out, and swapping who goes first takes out what going first does. Latencies
vary in proportion to their size, so logarithms are compared; Student's t pays for knowing their scatter
from a handful of pairs. A difference smaller than `LEAST` is called none, however sure. Of two dozen figures
some differ by chance when a server is compared with itself, so better and worse are said of those alone
that hold together (Holm 1979). Of fewer than `FEWEST_PAIRS` pairs there is no interval and no verdict: one
difference says nothing of its scatter, and by two of them 95 % reach from a thousandth to a thousandfold.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import atan, cos, pi, sin

import numpy as np

from headrace.core.measurement import ALL, Measurement
from headrace.measure.summary import ClassSummary, Percentiles, summarise

LEAST = 0.02
FEWEST_PAIRS = 3
"""From so many on an interval is given, and a verdict."""
MOST_PAIRS = 100
"""Beyond so many nobody is told that they would decide."""
WRONG = 0.05
"""Of comparisons between two alike, so many call some figure better or worse, at most."""
# Two-sided 95 % points of Student's t for 1, 2, ... degrees of freedom (any statistics table).
_T975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145)


class Verdict(StrEnum):
    """Of B beside A."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"
    """Sure to differ by less than `LEAST`."""
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure of one class."""

    request_class: str
    figure: str
    a: float
    b: float
    """Geometric means over the slices."""
    ratio: float
    """B over A."""
    ratios: tuple[float, ...]
    """Of each pair."""
    between: tuple[float, float] | None
    """95 % interval of the ratio, of this figure alone; None of fewer pairs than `FEWEST_PAIRS`."""
    p: float
    """Chance of at least this ratio, either way, if there was no difference."""
    verdict: Verdict

    @property
    def is_alone(self) -> bool:
        """It differs by its own interval, but not among all figures."""
        if self.between is None or self.verdict is not Verdict.INCONCLUSIVE:
            return False
        low, high = self.between
        return high < 1 or low > 1


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A class that nothing is said of, since some slice brought no answer to it."""

    request_class: str
    side: str
    """"A" or "B"."""
    pair: int
    """The first such, from 1."""
    requests: int
    """Due in it, all of which failed; 0 where none was due."""


@dataclass(frozen=True, slots=True)
class _Figure:
    name: str
    of: Callable[[ClassSummary], float | None]
    is_latency: bool


def _latency(name: str, of: Callable[[ClassSummary], Percentiles | None]) -> Iterator[_Figure]:
    def p50(summary: ClassSummary) -> float | None:
        found = of(summary)
        return found.p50 if found else None

    def p95(summary: ClassSummary) -> float | None:
        found = of(summary)
        return found.p95 if found else None

    yield _Figure(f"{name} P50", p50, is_latency=True)
    yield _Figure(f"{name} P95", p95, is_latency=True)


_FIGURES = (
    *_latency("TTFT", lambda summary: summary.ttft_s),
    *_latency("ITL", lambda summary: summary.itl_s),
    *_latency("E2E", lambda summary: summary.e2e_s),
    _Figure("output tokens/s", lambda summary: summary.output_tokens_per_s, is_latency=False),
    _Figure("answered", lambda s: 1 - s.failed / s.requests if s.requests else None, is_latency=False),
)


def order(pairs: int) -> Iterator[tuple[str, str]]:
    """Who goes first, pair by pair."""
    for number in range(pairs):
        yield ("a", "b") if number % 2 == 0 else ("b", "a")


Pairs = Sequence[tuple[Measurement, Measurement]]
"""Of A and B."""
_Summaries = Sequence[tuple[dict[str, ClassSummary], dict[str, ClassSummary]]]


def differences(pairs: Pairs) -> list[Difference]:
    """A figure that some slice lacks is left out; `left_out` says of which classes."""
    both = _summaries(pairs)
    return _together(
        [
            found
            for name in _shown(both)
            for figure in _FIGURES
            if (found := _difference(name, figure, both)) is not None
        ]
    )


def left_out(pairs: Pairs) -> list[LeftOut]:
    """Where one of the two answered nothing of a class in some slice: worse than any ratio."""
    both = _summaries(pairs)
    return [found for name in _shown(both) if (found := _unanswered(name, both)) is not None]


def _unanswered(name: str, both: _Summaries) -> LeftOut | None:
    for number, sides in enumerate(both, 1):
        for side, summaries in zip("AB", sides, strict=True):
            summary = summaries.get(name)
            if summary is None or summary.requests == summary.failed:
                return LeftOut(name, side, number, summary.requests if summary else 0)
    return None


def _summaries(pairs: Pairs) -> _Summaries:
    return [(summarise(a), summarise(b)) for a, b in pairs]


def _shown(both: _Summaries) -> list[str]:
    """A single class is not shown twice."""
    names = sorted({name for a, b in both for name in (*a, *b)} - {ALL})
    return names if len(names) == 1 else [*names, ALL]


def pairs_to_decide(difference: Difference, figures: int) -> int | None:
    """So many pairs would call it better or worse, among so many figures, were it as far off and did pairs
    scatter as they did: about, as both are known from a few. None where it is not far enough off, for what
    is decided, of too few pairs, and beyond `MOST_PAIRS`.
    """
    shifts = np.log(difference.ratios)
    is_open = difference.verdict is Verdict.INCONCLUSIVE and abs(difference.ratio - 1) >= LEAST
    if not is_open or shifts.size < FEWEST_PAIRS:
        return None
    t_of_one = abs(float(shifts.mean())) / float(shifts.std(ddof=1))
    for count in range(shifts.size + 1, MOST_PAIRS + 1):
        if p_value(t_of_one * count**0.5, count - 1) <= WRONG / figures:
            return count
    return None


def _together(found: Sequence[Difference]) -> list[Difference]:
    """Better or worse stay those that hold together: the surest at `WRONG` / n, the next at / (n - 1), …"""
    held = set[int]()
    by_chance = sorted(range(len(found)), key=lambda place: found[place].p)
    for place in by_chance:
        if found[place].p > WRONG / (len(found) - len(held)):
            break
        held.add(place)
    return [
        each if place in held or each.verdict is Verdict.SAME else replace(each, verdict=Verdict.INCONCLUSIVE)
        for place, each in enumerate(found)
    ]


def t975(freedom: int) -> float:
    """Two-sided 95 % point of Student's t, for one degree of freedom or more."""
    return _T975[min(freedom, len(_T975)) - 1]


def p_value(t: float, freedom: int) -> float:
    """Of Student's t, two-sided. Abramowitz and Stegun 26.7.3 and 26.7.4, for whole degrees of freedom."""
    angle = atan(abs(t) / freedom**0.5)
    odd = freedom % 2
    term = cos(angle) if odd else 1.0
    total = 0.0
    for k in range(1, freedom // 2 + 1):
        total += term
        term *= cos(angle) ** 2 * ((2 * k) / (2 * k + 1) if odd else (2 * k - 1) / (2 * k))
    inside = 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total
    return max(0.0, 1.0 - inside)


def _difference(name: str, figure: _Figure, both: _Summaries) -> Difference | None:
    values = [(figure.of(a[name]), figure.of(b[name])) for a, b in both if name in a and name in b]
    known = [(a, b) for a, b in values if a and b]
    if len(known) < len(both) or len(known) < 2:
        return None
    logs = np.log(np.array(known))
    change = logs[:, 1] - logs[:, 0]
    scatter = float(change.std(ddof=1)) / len(change) ** 0.5
    error = t975(len(change) - 1) * scatter
    shift = float(change.mean())
    certain = 0.0 if shift else 1.0
    p = p_value(shift / scatter, len(change) - 1) if scatter else certain
    between = (float(np.exp(shift - error)), float(np.exp(shift + error)))
    has_interval = len(change) >= FEWEST_PAIRS
    a, b = np.exp(logs.mean(axis=0)).tolist()
    return Difference(
        request_class=name,
        figure=figure.name,
        a=a,
        b=b,
        ratio=float(np.exp(shift)),
        ratios=tuple(np.exp(change).tolist()),
        between=between if has_interval else None,
        p=p,
        verdict=_verdict(*between, is_latency=figure.is_latency) if has_interval else Verdict.INCONCLUSIVE,
    )


def _verdict(low: float, high: float, *, is_latency: bool) -> Verdict:
    if high < 1 + LEAST and low > 1 - LEAST:
        return Verdict.SAME
    if high < 1:
        return Verdict.BETTER if is_latency else Verdict.WORSE
    if low > 1:
        return Verdict.WORSE if is_latency else Verdict.BETTER
    return Verdict.INCONCLUSIVE
