"""The host's memory, which is not the KV pool: what grows, what is only files that were read, what killed."""

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.finding import Advice, Fact, Finding, Label, Severity
from headrace.diagnose.load import load_of, share
from headrace.diagnose.rules.support import TOLD_OF_THE_HOST, TOLD_OOM, fact, said, start_failed


def host_memory_grows(e: Evidence) -> Iterator[Finding]:
    """Host memory is not the KV pool: a resident size that climbs with uptime ends at the container's
    limit.
    """
    sizes = [
        r
        for r in (*e.under("host:"), *e.under("process_resident_memory"))
        if r.numbers and _IS_MEMORY.search(r.name)
    ]
    for reading in sizes:
        values = list(reading.numbers)
        if _GIVEN_BACK.search(reading.name):
            continue
        grows = (
            len(values) >= 2 and values[0] > 0 and all(b >= 0.97 * a for a, b in itertools.pairwise(values))
        )
        if grows and values[-1] > 1.5 * values[0]:
            yield _host_memory(
                e,
                f"Host memory grew from {values[0]:,.4g} to {values[-1]:,.4g}",
                (fact(e, reading.name),),
                0.8,
            )
            return
    used = [r for r in sizes if r.last and not re.search(r"limit|total|max|available|free", r.name)]
    bound = [r for r in sizes if r.last and re.search(r"limit|total|max", r.name)]
    several = sorted((r.last or 0.0, r.name) for r in used)
    if bound and used and (used[-1].last or 0) > 0.9 * (bound[0].last or 0):
        yield _host_memory(
            e,
            "The process has almost all of the host's memory",
            (fact(e, used[-1].name), fact(e, bound[0].name)),
            0.75,
        )
    elif len(several) > 1 and several[-1][0] > 1.5 * several[0][0] > 0:
        yield _host_memory(
            e,
            f"Host memory is {several[-1][0] / several[0][0]:.1f} times what it was",
            tuple(fact(e, n) for _, n in several[:3]),
            0.75,
        )
    else:
        yield from _ended_by_the_host(e, tuple(fact(e, r.name) for r in bound[:1]))


def page_cache_is_counted(e: Evidence) -> Iterator[Finding]:
    """The kernel keeps files that were read for as long as nobody needs the room, up to the limit of a
    container, and its tools count that as used: weights that were loaded stand there.
    """
    own = [r for r in e.under("host:") if re.search(r"rss|resident|anon", r.name) and r.numbers]
    cached = [r for r in e.under("host:") if re.search(r"page_?cache|buff_?cache", r.name) and r.numbers]
    grows = own and own[0].numbers[-1] > 1.2 * own[0].numbers[0]
    killed = bool(e.of("killed")) or _KILLED.search(e.told()) is not None or "Killed" in e.lines
    if not own or not cached or grows or killed or start_failed(e):
        return
    if max(own[0].numbers) < SMALL_BESIDE * max(cached[0].numbers):
        yield Finding(
            Label.MEASUREMENT,
            f"What fills the host's memory is the page cache, {cached[0].last:,.4g} beside "
            f"{own[0].last:,.4g} of the process: it is given back when somebody asks",
            (fact(e, own[0].name), fact(e, cached[0].name)),
            Advice(
                "nothing; watch the working set without files (container_memory_rss, anon of memory.stat)",
                "none",
                verify="rss under load",
            ),
            Severity.NOTE,
            0.8,
            explains=frozenset({Label.HOST_MEMORY, Label.UNDETERMINED}),
        )


_KILLED = re.compile(r"\bkilled\b|oom ?-?kill|\b137\b|evict")
SMALL_BESIDE = 0.5
"""Of the cache: a process that has less is not what fills the memory."""


def _ended_by_the_host(e: Evidence, bound: tuple[Fact, ...]) -> Iterator[Finding]:
    """What lines and people say where no number does."""
    if full := _shared_memory_full(e):
        yield _host_memory(
            e, "Shared memory of the host is full: workers cannot make their segments", full, 0.85
        )
    elif _grows_as_told(e):
        yield _host_memory(
            e,
            "Memory of the processes grows until the container's or the host's limit ends them, as was told",
            bound,
            0.75,
        )
    elif (killed := e.of("killed")) and _is_starting(e) and "oom" in killed[0].text.lower():
        yield replace(
            _host_memory(
                e,
                "The container's limit on host memory ends the server while it starts",
                (Fact(killed[0].text, killed[0].where),),
                0.8,
            ),
            advice=Advice(
                "a higher memory limit of the container: each GPU has a process of its own with some GB, and "
                "/dev/shm in memory (emptyDir with medium: Memory) counts; no --safetensors-load-strategy "
                "eager, which reads whole files into it",
                "the start comes to its end",
                "memory of the node",
                "no OOMKilled; 'Application startup complete' in the log",
            ),
        )
    elif killed:
        yield _host_memory(
            e,
            "The kernel or the container's limit killed a process",
            (Fact(killed[0].text, killed[0].where),),
            0.7,
        )


def _is_starting(e: Evidence) -> bool:
    """Whether it was seen before it was up, and never at work."""
    return bool(e.of("not_up_yet", "probe_failed", "load_began")) and not (
        e.counts.get("ready") or e.counts.get("stats") or load_of(e).running
    )


_GROWS = re.compile(r"(?:memory|rss|ram)\b.{0,60}(?:grow|increas|climb|leak|rise|creep)|leak")


def _grows_as_told(e: Evidence) -> bool:
    """Of the host's memory, not of a card's, and ended by it."""
    told = e.told()
    ended = TOLD_OOM.search(told) or re.search(r"oom ?-?kill|killed|restart|exit code 137", told)
    return bool(TOLD_OF_THE_HOST.search(told) and _GROWS.search(told) and ended)


def _shared_memory_full(e: Evidence) -> tuple[Fact, ...]:
    used = [r for r in e.under("host:") if "shm" in r.name and r.last is not None and share(r.last) >= 0.95]
    return tuple(fact(e, r.name) for r in used) + tuple(said(event) for event in e.of("shm_full")[:1])


_GIVEN_BACK = re.compile(r"page_?cache|buff|limit|total|max|available|free|capacity")
"""What is a bound, or given back as soon as somebody asks."""
_IS_MEMORY = re.compile(r"rss|resident|host:.*(?:memory|mem_|ram|heap|shm|swap)|leak")


def _host_memory(e: Evidence, claim: str, facts: tuple[Fact, ...], confidence: float) -> Finding:
    return Finding(
        Label.HOST_MEMORY,
        claim,
        facts,
        Advice(
            "find what grows: multi-modal and processor caches (--mm-processor-cache-gb), "
            "--kv-offloading-size, shared memory of many workers; a newer version for known leaks. A "
            "larger limit only moves the date",
            "the process lives",
            "smaller caches: more preprocessing",
            "process_resident_memory_bytes over a day",
        ),
        Severity.CRITICAL if e.counts.get("killed") else Severity.WARNING,
        confidence,
        explains=frozenset({Label.STALL, Label.UNDETERMINED, Label.INTERCONNECT}),
    )


RULES = (host_memory_grows, page_cache_is_counted)
