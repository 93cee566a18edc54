"""The KV pool against what is asked of it: arithmetic, a head that does not fit, a knee, slots that share."""

import re
from collections.abc import Iterator

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.finding import Advice, Fact, Finding, Label, Severity
from headrace.diagnose.load import Load, load_of
from headrace.diagnose.rules.queue import KV_FULL, more_kv, pool_facts
from headrace.diagnose.rules.support import (
    concurrency,
    fact,
    load_facts,
    prompt_tokens,
    said,
    start_failed,
)
from headrace.diagnose.sizes import kv_tokens_of_cards


def context_shared(e: Evidence) -> Iterator[Finding]:
    """llama.cpp: slots share one cache of --ctx-size; with a unified cache each still advertises all of
    it.
    """
    slots = {event.fields["slot"]: event.number("context") or 0.0 for event in e.of("llama_slot")}
    size, full = e.flag("ctx-size"), e.of("llama_full")
    if e.engine == "llama.cpp":
        full = full or e.of("prompt_too_long")
    over = bool(slots) and size is not None and sum(slots.values()) > size * 1.01
    # A slot has ctx-size / parallel: far less than that, and the server was started with another size.
    ignored = bool(slots) and size is not None and len(slots) * max(slots.values()) < size / NOT_APPLIED
    short = _share_of_a_slot(e)
    if not (full or over or ignored or short):
        return
    facts = tuple(said(event) for event in (*full[:1], *e.of("llama_slot")[:1]))
    if (over or ignored) and size:
        shared = f"{len(slots)} slots of {max(slots.values()):,.0f} tokens, --ctx-size {size:,.0f}"
        facts += (Fact(shared, e.where("ctx-size")),)
    if short:
        facts += (Fact(short, e.where("ctx-size")),)
    yield Finding(
        Label.BAD_FLAGS if ignored else Label.KV_CAPACITY,
        "The server runs with a smaller context than was configured: the setting did not reach it"
        if ignored
        else "The KV cache is too small for what its slots hold together",
        facts,
        Advice(
            "--ctx-size = slots x the context each needs, or --parallel with fewer slots",
            "no answer is cut for want of cache",
            "memory in proportion",
            "no 'failed to find free space' under the same load",
        ),
        Severity.CRITICAL if full else Severity.WARNING,
        0.85,
        also=(Label.KV_CAPACITY,) if ignored else (Label.BAD_FLAGS,) if over or short else (),
        explains=frozenset({Label.QUEUEING, Label.UNDETERMINED}),
    )


NOT_APPLIED = 4.0


def _share_of_a_slot(e: Evidence) -> str:
    """What a slot has where that is less than a request needs: --ctx-size is of all slots together."""
    size, slots = e.flag("ctx-size"), e.flag("parallel") or e.flag("np")
    longest = max(prompt_tokens(e), default=0.0)
    if e.engine != "llama.cpp" or not size or not slots or slots < 2 or longest <= size / slots:
        return ""
    return (
        f"--ctx-size {size:,.0f} / {slots:g} slots = {size / slots:,.0f} tokens each, {longest:,.0f} "
        f"are needed"
    )


def divided_among_slots(e: Evidence) -> Iterator[Finding]:
    """llama.cpp divides --ctx-size (or the context the model was trained with) among --parallel slots, unless
    the cache is unified: each request gets a share, which looks like a setting that did not arrive.
    """
    size = e.flag("ctx-size") or e.number("workload:n_ctx_train", "startup:n_ctx_train")
    slots = e.flag("parallel") or e.flag("np") or 0.0
    if e.engine != "llama.cpp" or not size or slots < 2 or e.is_on("kv-unified"):
        return
    told = [r for r in (*e.under("startup:"), *e.under("workload:")) if _IS_SHARE.search(r.name + r.text)]
    each = size / slots
    seen = [r for r in told if not r.numbers or abs(r.numbers[-1] - each) < 0.01 * each]
    if not seen or _share_of_a_slot(e) or e.of("llama_full"):
        return
    yield Finding(
        Label.BAD_FLAGS,
        f"{size:,.0f} tokens of context are divided among {slots:g} slots: each request has {each:,.0f}",
        (fact(e, "parallel" if "parallel" in e.flags else "np"), fact(e, seen[0].name)),
        Advice(
            f"--ctx-size {size * slots:.0f} for {size:.0f} in each of {slots:g} slots, --kv-unified so that "
            "they share it, or --parallel 1",
            f"{size:,.0f} tokens for a request",
            f"{slots:g} times the memory of the cache, where it is not shared",
            "'n_ctx_slot' (or 'new slot, n_ctx') of the next start",
        ),
        Severity.WARNING,
        0.75,
        also=(Label.KV_CAPACITY,),
        explains=frozenset({Label.UNDETERMINED, Label.COLD_START}),
    )


