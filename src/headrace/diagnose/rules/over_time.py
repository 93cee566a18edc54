"""What differs between two times: a start that is not over, a server that ages, traffic that changed."""

import itertools
import re
from collections.abc import Iterator

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.finding import Advice, Fact, Finding, Label, Severity
from headrace.diagnose.load import load_of
from headrace.diagnose.quantities import (
    AFTER,
    AGED,
    BEFORE,
    FIRST,
    FRESH,
    LATER,
    Pair,
    duration_s,
    pairs,
    quantities,
)
from headrace.diagnose.rules.cache import hit_rate
from headrace.diagnose.rules.support import fact, has_load, load_facts, out_of_memory, said, start_failed

MUCH_SLOWER = 3.0
DRIFT = 1.25
LONG_COMPILE_S = 60.0
NOTABLE_START_S = 30.0


def first_is_slow(e: Evidence) -> Iterator[Finding]:
    """Kernels are tuned and compiled at the first shape that needs them: only the first requests pay."""
    found = [p for p in pairs(quantities(e), LATER, FIRST) if p.times_worse >= MUCH_SLOWER]
    jit = e.of("late_jit")
    firsts = [
        r
        for prefix in ("client:", "runs:")
        for r in e.under(prefix)
        if re.search(
            r"(?:_|:)(?:ttft|latency|e2e|request|response|first).*(?:_s|"
            r"_ms|s)$",
            r.name,
        )
        and len(r.numbers) >= 3
        and r.numbers[0] > MUCH_SLOWER * max(r.numbers[1:])
    ]
    if start_failed(e) or not (found or jit or firsts):
        return
    facts = tuple(fact(e, q.name) for pair in found[:1] for q in (pair.base, pair.other))
    yield Finding(
        Label.COLD_START,
        f"The first request takes {found[0].times_worse:.0f} times as long as later ones: kernels are "
        f"still being compiled"
        if found
        else "The first of several alike takes far longer than the others: kernels are still being compiled"
        if firsts
        else f"{e.counts['late_jit']} kernels were compiled while serving, after warm-up",
        facts
        + tuple(fact(e, r.name, f"{r.name}: {r.text[:60]}") for r in firsts[:1])
        + tuple(said(event) for event in jit[:2]),
        Advice(
            "send requests of the shapes you serve before the readiness probe passes; keep the compile "
            "caches (VLLM_CACHE_ROOT, TRITON_CACHE_DIR) on a volume; a newer version warms up more",
            "no user meets a cold kernel",
            "a longer start",
            "TTFT of the first request after ready",
        ),
        Severity.WARNING,
        0.85,
        explains=frozenset({Label.QUEUEING, Label.UNDETERMINED, Label.COMPUTE, Label.KV_CAPACITY}),
    )


def compilers_at_work(e: Evidence) -> Iterator[Finding]:
    """Kernels built at start: a compiler process for each core, and gigabytes of host memory for each of
    them.
    """
    seen = [r for r in e.under("host:") if _COMPILER.search(r.name) and max(r.numbers, default=0.0) > 0]
    if not seen or out_of_memory(e):
        return
    memory = any(re.search(r"rss|mem|gib|gb", r.name) and max(r.numbers, default=0.0) > 10 for r in seen)
    yield Finding(
        Label.COLD_START,
        "Kernels are being compiled: " + ", ".join(f"{r.name} up to {max(r.numbers):g}" for r in seen[:2]),
        tuple(fact(e, r.name) for r in seen[:3]),
        Advice(
            "MAX_JOBS lower (compilers at once), compile caches kept on a volume, or an image with "
            "kernels built in",
            "a start that fits the host's memory, and a short one the next time",
            "fewer compilers take longer, once",
            "no compiler process in the second start",
        ),
        Severity.WARNING,
        0.8,
        also=(Label.HOST_MEMORY,) if memory else (),
        explains=frozenset({Label.HOST_MEMORY, Label.UNDETERMINED, Label.CPU}),
    )


