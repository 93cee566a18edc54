"""Preemptions beside what they cost: V0's swapping, and a few among many that all ended well."""

from collections.abc import Iterator

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.finding import Advice, Fact, Finding, Label, Severity
from headrace.diagnose.load import load_of
from headrace.diagnose.rules.queue import KV_FULL, few_of_many, more_kv
from headrace.diagnose.rules.support import fact, start_failed


def swapped_out(e: Evidence) -> Iterator[Finding]:
    """V0 copies a group of sequences (n, beam search) to host memory when blocks run out: it makes no token
    until it fits again.
    """
    name = next(
        (n for n in ("vllm:num_requests_swapped", "log:swapped") if max(e.series(n), default=0.0) > 0), ""
    )
    if not name or start_failed(e):
        return
    most, load = max(e.series(name)), load_of(e)
    if load.peak_kv >= KV_FULL and most < load.peak_running:
        return  # the pool is seen full and most go on: that it is full says more
    yield Finding(
        Label.THRASH,
        f"{most:,.0f} requests were swapped out of the KV pool: it is too small for what runs",
        (fact(e, name), *(fact(e, n) for n in ("num-gpu-blocks-override", "max-num-seqs") if n in e.flags)),
        Advice(
            more_kv(e) + "; n and best_of lower; V1 computes again instead of copying",
            "what was begun goes on",
            "fewer requests at once wait longer for their first token",
            "Swapped: 0 under the same load",
        ),
        Severity.WARNING,
        0.8,
        also=(Label.KV_CAPACITY,),
        explains=frozenset({Label.KV_CAPACITY, Label.UNDETERMINED, Label.STALL, Label.QUEUEING}),
    )


def used_to_the_full(e: Evidence) -> Iterator[Finding]:
    """A pool that is used to the full preempts now and then: where few of the requests were hit and all of
    them ended, a smaller load would only leave blocks empty.
    """
    if not few_of_many(e) or start_failed(e):
        return
    lost, ended = load_of(e).preemptions, e.number("client:completed", "client:completed_requests")
    yield Finding(
        Label.EXPECTED,
        f"{lost:,.0f} preemptions in {ended:,.0f} requests that all ended: a pool in full use, little is "
        f"computed twice",
        (fact(e, load_of(e).names["preemptions"]), Fact(f"{ended:,.0f} requests ended")),
        Advice(
            "nothing, if the P99 of ITL is within the goal; else more KV or fewer --max-num-seqs",
            "none",
            verify="ITL P99 with and without preemptions in the minute",
        ),
        Severity.NOTE,
        0.8,
        rivals=("the few that were hit several times: their E2E latency",),
        explains=frozenset({Label.KV_CAPACITY, Label.UNDETERMINED, Label.STALL}),
    )


RULES = (swapped_out, used_to_the_full)
