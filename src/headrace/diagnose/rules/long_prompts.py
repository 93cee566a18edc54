"""Prompts that fill the steps: others crawl beside them, or wait for tokens of a step.

A running prefill holds others up without anybody waiting, so the queue shows nothing of it.
"""

import re
from collections.abc import Iterator

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.finding import Advice, Fact, Finding, Label, Severity
from headrace.diagnose.flag_facts import flag_facts
from headrace.diagnose.load import load_of, share
from headrace.diagnose.quantities import ALONE, BESIDE, Quantity, pairs, quantities
from headrace.diagnose.rules import pace
from headrace.diagnose.rules.queue import KV_FULL
from headrace.diagnose.rules.support import (
    asks_at_once,
    concurrency,
    fact,
    load_facts,
    out_of_memory,
    prompt_tokens,
    start_failed,
)

PINNED = 0.1
"""Prompt tokens a second that vary by no more than this, with a queue, are all the card can read."""
SOME_STEPS, LONG_PROMPT = 2, 4096
"""Enough where somebody saw streams stop meanwhile."""
MANY_STEPS = 8
"""A prompt that takes so many steps of the whole token budget is felt by everybody else."""
SLOW_STREAM_TOK_S = 3.0
"""Slower than this a stream is not decoding by itself on any card: others' work fills its steps."""


def behind_a_long_prompt(e: Evidence) -> Iterator[Finding]:
    """A prefill that runs takes the whole token budget of every step until it ends (first in running
    order), so newcomers get what its last chunk leaves, and each decode waits a chunk's time for its
    token.
    """
    budget = _budget(e)
    longest = max(prompt_tokens(e), default=0.0)
    steps = longest / budget if budget and budget > 0 else 0.0
    found = quantities(e)
    beside = [p for p in pairs(found, ALONE, BESIDE) if p.times_worse > 4]
    beside += [p for p in pairs(found, ALONE, None) if p.times_worse > 8 and (longest > 1000 or steps >= 2)]
    crawl = _crawls(e)
    jerks = longest >= LONG_PROMPT and _jerks(found)
    stall = [
        r for r in e.under("client:") if re.search(r"stall|freez|pause|gap", r.name) and (r.last or 0) >= 1
    ]
    told = steps >= SOME_STEPS and longest >= LONG_PROMPT and _is_mixed(e) and bool(stall)
    others = _is_mixed(e) or "max-num-partial-prefills" in e.flags or _only_some(e, found)
    mixed = told or (steps >= MANY_STEPS and others)
    if (
        start_failed(e)
        or out_of_memory(e)
        or e.flag("long-prefill-token-threshold")
        or not (beside or crawl or mixed or jerks)
    ):
        return
    facts = tuple(fact(e, q.name) for p in beside[:1] for q in (p.base, p.other)) + crawl
    if steps >= 2:
        facts += (
            Fact(
                f"{longest:,.0f} prompt tokens / {budget:,.0f} a step = {steps:.0f} steps",
                e.where("max-num-batched-tokens"),
            ),
        )
    yield Finding(
        Label.QUEUEING,
        "Long prefills hold the others up: short requests and running streams get what their steps leave",
        facts,
        Advice(
            _for_long_prompts(e, budget or 2048, longest),
            "short prompts pass; a stream's gap is one chunk, about budget / prefill speed",
            "the long prompt itself takes a tenth to a few times longer",
            "P99 of ITL, and TTFT of short requests while a long one is read",
        ),
        Severity.WARNING,
        0.8 if beside or (mixed and crawl) else 0.65,
        also=(Label.COMPUTE,) if beside and asks_at_once(e) else (),
        rivals=("the card being slow at decoding: compare with a time without long prompts",),
        explains=frozenset({Label.COMPUTE, Label.UNDETERMINED, Label.MEMORY_BANDWIDTH, Label.CPU}),
    )


def _only_some(e: Evidence, found: list[Quantity]) -> bool:
    """Whether a few requests are far later than the usual one: those that came behind a long prompt."""
    firsts = {q.stat: q.last for q in found if q.what == "ttft" and not q.is_rate and not q.situation}
    usual = firsts.get("p50", firsts.get("median", 0.0))
    tail = usual > 0 and max(firsts.get("p99", 0.0), firsts.get("max", 0.0)) > TAIL * usual
    shares = [r for r in e.under("client:") if re.search(r"(?:share|fraction|ratio).*(?:above|over)", r.name)]
    return tail or any(0 < share(r.last or 0.0) < MOST for r in shares)


TAIL, MOST = 10.0, 0.5


def _jerks(found: list[Quantity]) -> bool:
    """Whether the slowest gaps between tokens are many times the usual: steps that carry others' prompts."""
    gaps = [q for q in found if q.what == "itl" and not q.is_rate]
    usual = next((q.last for q in gaps if q.stat in {"p50", "median"}), 0.0)
    slowest = next((q.last for q in gaps if q.stat in {"p99", "p999", "max"}), 0.0)
    return usual > 0 and slowest > 10 * usual


