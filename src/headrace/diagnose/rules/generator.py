"""Load generators: what they send, when they send it, and what their numbers leave out."""

import re
from collections.abc import Iterator

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.finding import Advice, Fact, Finding, Label, Severity
from headrace.diagnose.load import load_of, share
from headrace.diagnose.quantities import quantities
from headrace.diagnose.rules.cache import hit_rate
from headrace.diagnose.rules.machine import share_of_bandwidth
from headrace.diagnose.rules.support import fact, prompt_tokens, start_failed

HARDLY_CACHED = 0.5
"""Prefix hits below it: the same prompts again do not explain what is measured."""


def one_at_a_time(e: Evidence) -> Iterator[Finding]:
    """An engine batches what is there at the same time: a client that waits for each answer before it asks
    again leaves the card to one stream, whatever the settings.
    """
    load, single = load_of(e), _sends_singly(e)
    measured = [q for q in quantities(e) if not q.is_rate or q.what in {"decode", "generation", "prefill"}]
    alone = bool(load.running) and load.peak_running <= 1 and load.peak_waiting == 0 and load.peak_kv < 0.5
    several = _means_several(e)
    if measured or start_failed(e) or any(e.under("startup:")) or not (single or (alone and several)):
        return
    if load.peak_running > 1 or any(e.under("sweep:")) or share_of_bandwidth(e) is not None:
        return
    if max(prompt_tokens(e), default=0.0) >= LONG_PROMPT:
        return  # one long prompt fills the steps by itself
    yield Finding(
        Label.CLIENT,
        "Requests come one at a time, so nothing is batched: the server has room for more",
        tuple(fact(e, r.name) for r in e.under("workload:") if r.last == 1)[:2]
        + (Fact(f"{load.peak_running:g} running, none waiting"),) * bool(load.running),
        Advice(
            "send requests beside each other (an async client, several threads or processes, a batch)",
            "throughput nearly in proportion, until it bends",
            "each token takes a little longer",
            "num_requests_running above 1",
        ),
        Severity.NOTE,
        0.6,
        also=(Label.EXPECTED,),
        explains=frozenset({Label.UNDETERMINED}),
    )


LONG_PROMPT = 8192
_SINGLY = re.compile(r"concurren|in_flight|parallel(?!_size)")


def _sends_singly(e: Evidence) -> bool:
    return any(r.last == 1 for p in ("workload:", "client:") for r in e.under(p) if _SINGLY.search(r.name))


def _means_several(e: Evidence) -> bool:
    """Whether a batch, or many requests, were meant to be sent."""
    names = re.compile(r"batch|num_prompts|requests|users|clients")
    return any((r.last or 0) > 8 for r in e.under("workload:") if names.search(r.name))


def cached_synthetic_prompts(e: Evidence) -> Iterator[Finding]:
    """Prompts drawn at random share nothing: where they hit the prefix cache they were sent before, and the
    numbers are of a cache that real traffic will not have.
    """
    rate, names = hit_rate(e)
    drawn = _DRAWN.search(e.told())
    if rate is not None and rate > LOOKS_CACHED and drawn and not load_of(e).preemptions:
        yield Finding(
            Label.MEASUREMENT,
            f"{rate:.0%} of {drawn[0]} prompts hit the prefix cache: they were sent before, and TTFT is "
            f"flattered",
            tuple(fact(e, name) for name in names),
            Advice(
                "another --seed for every run, a unique beginning for each prompt, or "
                "--no-enable-prefix-caching for the benchmark",
                "numbers that hold for traffic that shares nothing",
                "none",
                "prefix_cache_hits_total does not grow during the run",
            ),
            Severity.NOTE,
            0.8,
            also=(Label.CLIENT,),
            explains=frozenset({Label.UNDETERMINED, Label.CLIENT, Label.PREFIX_MISS}),
        )


LOOKS_CACHED = 0.3
_DRAWN = re.compile(
    r"\b(?:synthetic|dummy|lorem)\b|\brandom(?=[ "
    r"_-]?(?:$|\||data|prompts?|tokens?|inputs?|text|seed))|(?<=\| )random(?= ?(?:\||$))"
)


def same_prompts_again(e: Evidence) -> Iterator[Finding]:
    """A generator with a fixed seed sends the same prompts: from the second run on they hit the prefix
    cache.
    """
    names = " ".join(r.name for r in (*e.under("workload:"), *e.under("client:"), *e.under("runs:")))
    seeded = e.number("workload:seed") is not None or "seed" in names
    again = re.search(
        r"repeat|same_(?:server|seed)|one_seed|fixed_seed|long_lived|second_run|rerun|warm_cache|same_prompts|duplicate",
        names,
    )
    rate, _ = hit_rate(e)
    if rate is not None and rate < HARDLY_CACHED:
        return
    if any(r.numbers and max(r.numbers) == 0 and "hit" in r.name for r in e.readings.values()):
        return
    gain = next(
        (r.last for r in e.under("client:") if re.search(r"gain|speedup|(?<![a-z])ratio", r.name)), None
    )
    if (seeded and (again or gain)) or re.search(r"duplicate_prompts|same_prompts|identical", names):
        yield Finding(
            Label.CLIENT,
            "The benchmark sent the same prompts to a server that remembers them: later runs measure "
            "the cache",
            tuple(fact(e, r.name) for r in (*e.under("workload:"), *e.under("client:")))[:4],
            Advice(
                "another --seed for every run, or POST /reset_prefix_cache between them, or "
                "--no-enable-prefix-caching",
                "runs that can be compared",
                "none",
                "prefix_cache_hits_total does not grow during the run",
            ),
            Severity.NOTE,
            0.8,
            also=(Label.MEASUREMENT,),
            explains=frozenset({Label.UNDETERMINED, Label.PREFIX_MISS}),
        )