_IS_SHARE = re.compile(r"n_ctx_(?:slot|seq|per)|ctx_per_slot|each slot|per slot")


def head_does_not_fit(e: Evidence) -> Iterator[Finding]:
    """Admission asks for blocks for the whole prompt of the head of the queue and nobody passes it: a few
    long
    answers that hold half the pool keep everybody out, though much of it is free.
    """
    load = load_of(e)
    cap = e.flag("max-num-seqs")
    still = len(load.prompted) >= 2 and max(load.prompted) == 0 and len(load.waiting) == len(load.prompted)
    still = still or (not load.prompted and _stands(load))
    stuck = still and min(load.waiting, default=0.0) > 0 and min(load.running, default=0.0) >= 1
    at_cap = bool(cap and load.peak_running >= cap) or load.peak_running in ROUND_CAPS
    if stuck and not at_cap and 0.5 <= load.peak_kv < KV_FULL:
        yield Finding(
            Label.KV_CAPACITY,
            f"{load.peak_waiting:,.0f} wait and no prompt is read: the first of them needs more than the "
            f"{1 - load.peak_kv:.0%} of KV that is free",
            load_facts(e, load) + pool_facts(e),
            Advice(
                more_kv(e) + "; a bound on max_tokens for the answers that run",
                "the queue moves",
                "long answers are cut",
                "prompt throughput above 0 while requests wait",
            ),
            Severity.WARNING,
            0.65,
            also=(Label.QUEUEING,),
            rivals=("requests that are skipped: adapters beyond --max-loras, grammars, KV on its way",),
            explains=frozenset({Label.QUEUEING, Label.UNDETERMINED}),
        )


def _stands(load: Load) -> bool:
    """Two samples or more with the same few running and as many waiting, while KV hardly grows: no prompt is
    read and nobody is let in.
    """
    few = 0 < load.peak_running <= FEW_RUNNING and len(load.kv) >= 2
    same = len(set(load.running)) == 1 and bool(load.waiting) and load.waiting[-1] >= load.waiting[0]
    return few and same and max(load.kv) - min(load.kv) < 0.05


FEW_RUNNING = 4
"""So few that hold half the pool are long ones."""
ROUND_CAPS = frozenset({8, 16, 32, 64, 100, 128, 256, 512, 1024})
"""Counts at which a server stands because somebody set them."""


def pool_allocation_failed(e: Evidence) -> Iterator[Finding]:
    """SGLang: tokens for the next step were not to be had from the pool. Its own accounting, no CUDA
    error.
    """
    for event in e.of("pool_allocation")[-1:]:
        yield Finding(
            Label.KV_CAPACITY,
            "The KV pool had no room for the next tokens and the server gave up",
            (said(event),),
            Advice(
                "--max-running-requests lower or --mem-fraction-static higher; a newer version, which "
                "retracts instead",
                "the server lives",
                "fewer at once",
                "token usage stays below 1.0",
            ),
            Severity.CRITICAL,
            0.75,
            explains=frozenset({Label.OOM_PEAK, Label.UNDETERMINED}),
        )


def prompt_beyond_the_pool(e: Evidence) -> Iterator[Finding]:
    """Admission asks for blocks for the whole prompt: one that is larger than the pool waits for ever, and
    everybody behind it.
    """
    blocks = e.flag("num-gpu-blocks-override")
    size = e.number("workload:block_size") or e.flag("block-size") or 16
    tokens = (blocks - 1) * size if blocks else pool_tokens(e)
    longest = max(prompt_tokens(e), default=0.0)
    if tokens is None or longest <= tokens or start_failed(e):
        return
    yield Finding(
        Label.BAD_FLAGS if blocks else Label.KV_CAPACITY,
        f"A prompt of {longest:,.0f} tokens never fits a pool of {tokens:,.0f}: it waits for ever",
        (fact(e, "num-gpu-blocks-override"),) if blocks else pool_facts(e),
        Advice(
            "leave --num-gpu-blocks-override out"
            if blocks
            else f"--max-model-len {int(tokens)}; {more_kv(e)}",
            "such prompts run" if blocks else "such prompts are refused instead of blocking the queue",
            "none",
            "running is above 0 whenever waiting is",
        ),
        Severity.CRITICAL,
        0.75,
        also=(Label.KV_CAPACITY, Label.STALL) if blocks else (Label.STALL,),
    )


