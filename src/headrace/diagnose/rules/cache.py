"""Prefix caching: whether a miss is a fault. Only whole blocks are kept, and only equal beginnings hit."""

import re
from collections.abc import Iterator

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.finding import Advice, Fact, Finding, Label, Severity
from headrace.diagnose.load import increase, load_of, share
from headrace.diagnose.rules.support import fact, prompt_tokens, said
from headrace.diagnose.sizes import model_of

_HYBRID = re.compile(
    r"mamba|jamba|gdn|hybrid|qwen3[.\-_]?(?:next|5|6)|nemotron.?h|granite.?4|falcon.?h|lfm|kimi.?linear|recurrent|zamba"
)
"""Models some of whose layers keep a state instead of a cache."""
LARGE_BLOCK = 128
LOW_RATE = 0.05
FEW_QUERIES = 500
"""Tokens: below it there was hardly a prompt."""


def misses(e: Evidence) -> Iterator[Finding]:
    """Hits need a shared beginning of at least one block (on hybrid models 500 to 2,000 tokens), on the
    same replica, not evicted meanwhile; a rate of 0 with other traffic is right.
    """
    if e.engine == "llama.cpp" or is_off(e):
        return
    rate, names = hit_rate(e)
    shared = shared_tokens(e)
    block = block_size(e)
    repeats = bool(
        re.search(
            r"exact|repeat(?!s itself)|shared|same (?:prefix|prompt|system)|multi.?turn|conversation",
            _told_names(e),
        )
    )
    recurrent = _keeps_states(e) or bool(_HYBRID.search(f"{e.told()} {model_of(e)}"))
    # What the server tells of itself is its default, and nobody's wish.
    told = not e.where("enable-prefix-caching").endswith("cache_config_info")
    wanted = told and e.is_on("enable-prefix-caching") and rate == 0.0
    if (
        rate is None
        or rate > LOW_RATE
        or not (shared or repeats or recurrent or wanted or (block or 0) > LARGE_BLOCK)
    ):
        return
    facts = tuple(fact(e, name) for name in names) + tuple(
        said(event) for event in e.of("attention_block")[:1]
    )
    if shared:
        facts += (Fact(f"shared beginning {shared:,.0f} tokens, block {block or 16:,.0f} tokens"),)
    yield _miss(rate, shared, block, facts, 0.7 if repeats else 0.6)


def _keeps_states(e: Evidence) -> bool:
    """Every vLLM tells of a mode; "none" is that of a model without such layers."""
    mode = e.flags.get("mamba-cache-mode")
    return mode is not None and str(mode.value).lower() not in {"none", ""}


def _miss(
    rate: float, shared: float | None, block: float | None, facts: tuple[Fact, ...], confidence: float
) -> Finding:
    short = bool(shared and block and shared < block)
    long_blocks = short or (block or 0) > LARGE_BLOCK
    return Finding(
        Label.PREFIX_MISS,
        f"No prefix hits, and rightly so: the shared part is shorter than one block of "
        f"{block or 16:,.0f} tokens"
        if short
        else f"Prefix hits are {rate:.0%} although prompts begin alike",
        facts,
        Advice(
            "put what is shared first and make it longer than a block"
            if long_blocks
            else "see whether the block ('Setting attention block size to …') is longer than the shared "
            "part, whether a date or id stands before it, and whether requests reach the same replica",
            "those tokens are not computed again: TTFT",
            "none",
            "prefix_cache_hits_total / prefix_cache_queries_total after a prompt of two blocks and "
            "more, sent twice",
        ),
        Severity.WARNING,
        0.85 if short else confidence,
        rivals=("--enable-prefix-caching is on by default and not the cause",),
        explains=frozenset({Label.UNDETERMINED, Label.SHIFT} | (set[Label]() if short else {Label.COMPUTE})),
    )


def is_off(e: Evidence) -> bool:
    given = e.flags.get("enable-prefix-caching")
    return (
        (given is not None and given.value is False)
        or e.is_on("disable-radix-cache")
        or e.is_on("no-enable-prefix-caching")
    )


