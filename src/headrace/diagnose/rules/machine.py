"""Which part of the machine is busy: arithmetic, memory traffic, links, or the CPU."""

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.finding import Advice, Fact, Finding, Label, Severity
from headrace.diagnose.load import load_of, share
from headrace.diagnose.quantities import quantities
from headrace.diagnose.rules.support import (
    TOLD_OF_THE_HOST,
    TOLD_OOM,
    concurrency,
    fact,
    prompt_tokens,
    said,
    start_failed,
)
from headrace.diagnose.sizes import (
    active_parameters_of,
    bytes_per_weight,
    card_of,
    hardware_text,
    model_of,
    tensor_parallel,
)

LONG_CONTEXT = 8192
"""Tokens from which reading KV is felt beside reading weights."""
FAR_BELOW = 0.22
"""Of the same: slower than any kernel that only waits for memory."""
NEAR_BANDWIDTH = 0.3
"""Of a card's bandwidth: real decode kernels reach half to nine tenths of the data sheet."""


def near_bandwidth(e: Evidence) -> Iterator[Finding]:
    """A token of one stream cannot be faster than all active weights are read: bandwidth / bytes."""
    found = share_of_bandwidth(e)
    if found is None or start_failed(e) or not NEAR_BANDWIDTH <= found[0] <= 1.1:
        return
    part, how = found
    yield Finding(
        Label.MEMORY_BANDWIDTH,
        f"One stream makes {part:.0%} of the tokens a second that reading its weights allows",
        (Fact(how),),
        Advice(
            "fewer bytes (fp8, AWQ, a smaller or sparser model), a card with more GB/s, "
            "speculation; more streams at once are nearly free",
            "tokens a second in inverse proportion to bytes",
            "a little quality",
            "tokens a second of one stream",
        ),
        Severity.NOTE,
        0.75,
        explains=frozenset({Label.UNDETERMINED, Label.COMPUTE}),
    )


def _lone_stream_tok_s(e: Evidence) -> float | None:
    """What a log says of one request that only decodes."""
    load = load_of(e)
    rows = zip(load.running, load.prompted, load.generated, strict=False)
    return max(
        (made for running, read, made in rows if running == 1 and read == 0 and made > 0), default=None
    )


_BANDWIDTHS = ("bandwidth_gb_s", "memory_bandwidth_gb_s", "mem_bandwidth_gb_s", "gb_per_s", "gb_s")


def share_of_bandwidth(e: Evidence) -> tuple[float, str] | None:
    """Tokens a second of a lone stream over the most that the card's GB/s allow, and the arithmetic; None
    where one of them is not known.
    """
    card, parameters = card_of(hardware_text(e)), active_parameters_of(model_of(e))
    told_gb_s = e.number(*(f"hardware:{n}" for n in _BANDWIDTHS))
    told_gb = e.number(
        "workload:weights_gb", "workload:weights_gib", "workload:model_gb", "startup:weights_gib"
    )
    speed = next(
        (
            q.last
            for q in quantities(e)
            if q.is_rate and q.what in {"decode", "generation"} and not q.situation
        ),
        None,
    )
    alone_told = concurrency(e) == 1
    output = next(
        (q.last for q in quantities(e) if q.is_rate and q.what == "output" and not q.situation), None
    )
    speed = speed or _lone_stream_tok_s(e) or (output if alone_told else None)
    bandwidth = told_gb_s or (card.gb_per_s if card else None)
    size = told_gb or (parameters * bytes_per_weight(e) / 1e9 if parameters else None)
    alone = load_of(e).peak_running <= 2 and (concurrency(e) or 1) <= 2
    if not (bandwidth and size and speed and alone):
        return None
    ranks = tensor_parallel(e)
    most = bandwidth * ranks / size
    return speed / most, (
        f"{speed:g} tokens/s; {bandwidth:g} GB/s x {ranks} / {size:.0f} GB of weights = {most:.1f} tokens/s"
    )


def decodes_a_long_context(e: Evidence) -> Iterator[Finding]:
    """One or two streams over a long context: each token reads all weights and the whole context's KV."""
    load = load_of(e)
    longest = max(prompt_tokens(e), default=0.0)
    few = bool(load.running) and 0 < load.peak_running <= 2 and load.peak_waiting == 0
    if few and longest >= LONG_CONTEXT and load.generated and max(load.generated) > 0 and not start_failed(e):
        yield Finding(
            Label.MEMORY_BANDWIDTH,
            f"{max(load.generated):g} tokens a second of {load.peak_running:g} stream over "
            f"{longest:,.0f} tokens: each token reads all weights and the context's KV",
            (fact(e, load.names["generated"]), Fact(f"context {longest:,.0f} tokens")),
            Advice(
                "fewer bytes (fp8 weights and KV), a card with more GB/s, tensor parallelism over "
                "NVLink, speculation; more streams at once are nearly free",
                "tokens a second of that stream",
                "a little quality",
                "tokens a second at a short context: the difference is KV",
            ),
            Severity.NOTE,
            0.6,
            explains=frozenset({Label.UNDETERMINED}),
        )