_COMPILER = re.compile(r"cicc|nvcc|ptxas|ninja|cudafe|inductor|triton_compile|compile_worker|compil")


def slow_start(e: Evidence) -> Iterator[Finding]:
    """Start = load + compile + capture: what takes the time says what to keep between starts."""
    parts = {
        "loading": e.number("startup:model_load_s", "startup:load_s", "startup:weights_load_s"),
        "compiling": e.number("startup:compile_s", "startup:torch_compile_s", "startup:compilation_s"),
        "capturing": e.number("startup:graph_capture_s", "startup:capture_s", "startup:cudagraph_s"),
        "warm-up and the rest": e.number(
            "startup:init_engine_s", "startup:total_s", "startup:ready_s", "startup:startup_s"
        ),
    }
    known = {name: seconds for name, seconds in parts.items() if seconds is not None}
    for reading in e.under("startup:"):
        seconds = duration_s(reading)
        if seconds is not None and reading.name not in _PARTS:
            known[reading.name.partition(":")[2].replace("_", " ")] = seconds
    # What only the log says nobody has complained of: a start of half a minute is an ordinary one.
    printed = bool(e.of("init_engine", "graphs_captured", "loaded", "compiled"))
    worst = max(known.items(), key=lambda item: item[1], default=None)
    # Where nothing else was measured, the start is what was asked about.
    complained = any(e.under("startup:")) and not (printed and max(known.values(), default=0.0) < 45)
    least = NOTABLE_START_S if complained and not has_load(e) else LONG_COMPILE_S
    if start_failed(e) or out_of_memory(e) or worst is None or worst[1] < least:
        return
    restarts = _pair_of_starts(e)
    yield Finding(
        Label.COLD_START,
        f"A start takes long: {worst[0]} {worst[1]:.0f} s",
        tuple(fact(e, r.name) for r in e.under("startup:") if duration_s(r) is not None)[:5] + restarts,
        Advice(
            "keep weights and compile caches on a local volume, the same version and flags between "
            "starts; scale before the queue is full, not after; -O1 where start matters more than speed",
            "a start in seconds instead of minutes where caches hit",
            "-O1 decodes slower",
            "'torch.compile took' and 'Model loading took' of the next start",
        ),
        Severity.WARNING if worst[1] > 2 * LONG_COMPILE_S and not has_load(e) else Severity.NOTE,
        0.65,
    )


_PARTS = frozenset(
    {"startup:model_load_s", "startup:compile_s", "startup:graph_capture_s", "startup:init_engine_s"}
)


def _pair_of_starts(e: Evidence) -> tuple[Fact, ...]:
    return tuple(
        fact(e, r.name) for r in e.under("startup:") if re.search(r"cold|warm|cached|cache", r.name)
    )[:2]


def slow_storage(e: Evidence) -> Iterator[Finding]:
    """Weights are read once at start: gigabytes at the disk's or the network's pace."""
    disks = [
        r
        for prefix in ("host:", "hardware:", "workload:")
        for r in e.under(prefix)
        if r.last and re.search(r"(?:disk|storage|read|nfs|volume).*mb_?(?:per_)?s", r.name)
    ]
    slow = [r for r in disks if (r.last or 0.0) < SLOW_DISK_MB_S]
    loading = e.of("load_began") or any(e.under("startup:"))
    if slow and loading and not out_of_memory(e) and not load_of(e).running:
        yield Finding(
            Label.COLD_START,
            f"Weights are read at {slow[0].last:g} MB/s: the start waits for the storage",
            tuple(fact(e, r.name) for r in slow[:2]),
            Advice(
                "weights on a local disk; --safetensors-load-strategy eager on a network file system (mmap "
                "reads small pieces); sharded weights for several ranks",
                "a start as long as the disk needs",
                "a copy of the weights on each node",
                "'Loading weights took' of the next start",
            ),
            Severity.WARNING,
            0.75,
            explains=frozenset({Label.STALL, Label.UNDETERMINED}),
        )


SLOW_DISK_MB_S = 500.0


