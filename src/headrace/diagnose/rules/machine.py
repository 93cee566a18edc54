"""Which part of the machine is busy: arithmetic, memory traffic, links, or the CPU."""

import itertools
import re
from collections.abc import Iterator

from headrace.diagnose.evidence import Evidence, Reading
from headrace.diagnose.finding import Advice, Fact, Finding, Label, Severity
from headrace.diagnose.load import load_of, share
from headrace.diagnose.quantities import quantities
from headrace.diagnose.rules.support import concurrency, fact, out_of_memory, prompt_tokens, start_failed
from headrace.diagnose.sizes import (
    active_parameters_of,
    bytes_per_weight,
    card_of,
    hardware_text,
    model_of,
    tensor_parallel,
)

FLAT = 1.15
"""Throughput that grows less than so much while the load doubles has met its limit."""
LONG_CONTEXT = 8192
"""Tokens from which reading KV is felt beside reading weights."""
NEAR_BANDWIDTH = 0.3
"""Of a card's bandwidth: real decode kernels reach half to nine tenths of the data sheet."""


def flat_sweep(e: Evidence) -> Iterator[Finding]:
    """Where more requests at once bring no more tokens and only longer waits, the card is saturated; a cap
    of the scheduler would show as a constant number of running requests, KV as full.
    """
    load = load_of(e)
    loads = next(
        (
            r
            for r in e.under("sweep:")
            if re.search(r"concurren|rate|clients|(?<!max_num_)batch(?!ed)|streams|qps|rps", r.name)
        ),
        None,
    )
    rates = [r for r in e.under("sweep:") if re.search(r"tok|throughput|output|per_s$|rps$", r.name)]
    if loads is None or load.peak_kv >= 0.9 or out_of_memory(e):
        return
    for rate in rates:
        pairs = [(a, b) for a, b in zip(loads.numbers, rate.numbers, strict=False) if a > 0]
        top = max((b for _, b in pairs), default=0.0)
        knee = next((a for a, b in pairs if b * FLAT >= top), None)
        beyond = [a for a, _ in pairs if knee is not None and a >= 2 * knee]
        if knee is None or not beyond or len(pairs) < 3:
            continue
        yield Finding(
            Label.COMPUTE,
            f"Throughput stops at {top:,.0f} from {loads.name.partition(':')[2]} {knee:g} on: the card "
            f"is saturated",
            (row(loads), row(rate)),
            Advice(
                f"take {knee:g} as this card's limit; another replica for more, a quantised checkpoint "
                f"or shorter prompts for a higher one. Scheduler settings move the wait, not the limit",
                "throughput in proportion to replicas",
                "another card",
                "the same sweep over two replicas",
            ),
            Severity.WARNING,
            0.8,
            explains=frozenset({Label.QUEUEING, Label.UNDETERMINED, Label.BAD_FLAGS, Label.MEMORY_BANDWIDTH}),
        )
        return


def row(reading: Reading) -> Fact:
    return Fact(f"{reading.name}: {', '.join(f'{n:g}' for n in reading.numbers[:8])}", reading.where)


def batching_is_free(e: Evidence) -> Iterator[Finding]:
    """Decode reads all weights for one token a sequence: while that read binds, more sequences cost
    nothing, so throughput grows with them and each token takes as long.
    """
    loads = next(
        (
            r
            for r in e.under("sweep:")
            if re.search(r"concurren|(?<!max_num_)batch(?!ed)|streams|clients", r.name)
        ),
        None,
    )
    gaps = next((r for r in e.under("sweep:") if re.search(r"itl|tpot|step", r.name)), None)
    rates = next((r for r in e.under("sweep:") if re.search(r"tok|throughput|output", r.name)), None)
    if loads is None or len(loads.numbers) < 2:
        return
    grown = loads.numbers[-1] / loads.numbers[0] if loads.numbers[0] else 0.0
    scaled = (
        rates is not None
        and rates.numbers
        and rates.numbers[0]
        and rates.numbers[-1] / rates.numbers[0] > 0.75 * grown
    )
    level = gaps is not None and gaps.numbers and gaps.numbers[-1] < 1.25 * gaps.numbers[0]
    if grown >= 4 and (scaled or level):
        yield Finding(
            Label.MEMORY_BANDWIDTH,
            f"{grown:g} times the load costs a token hardly more time: steps are bound by reading the "
            f"weights",
            tuple(row(r) for r in (loads, gaps, rates) if r is not None),
            Advice(
                "more requests at once (it is free until throughput bends), fewer bytes of weights "
                "(fp8, AWQ), speculation for single streams",
                "throughput in proportion to concurrency",
                "none until the bend",
                "the same sweep further out",
            ),
            Severity.NOTE,
            0.7,
            explains=frozenset({Label.UNDETERMINED}),
        )