def pool_tokens(e: Evidence) -> float | None:
    """Tokens of the KV pool, from wherever they are told."""
    tokens = e.number("startup:kv_cache_tokens", "startup:kv_tokens", "startup:max_total_num_tokens")
    if tokens is None and (
        blocks := e.number("startup:kv_blocks", "startup:num_gpu_blocks") or e.flag("num-gpu-blocks")
    ):
        tokens = blocks * (e.flag("block-size") or 16)
    return tokens or e.number("workload:kv_cache_tokens", "workload:kv_tokens")


def pool_below_demand(e: Evidence) -> Iterator[Finding]:
    """Tokens of the pool / tokens of a request = how many run at once, whatever max_num_seqs says."""
    each = max(prompt_tokens(e), default=0.0) + (e.number(*(f"workload:{n}" for n in _OUTPUTS)) or 0.0)
    told = pool_tokens(e)
    tokens = told or (kv_tokens_of_cards(e) if each > LONG_REQUEST else None)
    offered = concurrency(e)
    offered = offered or max(e.series("sweep:concurrency"), default=None)
    times = e.number("startup:max_concurrency_x") or _told_to_fit(e)
    fits = tokens / each if tokens and each else times
    enough = 0.8 if told or not tokens else 1.0
    if fits is None or offered is None or fits >= enough * offered or start_failed(e) or load_of(e).kv:
        return
    yield Finding(
        Label.KV_CAPACITY,
        f"The KV pool holds {fits:.1f} such requests and {offered:,.0f} are sent at once"
        + ("" if told or not tokens else f" (by the card and the model: about {tokens:,.0f} tokens)"),
        (*pool_facts(e), Fact(f"{each:,.0f} tokens a request" if each else "at max_model_len")),
        Advice(
            more_kv(e), "as many at once as fit", "fp8 KV may cost quality", "kv_cache_usage_perc under load"
        ),
        Severity.WARNING,
        0.65 if each else 0.5,
    )


def _told_to_fit(e: Evidence) -> float | None:
    names = re.compile(r"(?:kv|pool|cache)_(?:fits|holds)|requests_(?:that_)?fit|fits?_(?:\w+_)?requests")
    return next((r.last for r in e.under("workload:") if r.last and names.search(r.name)), None)


LONG_REQUEST = 8192
"""Tokens from which a few requests fill a card: then the arithmetic of names is good enough."""
_OUTPUTS = ("output_tokens", "max_tokens", "output_len", "generation_tokens", "max_new_tokens")


def next_like_these(e: Evidence) -> Iterator[Finding]:
    """What runs holds so much each that one more like it does not fit what is free: whoever waits does so for
    KV, though the pool is never full.
    """
    load = load_of(e)
    looks = list(zip(load.running, load.waiting, load.kv, strict=False))
    short = [
        kv for running, waiting, kv in looks if waiting > 0 and 0 < running <= MANY and kv / running > 1 - kv
    ]
    waited = [kv for _, waiting, kv in looks if waiting > 0]
    if start_failed(e) or not waited or len(short) < 0.6 * len(waited) or max(waited) >= KV_FULL:
        return
    running = load.running[-1]
    yield Finding(
        Label.KV_CAPACITY,
        f"{running:,.0f} running requests hold {load.kv[-1]:.0%} of the pool: another like them does "
        f"not fit the "
        f"{1 - load.kv[-1]:.0%} that are free, so {load.peak_waiting:,.0f} wait",
        load_facts(e, load) + pool_facts(e),
        Advice(
            more_kv(e),
            "one more runs for each such share of the pool",
            "fp8 KV may cost quality",
            "running above what it is now, at the same lengths",
        ),
        Severity.WARNING,
        0.7,
        also=(Label.THRASH,) if load.preemptions else (),
        rivals=("a cap on sequences at just that number: --max-num-seqs",),
        explains=frozenset({Label.QUEUEING, Label.UNDETERMINED}),
    )


MANY = 16
"""Running requests, from which their mean says little of the next one."""


RULES = (
    next_like_these,
    context_shared,
    divided_among_slots,
    head_does_not_fit,
    pool_allocation_failed,
    prompt_beyond_the_pool,
    pool_below_demand,
)