def ages(e: Evidence) -> Iterator[Finding]:
    """A server that is slower after an hour than after a start: the pool cannot fragment, so what changed
    is not known without its metrics over that time.
    """
    found = [p for p in pairs(quantities(e), FRESH, AGED) if p.times_worse >= DRIFT and not _is_first(p)]
    if not found or start_failed(e) or _known_cause(e):
        return
    worst = max(found, key=lambda pair: pair.times_worse)
    yield Finding(
        Label.UNDETERMINED,
        f"{worst.times_worse:.1f} times slower after a while than when fresh; nothing here says why",
        tuple(fact(e, q.name) for q in (worst.base, worst.other)),
        Advice(
            "collect over uptime: preemptions, prefix hit rate, queue time, KV usage, resident memory "
            "of each process, GPU clocks, and the lengths of requests. No restarts on a timetable "
            "before that: KV blocks have one size and do not fragment",
            "the cause by which of them moved first",
        ),
        Severity.WARNING,
        0.75,
        rivals=(
            (
                "host memory growth; a fuller pool (hits hide less); longer conversations; clocks that "
                "fall with heat"
            ),
        ),
        explains=frozenset({Label.QUEUEING, Label.COMPUTE}),
    )


def _is_first(pair: Pair) -> bool:
    return pair.base.says(FIRST) or pair.other.says(FIRST)


def _known_cause(e: Evidence) -> bool:
    return bool(load_of(e).preemptions) or load_of(e).peak_kv >= 0.9 or bool(list(e.under("host:")))


def traffic_changed(e: Evidence) -> Iterator[Finding]:
    """Lengths and rates are the workload's: when they move, the same settings give other latencies."""
    moved = list(_moved(e))
    if moved and not start_failed(e):
        yield Finding(
            Label.SHIFT,
            f"The traffic changed: {moved[0][0]} went from {moved[0][1]:,.4g} to {moved[0][2]:,.4g}",
            tuple(Fact(f"{name}: {a:,.4g} to {b:,.4g}", e.where(name)) for name, a, b in moved[:3]),
            Advice(
                "size budgets for the traffic there is now (headrace tune, headrace simulate with its "
                "lengths); bound max_tokens; alert on request_prompt_tokens and request_generation_tokens",
                "the goals hold again",
                "more cards, or fewer admitted",
                "the two histograms over a week",
            ),
            Severity.WARNING,
            0.7,
            also=(Label.KV_CAPACITY,) if load_of(e).peak_kv >= 0.9 else (),
            explains=frozenset({Label.QUEUEING, Label.KV_CAPACITY, Label.UNDETERMINED}),
        )


_LENGTH = re.compile(
    r"(?:prompt|input|output|generation|completion)_(?:tokens|len)|request_rate|requests?_per_s|arrival|rps|qps|images"
)


def _moved(e: Evidence) -> Iterator[tuple[str, float, float]]:
    # The columns of a sweep and the runs of a benchmark were varied on purpose: no traffic changed there.
    varied = ("sweep:", "runs:")
    for reading in [r for r in e.readings.values() if "{" not in r.name and not r.name.startswith(varied)]:
        words = set(re.split(r"[_:]", reading.name))
        if not _LENGTH.search(reading.name) or reading.last is None:
            continue
        if words & BEFORE:
            stem = re.sub(rf"_(?:{'|'.join(BEFORE)})\b", "", reading.name)
            for other in e.under(stem):
                if (
                    set(re.split(r"[_:]", other.name)) & AFTER
                    and other.last
                    and reading.last
                    and other.last > 1.5 * reading.last
                ):
                    yield other.name, reading.last, other.last
        elif (
            not reading.name.startswith("workload:")
            and not reading.name.endswith(("_total", "_sum", "_count"))
            and "{" not in reading.name
            and len(reading.numbers) >= 2
            and reading.numbers[-1] > 1.5 * reading.numbers[0] > 0
        ):
            yield reading.name, reading.numbers[0], reading.numbers[-1]