def near_bandwidth(e: Evidence) -> Iterator[Finding]:
    """A token of one stream cannot be faster than all active weights are read: bandwidth / bytes."""
    card, parameters = card_of(hardware_text(e)), active_parameters_of(model_of(e))
    told_gb_s = e.number("hardware:bandwidth_gb_s", "hardware:memory_bandwidth_gb_s", "hardware:gb_per_s")
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
    bandwidth = told_gb_s or (card.gb_per_s if card else None)
    size = told_gb or (parameters * bytes_per_weight(e) / 1e9 if parameters else None)
    alone = load_of(e).peak_running <= 2 and (concurrency(e) or 1) <= 2
    if bandwidth and size and speed and alone and not start_failed(e):
        most = bandwidth * tensor_parallel(e) / size
        if NEAR_BANDWIDTH <= speed / most <= 1.1:
            yield Finding(
                Label.MEMORY_BANDWIDTH,
                f"{speed:g} tokens a second of one stream are {speed / most:.0%} of what reading "
                f"{size:.0f} GB of weights at {bandwidth:g} GB/s allows ({most:.0f})",
                (Fact(f"{bandwidth:g} GB/s x {tensor_parallel(e)} / {size:.0f} GB = {most:.1f} tokens/s"),),
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


def prefill_in_proportion(e: Evidence) -> Iterator[Finding]:
    """Reading a prompt is arithmetic: alone on the card, TTFT grows with its length."""
    lengths = next(
        (
            r
            for r in e.under("sweep:")
            if re.search(r"prompt|input|context|tokens|len", r.name) and not re.search("tok_s|ttft", r.name)
        ),
        None,
    )
    firsts = next(
        (r for r in e.under("sweep:") if re.search(r"ttft|prefill.*(?:s|ms)$|first_token", r.name)), None
    )
    if (
        lengths is None
        or firsts is None
        or min(len(lengths.numbers), len(firsts.numbers)) < 2
        or not lengths.numbers[0]
    ):
        return
    longer, slower = (
        lengths.numbers[-1] / lengths.numbers[0],
        firsts.numbers[-1] / max(firsts.numbers[0], 1e-9),
    )
    if longer >= 2 and slower > 0.5 * longer:
        yield Finding(
            Label.COMPUTE,
            f"{longer:g} times the prompt takes {slower:.1f} times the TTFT: reading prompts is arithmetic",
            (row(lengths), row(firsts)),
            Advice(
                "prefix caching of what repeats, shorter prompts, more or faster cards", "TTFT in proportion"
            ),
            Severity.NOTE,
            0.7,
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
    elif killed := e.of("killed"):
        yield _host_memory(
            e,
            "The kernel or the container's limit killed a process",
            (Fact(killed[0].text, killed[0].where),),
            0.7,
        )


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
        explains=frozenset({Label.STALL, Label.UNDETERMINED}),
    )


RULES = (
    flat_sweep,
    batching_is_free,
    near_bandwidth,
    decodes_a_long_context,
    traffic_counters,
    reads_alone,
    prefill_in_proportion,
    host_memory_grows,
)