def late_client(e: Evidence) -> Iterator[Finding]:
    """Time before a request left the client is not the server's, and some generators leave it out of TTFT."""
    lag = e.number("client:dispatch_lag_p99_s")
    own = [q for q in quantities(e) if "client" in q.situation and q.what == "queue"]
    cpu = [share(r.last) for r in e.under("client:") if r.last is not None and "cpu" in r.name]
    if (lag or 0) > 0.25 or any(q.last > 0.25 for q in own) or (cpu and max(cpu) > 0.9):
        yield Finding(
            Label.CLIENT,
            "Requests wait in the load generator before they are sent",
            tuple(fact(e, q.name) for q in own[:2])
            or tuple(fact(e, r.name) for r in e.under("client:dispatch"))[:1],
            Advice(
                "more CPU or processes for the client, or no --max-concurrency below what the rate "
                "needs; count latency from when a request was due",
                "numbers of the server alone",
            ),
            Severity.WARNING,
            0.75,
            also=(Label.MEASUREMENT,),
        )


def fewer_than_asked(e: Evidence) -> Iterator[Finding]:
    """A generator that sends less than its rate while the server has no queue is the slow part."""
    asked = e.number(
        "workload:request_rate",
        "workload:target_rps",
        "workload:rps",
        "client:target_rps",
        "client:asked_rps",
    )
    sent = e.number(
        "client:achieved_rps",
        "client:sent_rps",
        "client:actual_rps",
        "client:request_rate",
        "client:requests_per_s",
    )
    load = load_of(e)
    if (
        asked
        and sent
        and sent < 0.8 * asked
        and load.waiting
        and load.peak_waiting == 0
        and not start_failed(e)
    ):
        yield Finding(
            Label.CLIENT,
            f"{sent:g} of {asked:g} requests a second were sent, and the server had no queue",
            tuple(fact(e, r.name) for r in e.under("client:"))[:3],
            Advice(
                "more CPU or processes for the generator; check delivered against asked rates",
                "the load that was meant",
            ),
            Severity.WARNING,
            0.75,
        )


def waits_in_the_generator(e: Evidence) -> Iterator[Finding]:
    """A generator with a rate and a cap on concurrency makes requests wait for its own semaphore, and
    starts their clock after it: TTFT looks low.
    """
    cap, rate = e.number("workload:max_concurrency"), e.number("workload:request_rate")
    if (
        cap
        and (rate or e.text("workload:request_rate") == "inf")
        and not load_of(e).running
        and not start_failed(e)
    ):
        yield Finding(
            Label.CLIENT,
            f"Requests beyond {cap:g} wait in the generator, and their TTFT does not count that",
            (fact(e, "workload:max_concurrency"), fact(e, "workload:request_rate")),
            Advice(
                "a rate alone (open loop), or client_queue_time beside TTFT", "latencies that users would see"
            ),
            Severity.NOTE,
            0.6,
            also=(Label.MEASUREMENT,),
            explains=frozenset({Label.UNDETERMINED}),
        )


def waits_at_the_gate(e: Evidence) -> Iterator[Finding]:
    """A generator that keeps no more than so many open and counts TTFT from when a request was due: with more
    prompts than that, TTFT is the turn at its own gate.
    """
    prompts, gate = (
        e.series("sweep:num_prompts", "sweep:requests"),
        e.series("sweep:concurrency", "sweep:max_concurrency"),
    )
    firsts = next((q for q in quantities(e, ("sweep:",)) if q.what == "ttft" and not q.is_rate), None)
    if firsts is None or not len(prompts) == len(gate) == len(firsts.values) or load_of(e).running:
        return
    beyond = [(n / c, t) for n, c, t in zip(prompts, gate, firsts.values, strict=True) if n > c > 0]
    inside = [t for n, c, t in zip(prompts, gate, firsts.values, strict=True) if n <= c]
    if beyond and inside and max(t for _, t in beyond) > 1.5 * max(inside):
        yield Finding(
            Label.MEASUREMENT,
            f"TTFT grows from {max(inside):.2f} s where all may be open to "
            f"{max(t for _, t in beyond):.2f} s where "
            f"{max(turns for turns, _ in beyond):g} times as many take turns: it holds the "
            "generator's own queue",
            (fact(e, firsts.name), Fact(f"{prompts[-1]:g} prompts, {gate[-1]:g} open at once")),
            Advice(
                "as many prompts as may be open, or TTFT from when a request was sent; a rate "
                "without a cap to "
                "see the server's queue",
                "TTFT of the server alone",
                "none",
                "vllm:time_to_first_token_seconds beside the client's",
            ),
            Severity.NOTE,
            0.75,
            also=(Label.CLIENT,),
            explains=frozenset({Label.UNDETERMINED, Label.QUEUEING, Label.COMPUTE}),
        )


RULES = (
    one_at_a_time,
    cached_synthetic_prompts,
    same_prompts_again,
    late_client,
    waits_in_the_generator,
    fewer_than_asked,
    waits_at_the_gate,
)
