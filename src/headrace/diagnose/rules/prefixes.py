"""Prefix hits of a server at work: misses that are right, and caching that is off where it might pay.

A server does not tell what prompts have in common; how much is computed, how long prompts are and what the
pool holds say when nothing can have been missed.
"""

import re
from collections.abc import Iterator

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.finding import Advice, Fact, Finding, Label, Severity
from headrace.diagnose.histograms import histogram
from headrace.diagnose.load import increase, load_of
from headrace.diagnose.rules.cache import FEW_QUERIES, LOW_RATE, block_size, hit_rate, is_off, shared_tokens
from headrace.diagnose.rules.support import fact, start_failed

FULL = 0.9
"""Of the pool: above it what was kept may have been given away."""


def rightly_missed(e: Evidence) -> Iterator[Finding]:
    """A hit needs a beginning that an earlier prompt had, and blocks that nobody took since. Where fewer
    tokens were computed meanwhile than the pool holds, none was taken: no two prompts began alike.
    """
    rate, names = hit_rate(e)
    pool, computed = e.flag("kv-cache-size-tokens"), _computed(e)
    queries = increase(e, "vllm:prefix_cache_queries_total")
    seen = len(e.series("vllm:prefix_cache_queries_total")) > 1
    if rate is None or rate > LOW_RATE or is_off(e) or not (seen and queries and queries > FEW_QUERIES):
        return
    if not _reads_more_than_it_writes(e) or shared_tokens(e):
        return
    kept = bool(pool and computed < pool)
    block = block_size(e) or 16
    yield Finding(
        Label.EXPECTED,
        f"Prefix hits are {rate:.0%} of {queries:,.0f} tokens looked up"
        + (
            ", and rightly so: no two of these prompts begin alike"
            if kept
            else ": these prompts may not begin alike"
        ),
        (
            *(fact(e, name) for name in names),
            *(
                (Fact(f"{computed:,.0f} tokens computed meanwhile, the pool holds {pool:,.0f}"),)
                if pool
                else ()
            ),
        ),
        Advice(
            "nothing, if prompts have nothing in common; if they have, put that first: a date, an id or a "
            f"name before it makes every block of {block:,.0f} tokens behind it new",
            "what is shared is computed once",
            "none: looking up costs next to nothing",
            "prefix_cache_hits_total after one prompt of two blocks and more, sent twice",
        ),
        Severity.NOTE,
        _how_sure(kept, load_of(e).waits),
        rivals=("beginnings that are shared with requests at another replica",),
        explains=frozenset({Label.UNDETERMINED}),
    )


def _how_sure(kept: bool, waits: bool) -> float:
    """Where requests wait, misses that are right are not what is wrong: what explains the wait goes first."""
    if not kept:
        return 0.55
    return 0.7 if waits else 0.9


def off_while_prompts_are_the_work(e: Evidence) -> Iterator[Finding]:
    """Reading prompts is most of the work, and the one setting that leaves parts of it out is turned off. The
    server cannot tell what it would find; prompts of nearly one length are what templates make.
    """
    prompts = histogram(e, "vllm:request_prompt_tokens")
    if not is_off(e) or not prompts.count or not _reads_more_than_it_writes(e):
        return
    shortest, longest = prompts.at(0.05).low, prompts.at(0.95).high
    alike = shortest >= LONG_PROMPT and longest <= ALIKE_TIMES * shortest
    if shortest < LONG_PROMPT:
        return
    name = next((n for n in ("enable-prefix-caching", "disable-radix-cache") if n in e.flags), "")
    yield Finding(
        Label.PREFIX_MISS,
        f"Prefix caching is off, and reading prompts is most of the work: of nearly all {shortest:,.0f} to "
        f"{longest:,.0f} tokens, every one is computed"
        + (", and lengths so alike are what a template makes" * alike),
        (fact(e, name), Fact(f"{_computed(e):,.0f} tokens computed", e.where("vllm:prompt_tokens_total"))),
        Advice(
            "leave --no-enable-prefix-caching out (it is on by default), then look at the hit rate"
            if name == "enable-prefix-caching"
            else "leave --disable-radix-cache out, then look at the hit rate",
            "what prompts begin with alike is computed once: TTFT, and room for more requests",
            "none to speak of where nothing is shared: a hash for each block",
            "prefix_cache_hits_total / prefix_cache_queries_total with the same traffic",
        ),
        Severity.WARNING,
        0.75 if alike else 0.5,
        rivals=(
            "prompts that begin differently: then the hit rate stays 0 and the machine is what is short",
        ),
        also=(Label.BAD_FLAGS,),
        explains=frozenset(
            {Label.QUEUEING, Label.COMPUTE, Label.UNDETERMINED} if alike else {Label.UNDETERMINED}
        ),
    )


