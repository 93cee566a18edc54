"""Which part of the machine is busy: arithmetic, memory traffic, links, or the CPU."""

import re
from collections.abc import Iterator

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.finding import Advice, Fact, Finding, Label, Severity
from headrace.diagnose.load import load_of, share
from headrace.diagnose.quantities import quantities
from headrace.diagnose.rules.support import (
    concurrency,
    fact,
    prompt_tokens,
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


def _gb_per_s(e: Evidence) -> float | None:
    """Of one card: as told, or by its name."""
    card = card_of(hardware_text(e))
    return e.number(*(f"hardware:{n}" for n in _BANDWIDTHS)) or (card.gb_per_s if card else None)


def share_of_bandwidth(e: Evidence) -> tuple[float, str] | None:
    """Tokens a second of a lone stream over the most that the card's GB/s allow, and the arithmetic; None
    where one of them is not known.
    """
    parameters = active_parameters_of(model_of(e))
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
    bandwidth = _gb_per_s(e)
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
    dram = _percent(e, r"dram|mem(?:ory)?_(?:copy|bw|bandwidth|active)|mem_util|hbm(?!_us)")
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


def reads_as_fast_as_it_can(e: Evidence) -> Iterator[Finding]:
    """Bytes a second that were measured on the card, beside what its data sheet says."""
    most = _gb_per_s(e)
    seen = [r for r in e.under("gpu:") if r.last and _GB_S.search(r.name)]
    if not most or not seen or start_failed(e):
        return
    fastest = max(seen, key=lambda r: r.last or 0.0)
    part = (fastest.last or 0.0) / most
    if NEAR_DATA_SHEET <= part <= 1.1:
        yield Finding(
            Label.MEMORY_BANDWIDTH,
            f"The card reads {fastest.last:,.4g} GB/s, {part:.0%} of the {most:,.4g} that it can",
            (fact(e, fastest.name),),
            Advice(
                "fewer bytes of weights and KV (fp8, 4 bit), or more requests a step",
                "tokens a second in inverse proportion to bytes",
                "a little quality",
                "the same counter: it stays, tokens a second rise",
            ),
            Severity.NOTE,
            0.6 if load_of(e).waits else 0.8,
            explains=frozenset({Label.UNDETERMINED, Label.CPU, Label.COMPUTE, Label.CLIENT}),
        )


_GB_S = re.compile(
    r"gpu:(?!.*(?:pcie|link|copy|h2d|d2h|transfer|offload|test|peak|max|spec|load|kv)).*gb(?:ytes)?_(?:per_)?s"
)
NEAR_DATA_SHEET = 0.6


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


RULES = (
    held_back,
    far_below_bandwidth,
    near_bandwidth,
    decodes_a_long_context,
    traffic_counters,
    reads_alone,
    reads_as_fast_as_it_can,
)
