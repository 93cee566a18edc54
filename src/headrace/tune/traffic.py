"""Load that keeps a machine busy below its knee, from a short look at how fast it is.

    Probe -> fit(probe) -> Load(document length, rates)      time left -> plan_runs -> seconds a run sends
    MixedWorkload -> typical -> the same under a seed whose timetable is what the rates promise

A tuner that offers every machine the same load finds nothing: a fast one is idle, a slow one is
drowned, and settings matter in between. Here documents are as long as takes seconds to read, and a
share of the machine goes to each class: enough documents for short requests to meet them often,
enough short ones for a P95, and room to spare.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

from headrace.workload.mixed import LONG, SHORT, MixedWorkload

DOCUMENT_S = 6.0
"""Seconds that the prompt of a document shall take alone: what makes people look for a tuner."""
LEAST_DOCUMENT_TOKENS = 1200
MOST_DOCUMENT_TOKENS = 4000
LONG_SHARE = 0.40
"""Of the machine's time, spent on prompts of documents."""
SHORT_SHARE = 0.30
MOST_SHORT_RPS = 20.0
"""More tells nothing more about a P95, and makes the client a part of the load."""

LEAST_DURATION_S = 20.0
"""A shorter run holds too few requests for a P95: better fewer candidates."""
MOST_DURATION_S = 180.0
MOST_CANDIDATES = 3
"""For which room is made; more are tried where runs turn out quicker than planned."""
_QUIET_END = 0.30
"""Last share of a run without a new document, so that runs end with short answers and their
throughputs compare the whole run, not how long the last document took."""
_TOLERANCE = 0.1
"""Of the number of short requests."""
_SEEDS = 300


@dataclass(frozen=True, slots=True)
class Probe:
    """What one document and a handful of short requests took on the idle server."""

    document_tokens: int
    document_s: float
    """To its first token."""
    short_each_s: float
    """Of a short request among several at once: their time together by their number."""


@dataclass(frozen=True, slots=True)
class Load:
    """What to offer. Numbers in two significant digits, as a person would choose them."""

    document_tokens: int
    short_rps: float
    long_rps: float


def fit(probe: Probe, most_document_tokens: int = MOST_DOCUMENT_TOKENS) -> Load:
    """Documents that take seconds, and rates that spend their shares of the machine."""
    tokens_per_s = probe.document_tokens / probe.document_s
    most = min(most_document_tokens, MOST_DOCUMENT_TOKENS)
    tokens = int(_two_digits(min(most, max(LEAST_DOCUMENT_TOKENS, DOCUMENT_S * tokens_per_s))))
    return Load(
        document_tokens=tokens,
        short_rps=_two_digits(min(MOST_SHORT_RPS, SHORT_SHARE / probe.short_each_s)),
        long_rps=_two_digits(LONG_SHARE * tokens_per_s / tokens),
    )


def plan_runs(left_s: float, around_s: float, repeats: int, max_runs: int | None) -> float:
    """How long each run may send when it also takes `around_s` to start, warm up, drain and stop.

    Room is made for the baseline, its candidates and `repeats` runs more; for fewer candidates where
    runs would be too short, and at least for one.
    """
    limit = max_runs or sys.maxsize
    durations_s = (
        left_s / min(1 + candidates + repeats, limit) - around_s
        for candidates in range(MOST_CANDIDATES, 0, -1)
    )
    long_enough_s = next((each for each in durations_s if each >= LEAST_DURATION_S), LEAST_DURATION_S)
    return float(round(min(MOST_DURATION_S, long_enough_s)))


def typical(workload: MixedWorkload) -> MixedWorkload:
    """The same workload under the first seed, from its own on, whose timetable is what its rates promise.

    A short run of a Poisson process may by chance have no long document at all, or end with three.
    Of such timetables nothing can be learned, so seeds are passed over until the numbers of both
    classes are those expected and the last long document is not near the end. Where none is, the
    nearest of those looked at is taken.
    """
    return min(_seeded(workload), key=_oddity)


def _seeded(workload: MixedWorkload) -> Iterator[MixedWorkload]:
    for seed in range(workload.seed, workload.seed + _SEEDS):
        candidate = replace(workload, seed=seed)
        yield candidate
        if _oddity(candidate) == 0:
            return


def _oddity(workload: MixedWorkload) -> float:
    """How far a timetable is from the typical one; 0 is near enough."""
    arrivals = workload.arrivals()
    short = sum(arrival.ask.request_class == SHORT for arrival in arrivals)
    long_due = [arrival.due_at for arrival in arrivals if arrival.ask.request_class == LONG]
    short_wanted = workload.short_rps * workload.duration_s
    long_wanted = max(1, round(workload.long_rps * workload.duration_s)) if workload.long_rps else 0
    last_share = max(long_due, default=0.0) / workload.duration_s
    return (
        abs(len(long_due) - long_wanted)
        + max(0.0, abs(short - short_wanted) - max(1.0, _TOLERANCE * short_wanted))
        + max(0.0, last_share - (1 - _QUIET_END))
    )


def _two_digits(amount: float) -> float:
    return float(f"{amount:.2g}")
