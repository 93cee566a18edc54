"""What the number of running requests says of their sender: people come by themselves, a pool refills."""

import re
from collections.abc import Iterator

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.finding import Advice, Fact, Finding, Label, Severity
from headrace.diagnose.load import increase, load_of
from headrace.diagnose.rules.support import fact, span, start_failed


def keeps_few_open(e: Evidence) -> Iterator[Finding]:
    """Requests that come by themselves are never a steady number for long. Where as many run at nearly every
    look and never one more, while many end and nobody waits, each end lets the next one come: the client, or
    a proxy, has no more connections, threads or coroutines than that.
    """
    load = load_of(e)
    most = load.peak_running
    ended = sum(increase(e, r.name) or 0.0 for r in e.under("vllm:request_success_total{"))
    slots = e.flag("max-num-seqs") or DEFAULT_SLOTS
    at_most = sum(running == most for running in load.running)
    if (
        len(load.running) < FEWEST_LOOKS
        or not 0 < most <= slots / 4
        or ended < 3 * most
        or ended < FEWEST_ENDED
    ):
        return
    if load.waits or load.peak_kv >= 0.5 or at_most < HELD_SHARE[most > 1] * len(load.running):
        return
    yield Finding(
        Label.CLIENT,
        f"Never more than {most:,.0f} at once, though {ended:,.0f} ended meanwhile and nobody waits here: "
        "the client, or a proxy, keeps no more open, and the server has room",
        (fact(e, load.names["running"], span(e, load.names["running"])), fact(e, load.names["waiting"])),
        Advice(
            "look for the queue at the client (connections, threads, a semaphore, a proxy's limit), raise "
            "that if requests wait there, and count latency from when a request was due",
            f"as many at once as were meant: up to {slots:,.0f} run here",
            "each token takes a little longer with more beside it",
            f"num_requests_running above {most:,.0f}",
        ),
        Severity.NOTE,
        0.75,
        rivals=("a test that is meant to keep so many open: then this is its load, and no fault",),
        explains=frozenset({Label.UNDETERMINED}),
    )


FEWEST_LOOKS, FEWEST_ENDED = 8, 8.0
HELD_SHARE = (0.8, 0.5)
"""Of the looks that find just so many: of one request at once, and of more."""
DEFAULT_SLOTS = 128.0

_GATE = re.compile(
    r"(?:litellm|nginx|gateway|envoy|haproxy|proxy|router|ingress|kong|traefik|agent|client|lb)\b.{0,60}?"
    r"(?:max_parallel_requests|max_concurren\w*|max_connections|max_in_?flight|rpm|parallel|slots|lanes)\W{1,3}(\d{1,4})\b"
)


def gate_below_the_slots(e: Evidence) -> Iterator[Finding]:
    """What stands before the server lets fewer through than may run at once: the queue is there, and no
    setting of the server is reached.
    """
    slots, load = e.flag("max-num-seqs"), load_of(e)
    told = " ".join(f"{r.name.partition(':')[2]} {r.text}" for r in e.under("workload:")).lower()
    gate = _GATE.search(told)
    if gate is None or slots is None or load.waits or start_failed(e):
        return
    limit = float(gate[1])
    if not 0 < limit < slots or load.peak_running > limit:
        return
    yield Finding(
        Label.CLIENT,
        f"No more than {limit:g} requests are let through before the server ({gate[0][:60]}), and "
        f"{slots:g} may run",
        (Fact(gate[0][:100]), fact(e, "max-num-seqs")),
        Advice(
            f"raise that limit to {slots:g} or above before any setting of the server",
            "requests wait where they can be batched",
            "each token takes a little longer with more beside it",
            f"num_requests_running above {limit:g}",
        ),
        Severity.WARNING,
        0.75,
        explains=frozenset({Label.UNDETERMINED}),
    )


RULES = (keeps_few_open, gate_below_the_slots)