def _budget(e: Evidence) -> float | None:
    """Tokens of a step: as given, or the least default of vLLM's."""
    least = flag_facts().default("max-num-batched-tokens", e.release) if e.engine == "vllm" else None
    given = e.flag("max-num-batched-tokens") or e.flag("chunked-prefill-size")
    return given or e.number("startup:max_num_batched_tokens", "startup:chunked_prefill_size") or least


def _for_long_prompts(e: Evidence, budget: float, longest: float) -> str:
    if e.engine == "sglang":
        return "--chunked-prefill-size lower, priorities for short prompts, or a replica for long ones"
    if e.engine == "llama.cpp":
        return "--ubatch-size and --batch-size lower, or another server for long prompts"
    if not flag_facts().has("long-prefill-token-threshold", e.release):
        return (
            "a newer version with --long-prefill-token-threshold; until then another replica for long prompts"
        )
    threshold = max(256, int(budget // 2))
    wide = " and --max-num-batched-tokens 2048 to 8192" if budget <= 1024 and longest > 16_000 else ""
    smaller = " and --max-num-batched-tokens lower" if budget >= 8192 else ""
    return (
        f"--long-prefill-token-threshold {threshold}{wide}{smaller}; headrace simulate shows both sides first"
    )


_COMPANY = re.compile(
    r"\bmix|\bseveral\b|\bothers\b|\w \+ \w|(?:small|short|other|running|decod\w+|interactive) "
    r"(?:\w+ )?(?:requests?|prompts?|ones|streams?|clients?|users?|generation)"
)


def _is_mixed(e: Evidence) -> bool:
    """Whether long prompts have company: other lengths, several requests, or somebody who decodes."""
    if concurrency(e) == 1:
        return False
    lengths = prompt_tokens(e)
    several = (concurrency(e) or 0) > 1 or _COMPANY.search(e.told()) is not None
    return several or (len(lengths) > 1 and max(lengths) > 4 * min(lengths))


def _crawls(e: Evidence) -> tuple[Fact, ...]:
    """Streams that run, with nobody waiting and room in KV, at less than any card's own pace."""
    load = load_of(e)
    if load.peak_waiting > 0 or load.peak_kv >= KV_FULL:
        return ()
    rates = [q for q in quantities(e) if q.is_rate and q.what in {"decode", "output", "generation", "gen"}]
    slow = [q for q in rates if q.stat == "min" or len(rates) == 1]
    worst = min((q.last for q in slow), default=None)
    best = max((q.last for q in rates), default=0.0)
    if worst is not None and load.peak_running > 1 and worst < SLOW_STREAM_TOK_S and best > 3 * worst:
        return tuple(fact(e, q.name) for q in rates[:2]) + load_facts(e, load)
    crawling = [
        i
        for i, (r, g, p) in enumerate(zip(load.running, load.generated, load.prompted, strict=False))
        if r >= 2 and p > 100 and g < 0.02 * p and g < SLOW_STREAM_TOK_S * r
    ]
    return load_facts(e, load) if len(crawling) >= 2 else ()


def prompts_faster_than_prefill(e: Evidence) -> Iterator[Finding]:
    """A queue with KV and slots free waits for tokens of a step: prompts come faster than they are
    computed.
    """
    load = load_of(e)
    cap = e.flag("max-num-seqs")
    tokens_bind = load.waits_with_room(KV_FULL) > 0.5 and not (cap and load.peak_running >= 0.98 * cap)
    known = load.prompted and max(load.prompted) > 0 and sum(load.prompted) > 5 * sum(load.generated)
    idle = not load.peak_running or not load.waits
    if e.engine == "sglang" or start_failed(e) or not tokens_bind or not known or idle:
        return
    looks = load.waiting if len(load.waiting) > 1 else load.waiting * len(load.prompted)
    at_work = [rate for rate, waiting in zip(load.prompted, looks, strict=False) if waiting > 0]
    pinned = len(at_work) >= 3 and min(at_work) > (1 - PINNED) * max(at_work)
    yield Finding(
        Label.COMPUTE if pinned else Label.QUEUEING,
        f"{load.peak_waiting:,.0f} wait with KV and slots free: each step's tokens go to prompts, "
        f"{max(load.prompted):,.0f} tokens a second",
        (*load_facts(e, load), fact(e, load.names["prompted"])),
        pace.advice(e, level=pinned),
        Severity.WARNING,
        0.75 if pinned else 0.7,
        also=(Label.QUEUEING if pinned else Label.COMPUTE,),
    )


RULES = (behind_a_long_prompt, prompts_faster_than_prefill)