def never_ends(e: Evidence) -> Iterator[Finding]:
    """The same few requests go on for minutes, no prompt comes, and KV grows token by token: answers
    without an end (no stop, no max_tokens, a base model), not a leak.
    """
    load = load_of(e)
    kv = list(load.kv)
    same = len(kv) >= 4 and len(load.running) == len(kv) == len(load.prompted)
    if not same or load.peak_waiting > 0 or load.running[-1] < 1 or load.peak_kv >= 0.9:
        return
    quiet = sum(p == 0 for p in load.prompted) >= 0.6 * len(load.prompted)
    grows = kv[-1] > 3 * max(kv[0], 1e-4) and all(b >= a for a, b in itertools.pairwise(kv))
    if quiet and grows and max(load.running) == min(load.running):
        yield Finding(
            Label.SHIFT,
            f"{load.running[-1]:,.0f} requests generate without an end: KV grows from {kv[0]:.1%} to "
            f"{kv[-1]:.1%} and no prompt comes",
            load_facts(e, load),
            Advice(
                "max_tokens and stop in the requests, an instruct model with its chat template, a "
                "default bound by --override-generation-config",
                "answers that end",
                "long answers are cut",
                "request_success_total{finished_reason=length} against stop",
            ),
            Severity.WARNING,
            0.7,
            explains=frozenset({Label.UNDETERMINED, Label.MEMORY_BANDWIDTH}),
        )


def hits_fell(e: Evidence) -> Iterator[Finding]:
    """Prompts that used to begin alike no longer do, or their blocks are evicted first."""
    rates = e.series("log:prefix_hit_rate")
    begun = [r for r in rates if r > 0]
    if len(rates) >= 20 and begun and max(begun) > 0.3:
        early, late = sum(rates[len(rates) // 4 : len(rates) // 2]), sum(rates[-len(rates) // 4 :])
        if late < 0.5 * early:
            current, _ = hit_rate(e)
            yield Finding(
                Label.SHIFT,
                "Prefix hits fell to less than half of what they were",
                (
                    fact(
                        e,
                        "log:prefix_hit_rate",
                        f"log:prefix_hit_rate: up to {max(rates):.0%}, now {current or rates[-1]:.0%}",
                    ),
                ),
                Advice(
                    "compare prompts of then and now (a template with a date or id in front?), and KV "
                    "usage: a full pool evicts what would have hit",
                    "TTFT as before",
                ),
                Severity.WARNING,
                0.6,
                also=(Label.PREFIX_MISS,),
            )


def first_run_is_slow(e: Evidence) -> Iterator[Finding]:
    """The same command twice after a start: the first run compiles what it needs, the later ones agree."""
    told = e.told()
    if not _AFTER_A_START.search(told) or start_failed(e):
        return
    for q in quantities(e, ("runs:",)):
        first, *rest = q.values
        if not rest or min(q.values) <= 0 or max(rest) > STEADY * min(rest):
            continue
        worse = min(rest) / first if q.is_rate else first / max(rest)
        if worse >= DRIFT:
            yield Finding(
                Label.COLD_START,
                f"The first run after a start is {worse:.1f} times worse than the later ones",
                (fact(e, q.name, f"{q.name}: {', '.join(f'{v:g}' for v in q.values[:6])}"),),
                Advice(
                    "leave the first run out; compile before (SGLang: sglang.compile_deep_gemm), "
                    "keep the caches "
                    "of kernels on a volume",
                    "runs that agree",
                    "a longer start",
                    "a third run is as fast as the second",
                ),
                Severity.WARNING,
                0.75,
                rivals=("prompts of the first run that the prefix cache still has: reset it between runs",),
                explains=frozenset({Label.UNDETERMINED, Label.QUEUEING, Label.COMPUTE, Label.CLIENT}),
            )
            return


STEADY = 1.1
_AFTER_A_START = re.compile(r"fresh|(?:re)?start|just (?:up|deployed)|new (?:server|process|pod)|first run")


RULES = (
    first_is_slow,
    slow_storage,
    compilers_at_work,
    ages,
    traffic_changed,
    never_ends,
    hits_fell,
    slow_start,
    first_run_is_slow,
)
