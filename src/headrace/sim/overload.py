"""Did the server keep up, or would its queue have grown for as long as the load went on?

Where it would, every percentile is a matter of how long the run was, and says nothing about the server.

    due |------ first half ------|-- 1 --|-- 2 --| ... |-- 12 --| last request due
                                  requests without a first token, their mean in each twelfth:
                                      4      5   ...      31      trend and scatter of the steps between

In overload a fixed share of what comes stays behind: 1 - capacity / load, whatever the run's length.
Below capacity the queue moves up and down and its steps cancel. So the queue's growth over the second
half is set against the scatter of its own steps (a t statistic). A request counts until its first
token, a few steps where the server keeps up, and not while it decodes: a server that fills up, or that
a ramp fills further, is busier but not behind. A burst is one large step among small ones, which is
scatter and no trend.

On simple queues (M/M/1, M/D/1, lognormal M/G/1; tests/sim/test_overload.py) a few in a hundred runs at
95 % of capacity are called overloaded, and nearly all at 150 % with 2,000 requests. What lies between
the two bounds is called unsettled: the run is too short to tell. So is a queue that came from the first
half and stood: nothing grew, and every first token waited for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from headrace.core.timeline import Timeline
from headrace.workload.backlog import Trend, backlog_trend

PARTS = 12
FEWEST_REQUESTS = 2 * PARTS
"""Due in the second half. With fewer, a part of it holds one request."""
MATERIAL_SHARE = 0.01
"""Growth below this share of what came is of no consequence, however steady."""
SUSPECT_SHARE = 0.05
STANDING_SHARE = 0.1
"""Of the second half: a first token that takes so long waited for what the first half had left behind."""
SURE_T = 3.0
SUSPECT_T = 1.0


class Verdict(StrEnum):
    """What may be said about the load."""

    KEPT_UP = "kept_up"
    OVERLOADED = "overloaded"
    """The queue grew, and would have grown on."""
    UNSETTLED = "unsettled"
    """The run is too short, or ended while the server was still filling up."""


@dataclass(frozen=True, slots=True)
class Load:
    """The verdict, and what it rests on: rates and growth in the second half of the arrivals."""

    verdict: Verdict
    why: str
    """In one clause, with the numbers."""
    due_per_s: float
    begun_per_s: float
    """First tokens a second."""
    queue_growth: float
    """Share of the requests that came and stayed in the queue; negative where it shrank."""

    @property
    def is_steady(self) -> bool | None:
        """As `core.grade.Grade` has it: None where the run is too short to tell."""
        return {Verdict.KEPT_UP: True, Verdict.OVERLOADED: False}.get(self.verdict)


def judge_load(timelines: Sequence[Timeline]) -> Load:
    """From when requests were due and when their first and last tokens came, in any order."""
    due = np.array([timeline.due_at for timeline in timelines])
    first = np.array([timeline.token_at[0] for timeline in timelines])
    last = np.array([timeline.token_at[-1] for timeline in timelines])
    end = float(due.max(initial=0.0))
    start = (float(due.min(initial=end)) + end) / 2
    arrivals = int((due >= start).sum())
    if arrivals < FEWEST_REQUESTS or start == end:
        why = f"requests due in the second half of the time: {arrivals}; a trend shows in {FEWEST_REQUESTS}"
        return Load(Verdict.UNSETTLED, why, 0.0, 0.0, 0.0)
    edges = np.linspace(start, end, PARTS + 1)
    queue = backlog_trend(due, first, edges, arrivals)
    due_per_s = arrivals / (end - start)
    begun_per_s = float(((first >= start) & (first < end)).sum()) / (end - start)
    verdict, why = _verdict(queue, backlog_trend(due, last, edges, arrivals), due_per_s, begun_per_s)
    waited_s = float((first - due)[due >= start].mean())
    if verdict is Verdict.KEPT_UP and waited_s > STANDING_SHARE * (end - start):
        why += (
            f", behind a queue from before that stood for {waited_s:.3g} s of work: a longer run would tell"
        )
        verdict = Verdict.UNSETTLED
    return Load(verdict, why, due_per_s, begun_per_s, queue.share)


def _verdict(queue: Trend, unfinished: Trend, due_per_s: float, begun_per_s: float) -> tuple[Verdict, str]:
    rates = f"{due_per_s:.3g} requests a second came and {begun_per_s:.3g} got a first token"
    if queue.share >= MATERIAL_SHARE and queue.t >= SURE_T:
        return Verdict.OVERLOADED, f"{rates}: {queue.share:.0%} of what came stayed in the queue"
    if queue.share >= SUSPECT_SHARE and queue.t >= SUSPECT_T:
        return Verdict.UNSETTLED, f"{rates}, which may be chance: a longer run would tell"
    if unfinished.share >= SUSPECT_SHARE and unfinished.t >= SURE_T:
        left = f"{unfinished.share:.0%} of what came was still being answered at the end"
        return Verdict.UNSETTLED, f"{left}: the server was filling up"
    return Verdict.KEPT_UP, rates
