"""Prefix hits of a server at work: misses that are right, and caching that is off where it might pay.

A server does not tell what prompts have in common; how much is computed, how long prompts are and what the
pool holds say when nothing can have been missed.
"""

from collections.abc import Iterator

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.finding import Advice, Fact, Finding, Label, Severity
from headrace.diagnose.histograms import histogram
from headrace.diagnose.load import increase, load_of
from headrace.diagnose.rules.cache import FEW_QUERIES, LOW_RATE, block_size, hit_rate, is_off, shared_tokens
from headrace.diagnose.rules.support import fact


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


RULES = (rightly_missed, off_while_prompts_are_the_work)
