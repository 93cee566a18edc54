"""Load that keeps a machine busy below its knee, from a short look at how fast it is.

    seconds of a document -> document_length      Probe -> fit -> Rates      time left -> plan_runs
    MixedWorkload -> typical -> the same under a seed whose timetable is what the rates promise
    MixedWorkload + how it went -> keeps_up | lighter

A tuner that offers every machine the same load finds nothing: a fast one is idle, a slow one is
drowned, and settings matter in between. Here documents are as long as takes seconds to read, and a
share of the machine goes to each class: enough documents for short requests to meet them often,
enough short ones for a P95, and room to spare.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from headrace.workload.mixed import LONG, MixedWorkload

DOCUMENT_S = 6.0
"""Seconds that the prompt of a document shall take alone: what makes people look for a tuner."""
LEAST_DOCUMENT_TOKENS = 1200
MOST_DOCUMENT_TOKENS = 4000
LONG_SHARE = 0.24
"""Of the machine's time, spent on prompts of documents. Together with the short ones well below the
knee: a shared machine that slows down by half while it is measured must not be drowned by that."""
SHORT_SHARE = 0.18
MOST_SHORT_RPS = 20.0
"""More tells nothing more about a P95, and makes the client a part of the load."""

MOST_OVERRUN = 1.2
"""Time that all answers may take, as a share of the time in which requests were due."""
ROOM_TO_SPARE = 0.7
ENOUGH_SHORT = 40
"""Short requests that a run should hold for its P95 to mean something: better fewer candidates."""
ENOUGH_LONG = 5
"""Documents that a run should hold, so that no single one decides."""
LEAST_DURATION_S = 12.0
MOST_DURATION_S = 180.0
QUIET_END_S = 1.5 * DOCUMENT_S
"""Without a new document before a run's end, so that it ends with short answers and throughputs
compare the whole run, not how long the last document took. At most `QUIET_SHARE` of the run."""
QUIET_SHARE = 0.30
TOLERANCE = 0.1
"""How far the number of a class's requests may be from the expected one."""
_SEEDS = 1000


@dataclass(frozen=True, slots=True)
class Probe:
    """What one document and a handful of short requests took on the idle server."""

    document_tokens: int
    document_s: float
    """To its first token."""
    short_each_s: float
    """Of a short request among several at once: their time together by their number."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Requests a second, in two significant digits, as a person would choose them."""

    short_rps: float
    long_rps: float


def document_length(tokens: int, took_s: float, most_tokens: int = MOST_DOCUMENT_TOKENS) -> int:
    """Tokens of a document that takes seconds here, where one of `tokens` `took_s`."""
    most = min(most_tokens, MOST_DOCUMENT_TOKENS)
    return int(_two_digits(min(most, max(LEAST_DOCUMENT_TOKENS, DOCUMENT_S * tokens / took_s))))


def fit(probe: Probe) -> Rates:
    """Rates that spend their shares of the machine."""
    return Rates(
        short_rps=_two_digits(min(MOST_SHORT_RPS, SHORT_SHARE / probe.short_each_s)),
        long_rps=_two_digits(LONG_SHARE / probe.document_s),
    )


def keeps_up(workload: MixedWorkload, took_s: float) -> bool:
    """Whether a server that took so long to answer a workload stayed below its knee."""
    return took_s <= MOST_OVERRUN * workload.duration_s


def lighter(workload: MixedWorkload, took_s: float) -> MixedWorkload:
    """What a server that fell behind can carry, with room to spare."""
    share = ROOM_TO_SPARE * workload.duration_s / took_s
    return replace(
        workload,
        short_rps=_two_digits(workload.short_rps * share),
        long_rps=_two_digits(workload.long_rps * share),
    )


def plan_runs(
    left_s: float, around_s: float, numbers_of_runs: Sequence[int], workload: MixedWorkload
) -> float:
    """Seconds that each run may send when it also takes `around_s` to start, warm up, drain and stop.

    Room is made for the first of the numbers of runs, the largest first, that leaves a run long
    enough to hold enough requests of both classes; else for the last of them.
    """
    rates = ((ENOUGH_SHORT, workload.short_rps), (ENOUGH_LONG, workload.long_rps))
    enough_s = max(enough / rate for enough, rate in rates if rate)
    durations_s = [left_s / runs - around_s for runs in numbers_of_runs]
    duration_s = next((each for each in durations_s if each >= enough_s), durations_s[-1])
    return float(round(min(MOST_DURATION_S, max(LEAST_DURATION_S, duration_s))))


def typical(workload: MixedWorkload) -> MixedWorkload:
    """The same workload under the first seed, from its own on, whose timetable is what its rates promise.

    A short run of a Poisson process may by chance have no document at all, or end with three. Of
    such timetables little can be learned, so seeds are passed over until both classes have the
    numbers expected and the end is quiet. Where none does, the nearest of those looked at is taken.
    """
    # Due times do not depend on lengths, and short prompts are quicker to look at.
    brief = replace(workload, short_prompt_tokens=(2, 2), long_prompt_tokens=(2, 2))
    return replace(workload, seed=min(_seeded(brief), key=_oddity).seed)


def _seeded(workload: MixedWorkload) -> Iterator[MixedWorkload]:
    for seed in range(workload.seed, workload.seed + _SEEDS):
        candidate = replace(workload, seed=seed)
        yield candidate
        if _oddity(candidate) == 0:
            return


def _oddity(workload: MixedWorkload) -> float:
    """How far a timetable is from the typical one; 0 is near enough."""
    arrivals = workload.arrivals()
    long_due = [arrival.due_at for arrival in arrivals if arrival.ask.request_class == LONG]
    short_wanted = workload.short_rps * workload.duration_s
    long_wanted = max(1, round(workload.long_rps * workload.duration_s)) if workload.long_rps else 0
    quiet_s = min(QUIET_END_S, QUIET_SHARE * workload.duration_s)
    too_late_s = max(long_due, default=0.0) - (workload.duration_s - quiet_s)
    return (
        max(0.0, abs(len(long_due) - long_wanted) - TOLERANCE * long_wanted)
        + max(0.0, abs(len(arrivals) - len(long_due) - short_wanted) - max(1.0, TOLERANCE * short_wanted))
        + max(0.0, too_late_s / workload.duration_s)
    )


def _two_digits(amount: float) -> float:
    return float(f"{amount:.2g}")
