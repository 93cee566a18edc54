"""The slots, the pool and the largest step against each other, by arithmetic: which of them leaves the others
unused.
"""

import re
from collections.abc import Iterator

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.finding import Advice, Fact, Finding, Label, Severity
from headrace.diagnose.load import load_of, share
from headrace.diagnose.rules.support import concurrency, fact, start_failed
from headrace.diagnose.sizes import memory_gib, ranks_of, weights_gib

LEAST_SHARE = 0.1
"""Of the pool, by one request: below it usage says little of what one more takes."""
LARGE_STEP = 16384
STEP_GIB, SMALL_POOL = 3.0, 0.15
"""GiB that no weights and no KV account for; a pool of so little of a card is small."""
_PUSHED_OUT = re.compile(r"preempt|retract|waiting|queued?(?!.*time)")


def one_request_times_slots(e: Evidence) -> Iterator[Finding]:
    """What one request alone takes of the pool, times the slots: where that is more than the pool, the slots
    cannot all be filled, however short the prompts are (hybrid models keep states of a fixed size).
    """
    load, slots = load_of(e), e.flag("max-num-seqs")
    alone = concurrency(e) == 1 or (load.running and load.peak_running == 1)
    if not alone or slots is None or slots < 2 or not load.kv or start_failed(e):
        return
    one = load.peak_kv
    trouble = [
        r for r in e.readings.values() if _PUSHED_OUT.search(r.name) and max(r.numbers, default=0.0) > 0
    ]
    if not trouble or one < LEAST_SHARE or one * slots <= 1:
        return
    yield Finding(
        Label.KV_CAPACITY,
        f"One request alone takes {one:.1%} of the KV pool: {slots:g} of them are {one * slots:.0%} of it",
        (fact(e, load.names["kv"]), fact(e, "max-num-seqs"), fact(e, trouble[0].name)),
        Advice(
            f"--max-num-seqs {max(1, int(1 / one))}, or a larger pool (--gpu-memory-utilization, "
            "--kv-cache-dtype fp8)",
            "who is admitted also ends",
            "a queue instead of preemptions",
            "preemptions at that load, and usage with one more request at a time",
        ),
        Severity.WARNING,
        0.75,
        also=(Label.THRASH,),
        explains=frozenset({Label.UNDETERMINED, Label.QUEUEING, Label.THRASH}),
    )


def more_pool_than_slots(e: Evidence) -> Iterator[Finding]:
    """Start-up says how many of the longest requests the pool holds. Slots below that leave part of it empty
    even then.
    """
    held, slots = e.number("startup:max_concurrency_x"), e.flag("max-num-seqs")
    longest = e.flag("max-model-len")
    if held is None or slots is None or longest is None or held < slots + LEAST_SHARE * slots:
        return
    if (tokens := e.number("startup:kv_cache_tokens")) and tokens < (1 - COUNTED_APART) * held * longest:
        return  # the pool is smaller than that, for whoever reads its whole context
    if start_failed(e) or e.flag("num-gpu-blocks-override"):
        return
    waits = load_of(e).peak_waiting > 0
    yield Finding(
        Label.BAD_FLAGS,
        f"The pool holds {held:g} requests of the full {longest:,.0f} tokens, and {slots:g} may run: the "
        "rest is never used",
        (fact(e, "startup:max_concurrency_x"), fact(e, "max-num-seqs"), fact(e, "max-model-len")),
        Advice(
            f"--max-num-seqs {int(held) if held >= slots + 1 else int(slots) + 1} or more (shorter requests "
            "fit many times), or a longer --max-model-len where the model allows it",
            "fewer wait, from the memory that is there",
            "each step is shared by more",
            "kv_cache_usage_perc at the peak",
        ),
        Severity.WARNING if waits else Severity.NOTE,
        0.7,
        also=(Label.QUEUEING,),
        explains=frozenset({Label.UNDETERMINED}),
    )


def counted_two_ways(e: Evidence) -> Iterator[Finding]:
    """Layers with a window or a state need no more room as a context grows. "GPU KV cache size" counts as if
    every layer kept every token, "Maximum concurrency" counts what one request really takes.
    """
    tokens, held = e.number("startup:kv_cache_tokens"), e.number("startup:max_concurrency_x")
    longest = e.number("startup:concurrency_length", "startup:max_model_len") or e.flag("max-model-len")
    if not tokens or not held or not longest or start_failed(e) or load_of(e).running or tokens < longest:
        return
    times = held * longest / tokens
    if times > 1 / (1 - COUNTED_APART) or times < 1 - COUNTED_APART:
        yield Finding(
            Label.MEASUREMENT,
            f"The two start-up lines count differently: {tokens:,.0f} tokens are {tokens / longest:.1f} "
            f"requests of {longest:,.0f}, and {held:g} are printed",
            (fact(e, "startup:kv_cache_tokens"), fact(e, "startup:max_concurrency_x")),
            Advice(
                "plan with the concurrency line, and with kv_cache_usage_perc under load; on a model whose "
                "layers are all alike it is an error of that version",
                "none",
                verify="usage with one request of the full length: one over the concurrency",
            ),
            Severity.NOTE,
            0.75,
            explains=frozenset({Label.UNDETERMINED, Label.KV_CAPACITY, Label.BAD_FLAGS}),
        )


COUNTED_APART = 0.3
"""Of each other: blocks that are only part full make less."""


def step_takes_the_pool(e: Evidence) -> Iterator[Finding]:
    """Start-up runs the largest step it is allowed, and what its activations took is kept out of the pool:
    what weights and KV do not account for belongs to that step.
    """
    tokens, pool = e.flag("max-num-batched-tokens"), e.number("startup:kv_gib", "startup:kv_available_gib")
    weights, card = weights_gib(e), memory_gib(e)
    if None in (tokens, pool, weights, card) or not (tokens and weights and card) or pool is None:
        return
    ranks = ranks_of(e)
    budget = share(e.flag("gpu-memory-utilization") or 0.9) * card
    rest = budget - weights / ranks - pool
    if tokens < LARGE_STEP or rest < STEP_GIB or pool > SMALL_POOL * card or start_failed(e):
        return
    yield Finding(
        Label.BAD_FLAGS,
        f"Of {budget:.1f} GiB a card, weights take about {weights / ranks:.1f} and KV gets {pool:.1f}: the "
        f"other {rest:.1f} are kept for a step of {tokens:,.0f} tokens",
        (
            fact(e, "max-num-batched-tokens"),
            Fact(f"about {weights:.0f} GiB of weights on {ranks} card{'s' if ranks > 1 else ''}"),
        ),
        Advice(
            "--max-num-batched-tokens 8192 or less: a long prompt is read in more steps",
            "what a smaller step does not need becomes KV",
            "TTFT of a long prompt that is alone, a little",
            "'Available KV cache memory' after the change",
        ),
        Severity.WARNING,
        0.75,
        also=(Label.KV_CAPACITY,),
        rivals=("a model with large states or an encoder: the same start with half the tokens",),
        explains=frozenset({Label.UNDETERMINED, Label.MEASUREMENT, Label.KV_CAPACITY}),
    )


RULES = (one_request_times_slots, more_pool_than_slots, counted_two_ways, step_takes_the_pool)