def hit_rate(e: Evidence) -> tuple[float | None, tuple[str, ...]]:
    """Share of looked-up tokens that hit, and from which readings."""
    hits = next((r for r in e.readings.values() if r.numbers and _HITS.search(r.name)), None)
    asked = next((r for r in e.readings.values() if r.numbers and _QUERIES.search(r.name)), None)
    if hits is not None:
        found, queries = increase(e, hits.name) or 0.0, increase(e, asked.name) if asked else None
        if queries is None and found == 0:
            return 0.0, (hits.name,)
        if queries and queries > FEW_QUERIES and asked:
            return found / queries, (asked.name, hits.name)
    for reading in e.readings.values():
        idle = (
            reading.name == "log:prefix_hit_rate"
            and bool(load_of(e).running)
            and load_of(e).peak_running == 0
        )
        if reading.numbers and _RATES.search(reading.name) and "mm_" not in reading.name and not idle:
            return share(reading.numbers[-1]), (reading.name,)
    return None, ()


_HITS = re.compile(
    r"(?<!mm_)(?<!external_)(?:prefix_)?cache_hits(?:_total)?$|cached_(?:prompt_)?tokens(?:_total)?$|prompt_tokens_cached(?:_total)?$"
)
_QUERIES = re.compile(r"(?<!mm_)(?<!external_)prefix_cache_queries(?:_total)?$")
_RATES = re.compile(r"(?<!external_)(?:cache_)?hit_?(?:rate|ratio|perc)")


def block_size(e: Evidence) -> float | None:
    return (
        e.number("startup:block_size", "vllm:block_size", "startup:attention_block_size")
        or e.number("workload:block_size", "workload:kv_block_tokens")
        or e.flag("block-size")
    )


def shared_tokens(e: Evidence) -> float | None:
    for reading in e.under("workload:"):
        if re.search(r"shared|prefix|system_prompt", reading.name) and reading.last and reading.last > 1:
            return reading.last
    return None


def _told_names(e: Evidence) -> str:
    return e.told() + " " + " ".join(reading.name for reading in e.under("workload:"))


def spread_over_replicas(e: Evidence) -> Iterator[Finding]:
    """Each replica has a cache of its own: without affinity a beginning is computed once for each."""
    told = e.number("hardware:replicas", "workload:replicas", "hardware:pods", "workload:pods") or 0.0
    ranks = e.flag("data-parallel-size") or 0.0
    replicas = max(told, ranks)
    aware = re.search(r"affin|sticky|prefix.?aware|kv.?aware|cache.?aware|session.?hash|consistent", e.told())
    blind = not aware and (
        ranks >= 2 or re.search(r"round.?robin|random|least|plain|service|balanc|rout", e.told())
    )
    rate, names = hit_rate(e)
    sharing = re.search(r"shared|prefix|conversation|multi|turns|session|chat|reuse", _told_names(e))
    if replicas >= 2 and blind and sharing and (rate is None or rate < 0.5):
        yield Finding(
            Label.PREFIX_MISS,
            f"{replicas:.0f} replicas behind a router that does not look at prompts: each begins anew",
            (*(fact(e, name) for name in names), Fact(e.told()[:160])),
            Advice(
                "a router with prefix or session affinity and load in the same score",
                "hits as on one replica",
                "plain longest-prefix routing sends all to one replica",
                "hit rate by replica",
            ),
            Severity.WARNING,
            0.75,
        )


def recurrent_cache(e: Evidence) -> Iterator[Finding]:
    """llama.cpp computes a whole prompt again when a sliding window or recurrent state is gone."""
    for event in e.of("llama_reprocess")[:1]:
        yield Finding(
            Label.PREFIX_MISS,
            f"The whole prompt was computed again {e.counts['llama_reprocess']} times: the cached state "
            f"no longer fits it",
            (said(event),),
            Advice(
                "--swa-full, or checkpoints of the context (--ctx-checkpoints)",
                "prompts begin where they differ",
                "memory",
            ),
            Severity.WARNING,
            0.8,
        )


