"""The KV pool against what is asked of it: arithmetic, a head that does not fit, a knee, slots that share."""

import re
from collections.abc import Iterator

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.finding import Advice, Fact, Finding, Label, Severity
from headrace.diagnose.load import load_of, share
from headrace.diagnose.rules.queue import KV_FULL, more_kv, pool_facts
from headrace.diagnose.rules.support import (
    concurrency,
    load_facts,
    prompt_tokens,
    said,
    start_failed,
)


def context_shared(e: Evidence) -> Iterator[Finding]:
    """llama.cpp: slots share one cache of --ctx-size; with a unified cache each still advertises all of
    it.
    """
    slots = {event.fields["slot"]: event.number("context") or 0.0 for event in e.of("llama_slot")}
    size, full = e.flag("ctx-size"), e.of("llama_full")
    if e.engine == "llama.cpp":
        full = full or e.of("prompt_too_long")
    over = bool(slots) and size is not None and sum(slots.values()) > size * 1.01
    if not full and not over:
        return
    facts = tuple(said(event) for event in (*full[:1], *e.of("llama_slot")[:1]))
    if over and size:
        facts += (
            Fact(
                f"{len(slots)} slots of {max(slots.values()):,.0f} tokens share {size:,.0f}",
                e.where("ctx-size"),
            ),
        )
    yield Finding(
        Label.KV_CAPACITY,
        "The KV cache is too small for what its slots hold together",
        facts,
        Advice(
            "--ctx-size = slots x the context each needs, or --parallel with fewer slots",
            "no answer is cut for want of cache",
            "memory in proportion",
            "no 'failed to find free space' under the same load",
        ),
        Severity.CRITICAL if full else Severity.WARNING,
        0.85,
        also=(Label.BAD_FLAGS,) if over else (),
        explains=frozenset({Label.QUEUEING, Label.UNDETERMINED}),
    )


def head_does_not_fit(e: Evidence) -> Iterator[Finding]:
    """Admission asks for blocks for the whole prompt of the head of the queue and nobody passes it: a few
    long
    answers that hold half the pool keep everybody out, though much of it is free.
    """
    load = load_of(e)
    cap = e.flag("max-num-seqs")
    still = len(load.prompted) >= 2 and max(load.prompted) == 0 and len(load.waiting) == len(load.prompted)
    stuck = still and min(load.waiting) > 0 and min(load.running, default=0.0) >= 1
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


ROUND_CAPS = frozenset({8, 16, 32, 64, 100, 128, 256, 512, 1024})
"""Counts at which a server stands because somebody set them."""


def knee_of_the_pool(e: Evidence) -> Iterator[Finding]:
    """Over a sweep: up to a full pool a token takes a little longer with each request; beyond, requests
    give way to
    each other and tokens take several times as long.
    """
    usage = next(
        (r for r in e.under("sweep:") if re.search(r"kv|cache.*us|token_usage", r.name) and r.numbers), None
    )
    gaps = next((r for r in e.under("sweep:") if re.search(r"itl|tpot", r.name) and r.numbers), None)
    if usage is None or gaps is None:
        return
    full = [gap for use, gap in zip(usage.numbers, gaps.numbers, strict=False) if share(use) >= 0.95]
    before = [gap for use, gap in zip(usage.numbers, gaps.numbers, strict=False) if share(use) < 0.95]
    if full and before and min(full) > 2 * max(before) > 0:
        yield Finding(
            Label.THRASH,
            f"From a full pool on a token takes {min(full) / max(before):.1f} times as long: requests "
            f"give way to each other",
            tuple(
                Fact(f"{r.name}: {', '.join(f'{n:g}' for n in r.numbers[:8])}", r.where)
                for r in (usage, gaps)
            ),
            Advice(
                more_kv(e),
                "tokens as before the knee",
                "requests wait instead",
                "preemptions at the same load",
            ),
            Severity.WARNING,
            0.75,
            also=(Label.KV_CAPACITY,),
            explains=frozenset({Label.UNDETERMINED, Label.COMPUTE, Label.EXPECTED}),
        )


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


def pool_below_demand(e: Evidence) -> Iterator[Finding]:
    """Tokens of the pool / tokens of a request = how many run at once, whatever max_num_seqs says."""
    tokens = e.number("startup:kv_cache_tokens", "startup:kv_tokens", "startup:max_total_num_tokens")
    if tokens is None and (
        blocks := e.number("startup:kv_blocks", "startup:num_gpu_blocks") or e.flag("num-gpu-blocks")
    ):
        tokens = blocks * (e.flag("block-size") or 16)
    each = max(prompt_tokens(e), default=0.0) + (e.number(*(f"workload:{n}" for n in _OUTPUTS)) or 0.0)
    offered = concurrency(e)
    times = e.number("startup:max_concurrency_x")
    fits = tokens / each if tokens and each else times
    if fits is None or offered is None or fits >= 0.8 * offered or start_failed(e) or load_of(e).kv:
        return
    yield Finding(
        Label.KV_CAPACITY,
        f"The KV pool holds {fits:.1f} such requests and {offered:,.0f} are sent at once",
        (*pool_facts(e), Fact(f"{each:,.0f} tokens a request" if each else "at max_model_len")),
        Advice(
            more_kv(e), "as many at once as fit", "fp8 KV may cost quality", "kv_cache_usage_perc under load"
        ),
        Severity.WARNING,
        0.65 if each else 0.5,
    )


_OUTPUTS = ("output_tokens", "max_tokens", "output_len", "generation_tokens", "max_new_tokens")


RULES = (
    context_shared,
    head_does_not_fit,
    knee_of_the_pool,
    pool_allocation_failed,
    pool_below_demand,
)