def traffic_counters(e: Evidence) -> Iterator[Finding]:
    """DCGM tells memory traffic from arithmetic; nvidia-smi's utilisation tells only that some kernel ran."""
    dram = _percent(e, r"dram|mem(?:ory)?_(?:copy|bw|bandwidth|active)|mem_util|hbm")
    tensor = _percent(e, r"tensor|sm_active|sm_occ|sm_util|pipe")
    if dram is not None and dram >= 0.7 and (tensor is None or tensor < dram):
        yield Finding(
            Label.MEMORY_BANDWIDTH,
            f"Memory traffic is at {dram:.0%} of the card"
            + (f", arithmetic at {tensor:.0%}" if tensor is not None else ""),
            tuple(fact(e, r.name) for r in e.under("gpu:"))[:3],
            Advice(
                "fewer bytes of weights and KV (fp8), or more requests a step",
                "tokens a second",
                "a little quality",
            ),
            Severity.NOTE,
            0.7,
        )
    elif tensor is not None and tensor >= 0.85 and dram is not None and load_of(e).peak_waiting > 0:
        yield Finding(
            Label.COMPUTE,
            f"Arithmetic units are at {tensor:.0%} while requests wait",
            tuple(fact(e, r.name) for r in e.under("gpu:"))[:3],
            Advice("another replica, or fewer prompt tokens (prefix caching)", "throughput"),
            Severity.WARNING,
            0.7,
        )


def _percent(e: Evidence, pattern: str) -> float | None:
    names = re.compile(rf"(?!.*(?:used|total))gpu:.*(?:{pattern})")
    return max(
        (share(r.last) for r in e.under("gpu:") if r.last is not None and names.match(r.name)), default=None
    )


def far_below_bandwidth(e: Evidence) -> Iterator[Finding]:
    """One stream at a small part of what reading the weights would allow: the card waits between kernels, or
    some of the work is not on it.
    """
    share_of = share_of_bandwidth(e)
    if share_of is None or share_of[0] >= FAR_BELOW or e.is_on("enforce-eager") or start_failed(e):
        return
    part, how = share_of
    yield Finding(
        Label.CPU,
        f"One stream makes {part:.0%} of the tokens a second that reading the weights would allow",
        (Fact(how),),
        Advice(
            "a profile of a few steps (nsys, GGML_SCHED_DEBUG=2): gaps between kernels (launches, graphs "
            "off) or operations on the CPU",
            "several times faster decoding, if it is so",
            "none",
            "tokens a second of one stream",
        ),
        Severity.WARNING,
        0.5,
        also=(Label.UNDETERMINED,),
        rivals=("a draft model, a long context, a clock that is held low: nvidia-smi dmon",),
        explains=frozenset({Label.UNDETERMINED}),
    )


def held_back(e: Evidence) -> Iterator[Finding]:
    """A card at its power or heat limit lowers its clock: the same work takes longer."""
    clocks = next((r for r in e.under("gpu:") if "clock" in r.name and len(r.numbers) > 1), None)
    power, limit = (
        e.number("gpu:power_w", "gpu:power_draw_w"),
        e.number("gpu:power_limit_w", "gpu:power_cap_w"),
    )
    heat = e.number("gpu:temp_c", "gpu:temperature_c", "gpu:temperature")
    if clocks is None or clocks.numbers[-1] >= 0.85 * clocks.numbers[0]:
        return
    at_limit = bool(power and limit and power >= 0.95 * limit)
    if at_limit or (heat or 0.0) >= HOT_C:
        yield Finding(
            Label.COMPUTE,
            f"The card lowers its clock from {clocks.numbers[0]:,.0f} to {clocks.numbers[-1]:,.0f} MHz, at "
            f"its {'power' if at_limit else 'heat'} limit",
            tuple(fact(e, r.name) for r in e.under("gpu:") if re.search("clock|power|temp", r.name)),
            Advice(
                "cooling, a higher power limit where the card allows it, or another card",
                "tokens a second in proportion to the clock",
                "power",
                "nvidia-smi -q -d PERFORMANCE: which limit is active",
            ),
            Severity.WARNING,
            0.75,
            explains=frozenset({Label.UNDETERMINED, Label.SHIFT}),
        )


HOT_C = 85.0


def reads_alone(e: Evidence) -> Iterator[Finding]:
    """One request, nobody beside it: all of its TTFT is its own prefill, which is arithmetic."""
    longest = max(prompt_tokens(e), default=0.0)
    ttft = next((q for q in quantities(e) if q.what == "ttft" and not q.is_rate and not q.situation), None)
    alone = concurrency(e) == 1 and load_of(e).peak_waiting == 0
    if alone and longest >= LONG_CONTEXT and ttft is not None and ttft.last > 1.0 and not start_failed(e):
        yield Finding(
            Label.COMPUTE,
            f"{longest:,.0f} tokens take {ttft.last:.1f} s with nobody beside: "
            f"{longest / ttft.last:,.0f} tokens a second are what the card reads",
            (fact(e, ttft.name),),
            Advice(
                "prefix caching of what repeats, a shorter prompt, fp8, --tensor-parallel-size over "
                "NVLink, a faster card",
                "TTFT in proportion",
                "cards",
                "prompt tokens a second of the same request",
            ),
            Severity.NOTE,
            0.65,
            explains=frozenset({Label.QUEUEING, Label.UNDETERMINED}),
        )


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


RULES = (
    held_back,
    far_below_bandwidth,
    near_bandwidth,
    decodes_a_long_context,
    traffic_counters,
    reads_alone,
    host_memory_grows,
)