def more_sessions_than_fit(e: Evidence) -> Iterator[Finding]:
    """Blocks that nobody holds are given away oldest first: where the sessions' contexts together exceed
    the pool,
    each is gone by the time its next turn comes.
    """
    pool = e.number("startup:kv_cache_tokens", "startup:kv_tokens", "startup:max_total_num_tokens")
    told = [
        r.last
        for r in e.under("workload:")
        if re.search(r"sessions|conversations|users|agents", r.name) and r.last
    ]
    length = max(prompt_tokens(e), default=0.0)
    rate, names = hit_rate(e)
    wanted = max(told, default=0.0) * length
    if pool and told and wanted > 1.5 * max(pool, 1.0) and (rate is None or rate < 0.5):
        yield Finding(
            Label.PREFIX_MISS,
            f"{max(told):,.0f} sessions of {length:,.0f} tokens are {wanted / pool:.1f} times the pool: "
            f"evicted before reuse",
            (*(fact(e, name) for name in names), fact(e, "startup:kv_cache_tokens")),
            Advice(
                "more KV (--kv-cache-dtype fp8, --kv-offloading-size for a tier in host memory), "
                "session affinity over "
                "more replicas",
                "turns that begin where the last one ended",
                "host memory and transfers",
                "the hit rate, and with --kv-cache-metrics lifetime against reuse gap",
            ),
            Severity.WARNING,
            0.75,
            also=(Label.KV_CAPACITY,),
            explains=frozenset({Label.UNDETERMINED}),
        )


_CHANGING = re.compile(
    r"timestamp|date[ _]?time|uuid|request[ _]?id|nonce|cache[ _]salt|random (?:prefix|id)|current[ "
    r"_](?:date|time)"
)


def begins_differently(e: Evidence) -> Iterator[Finding]:
    """A date or an id before the shared part makes every block's hash new."""
    text = " ".join(f"{r.name} {r.text}" for r in e.under("workload:")).lower()
    found = _CHANGING.search(text)
    rate, names = hit_rate(e)
    if found and (rate is None or rate < 0.3):
        yield Finding(
            Label.PREFIX_MISS,
            f"Prompts begin with something new each time ({found[0]}), so nothing after it can hit",
            tuple(fact(e, name) for name in names) or (Fact(text[:160]),),
            Advice(
                "put what changes last",
                "the shared part is computed once",
                "none",
                "the hit rate of the same traffic",
            ),
            Severity.WARNING,
            0.75,
        )


def turned_off(e: Evidence) -> Iterator[Finding]:
    """Without prefix caching every request computes the shared beginning again, whoever computed it
    before.
    """
    if is_off(e) and re.search(r"shared|system.?prompt|multi.?turn|conversation|repeat", _told_names(e)):
        name = next((n for n in ("enable-prefix-caching", "disable-radix-cache") if n in e.flags), "")
        yield Finding(
            Label.PREFIX_MISS,
            "Prefix caching is turned off while prompts begin alike",
            (fact(e, name),),
            Advice(
                "leave that flag out",
                "shared beginnings are computed once",
                "a few per cent of CPU for hashing",
            ),
            Severity.WARNING,
            0.75,
            also=(Label.BAD_FLAGS,),
        )


def evicted_before_reuse(e: Evidence) -> Iterator[Finding]:
    """With --kv-cache-metrics: blocks idle longer than their pool keeps them are lost before they are asked
    for.
    """
    lifetime = _mean(e, "vllm:kv_block_lifetime_seconds")
    gap = _mean(e, "vllm:kv_block_reuse_gap_seconds")
    rate, names = hit_rate(e)
    if lifetime is not None and gap is not None and rate is not None and gap > 0.8 * lifetime and rate < 0.5:
        yield Finding(
            Label.PREFIX_MISS,
            f"Blocks live {lifetime:.0f} s and are asked for again after {gap:.0f} s: many are gone by then",
            tuple(fact(e, name) for name in names),
            Advice(
                "more KV (--kv-cache-dtype fp8, --kv-offloading-size for a tier in host memory), or "
                "affinity routing",
                "more hits",
                "host memory and transfers",
                "kv_block_lifetime_seconds above kv_block_reuse_gap_seconds",
            ),
            Severity.WARNING,
            0.7,
            also=(Label.KV_CAPACITY,),
        )


def _mean(e: Evidence, name: str) -> float | None:
    count, total = e.number(f"{name}_count"), e.number(f"{name}_sum")
    return total / count if count and total is not None else None


RULES = (
    misses,
    begins_differently,
    more_sessions_than_fit,
    spread_over_replicas,
    recurrent_cache,
    turned_off,
    evicted_before_reuse,
)