LONG_PROMPT, ALIKE_TIMES = 200.0, 5.0
PROMPT_HEAVY = 4.0
"""So many prompt tokens for each one that is generated, and prompts are most of the work."""


def _reads_more_than_it_writes(e: Evidence) -> bool:
    made = increase(e, "vllm:generation_tokens_total") or 0.0
    return _computed(e) > PROMPT_HEAVY * made


def _computed(e: Evidence) -> float:
    """Prompt tokens that were not found."""
    names = ("headrace:prefill_tokens_total", "vllm:prompt_tokens_by_source_total{source=local_compute}")
    return increase(e, *names, "vllm:prompt_tokens_total") or 0.0


_HITS_OF_THE_SAME = re.compile(
    r"hit.*(?:identical|same|repeat|resent|again)|(?:identical|same|repeat|resent).*hit"
)


def same_prompt_not_hit(e: Evidence) -> Iterator[Finding]:
    """The same prompt sent again begins as it did before: where not one of its blocks is hit though the pool
    has room, the lookup fails, or another replica or another salt answers.
    """
    counted = [r for r in e.readings.values() if r.numbers and _HITS_OF_THE_SAME.search(r.name.lower())]
    none = [r for r in counted if max(r.numbers) == 0]
    if not none or is_off(e) or load_of(e).peak_kv >= FULL or start_failed(e):
        return
    yield Finding(
        Label.PREFIX_MISS,
        "The same prompt was sent again and not one of its tokens was found, with room in the KV pool",
        (fact(e, none[0].name), *(fact(e, name) for name in [load_of(e).names["kv"]] if name in e.readings)),
        Advice(
            "ask one replica directly, without cache_salt: if it still misses, the lookup is at fault "
            "(hybrid models, speculative decoding, KV connectors): another version",
            "those tokens are not computed again: TTFT",
            "none",
            "prefix_cache_hits_total after the same prompt twice",
        ),
        Severity.WARNING,
        0.8,
        rivals=("a prompt shorter than one block: 'Setting attention block size to …'",),
        explains=frozenset({Label.UNDETERMINED, Label.CLIENT, Label.MEASUREMENT, Label.INTERCONNECT}),
    )


_GOES_TO_NONE = re.compile(
    r"(?:cache|usage).{0,60}(?:\b0 ?%|\b0\.0|\bzero\b|empt|drops|goes (?:back )?to|cleared|gone|freed)"
)


def cached_blocks_are_free(e: Evidence) -> Iterator[Finding]:
    """The pool's usage counts blocks that a request holds. What a finished one leaves behind can be found
    again until somebody takes it, and counts as free: 0 % of an idle server says nothing of its cache.
    """
    load = load_of(e)
    idle = bool(load.kv) and load.peak_kv == 0 and load.peak_running == 0 and load.peak_waiting == 0
    cached = e.is_on("enable-prefix-caching") or "prefix" in e.told()
    if not idle or not cached or is_off(e) or not _GOES_TO_NONE.search(e.told()) or start_failed(e):
        return
    yield Finding(
        Label.MEASUREMENT,
        "KV usage of 0 on an idle server is no empty prefix cache: blocks that nobody holds count as free "
        "and can still be found",
        (fact(e, load.names["kv"]), fact(e, load.names["running"])),
        Advice(
            "nothing; judge the cache by prefix_cache_hits_total, or TTFT of a prompt that is sent twice",
            "none",
            verify="the second of two equal prompts is read in a fraction of the time",
        ),
        Severity.NOTE,
        0.8,
        also=(Label.EXPECTED,),
        explains=frozenset({Label.PREFIX_MISS, Label.UNDETERMINED, Label.KV_CAPACITY}),
    )


RULES = (cached_blocks_are_free, same_prompt_not_hit, rightly_missed, off_while_prompts_are_the_work)
