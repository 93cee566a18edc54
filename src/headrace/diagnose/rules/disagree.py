"""Two numbers of one thing that disagree, where one of them cannot be wrong: then the other is."""

import itertools
import re
from collections.abc import Iterator

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.finding import Advice, Finding, Label, Severity
from headrace.diagnose.load import load_of
from headrace.diagnose.quantities import FIRST, LATER, pairs, quantities
from headrace.diagnose.rules.cache import hit_rate
from headrace.diagnose.rules.support import fact, said, start_failed

REPEATED_FASTER = 3.0
"""So many times faster the same prompt must be when it comes again."""
CLIENT_SEES_MORE = 3.0
_AGAIN = LATER | {"repeat", "again", "cached", "identical", "resent"}
_SAME = re.compile(r"same|identical|again|repeat|resent|exact")


def hits_not_counted(e: Evidence) -> Iterator[Finding]:
    """The same prompt, sent again, has its first token several times sooner: its beginning was found,
    whatever the counter of hits says.
    """
    rate, names = hit_rate(e)
    told = " ".join(f"{r.name} {r.text}" for r in e.under("workload:")).lower()
    found = [
        p
        for p in pairs(quantities(e), _AGAIN, FIRST)
        if p.base.what == "ttft" and p.times_worse >= REPEATED_FASTER
    ]
    if rate != 0.0 or not found or not _SAME.search(told) or start_failed(e):
        return
    yield Finding(
        Label.MEASUREMENT,
        f"The hit counter stands at 0, and the same prompt is {found[0].times_worse:.1f} times faster "
        f"when it comes again: it hits, and is not counted",
        (*(fact(e, name) for name in names), fact(e, found[0].other.name), fact(e, found[0].base.name)),
        Advice(
            "judge the cache by TTFT of a repeated prompt until this path counts its hits; a newer version",
            "none",
            verify="a third, other prompt of that length is slow again: then it was no warm-up",
        ),
        Severity.NOTE,
        0.8,
        rivals=("kernels compiled at the first request: another prompt of that length would be fast too",),
        explains=frozenset({Label.PREFIX_MISS, Label.COLD_START, Label.COMPUTE, Label.UNDETERMINED}),
    )


def counted_as_none(e: Evidence) -> Iterator[Finding]:
    """The log has tokens that were found in a cache, and the counter of them stands at 0: what LMCache still
    needs to load is what it has less what vLLM has itself, so below zero vLLM had more.
    """
    found = [event for event in e.of("lmcache_hit") if event.number("hit")]
    still = [
        r for r in e.readings.values() if r.numbers and _COUNTS_HITS.search(r.name) and max(r.numbers) == 0
    ]
    if not found or not still or start_failed(e):
        return
    line = found[-1]
    hit, load = line.number("hit") or 0.0, line.number("load") or 0.0
    own = f", and vLLM {hit - load:,.0f} itself" if load < 0 else ""
    yield Finding(
        Label.MEASUREMENT,
        f"{still[0].name} stands at 0 while the log finds {hit:,.0f} tokens in the cache{own}",
        (fact(e, still[0].name), said(line)),
        Advice(
            "read vllm:prefix_cache_hits_total / vllm:prefix_cache_queries_total instead; a newer connector",
            "none",
            verify="TTFT of a prompt that is sent twice",
        ),
        Severity.NOTE,
        0.8,
        explains=frozenset({Label.PREFIX_MISS, Label.UNDETERMINED}),
    )


_COUNTS_HITS = re.compile(r"hit_?tokens|(?:cache|prefix)_hits")


def log_below_the_client(e: Evidence) -> Iterator[Finding]:
    """What a client received the server has made: a log that counts fewer tokens counts something else (one
    for several steps, or for an event).
    """
    load = load_of(e)
    received = [
        q
        for q in quantities(e, ("client:",))
        if q.is_rate and q.what in {"decode", "output", "generation", "gen"} and "tok" in q.name
    ]
    if not received or len(load.generated) != 1 or not load.peak_running or start_failed(e):
        return
    made, got = load.generated[0], received[0].last
    if 0 < made < got / CLIENT_SEES_MORE and load.peak_waiting == 0:
        several = [n for n in ("num-scheduler-steps", "stream-interval") if (e.flag(n) or 1) > 1]
        yield Finding(
            Label.MEASUREMENT,
            f"The log has {made:g} tokens a second, the client received {got:g}: the log counts "
            f"something else",
            (fact(e, load.names["generated"]), fact(e, received[0].name), *(fact(e, n) for n in several)),
            Advice(
                "trust the client's count; compare generation_tokens_total over the same time",
                "none",
                verify="sum of the answers' tokens over the time that they took",
            ),
            Severity.NOTE,
            0.8 if several else 0.6,
            rivals=("a line of the log from a time with less work",),
            explains=frozenset({Label.UNDETERMINED, Label.MEMORY_BANDWIDTH, Label.COMPUTE}),
        )


def varies_between_runs(e: Evidence) -> Iterator[Finding]:
    """The same measured several times with nothing varied, and no two agree: what differs between the runs is
    not in the report.
    """
    if list(e.under("sweep:")) or load_of(e).running or start_failed(e):
        return
    for q in quantities(e, ("runs:",)):
        steps = [b - a for a, b in itertools.pairwise(q.values)]
        turns = sum(a * b < 0 for a, b in itertools.pairwise(steps))
        if len(q.values) < 4 or turns < len(steps) - 1 or min(q.values) * AGREE > max(q.values):
            continue
        yield Finding(
            Label.UNDETERMINED,
            f"{min(q.values):.3g} to {max(q.values):.3g} in runs of the same: nothing here says what differs",
            (fact(e, q.name, f"{q.name}: {', '.join(f'{v:g}' for v in q.values[:8])}"),),
            Advice(
                "collect for each run: clocks and power of the card, cores and NUMA node of the processes, "
                "kernels that were tuned at the start (their caches), other users of the machine",
                "the cause by what goes with the slow runs",
            ),
            Severity.WARNING,
            0.6,
        )
        return


AGREE = 1.25
"""Two runs of the same differ by less."""


RULES = (varies_between_runs, hits_not_counted, counted_as_none, log_below_the_client)
