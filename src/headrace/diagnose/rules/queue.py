"""Why requests wait: KV, slots, ranks that share unevenly, or an engine that stands still.

The scheduler stops admitting at the first budget that is spent (KV blocks, sequences, tokens), so usage and
counts at the time say which.
"""

import re
from collections.abc import Iterator

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.finding import Advice, Fact, Finding, Label, Severity
from headrace.diagnose.load import Load, increase, load_of
from headrace.diagnose.quantities import quantities
from headrace.diagnose.rules.support import (
    asks_at_once,
    concurrency,
    fact,
    load_facts,
    on_cpu,
    said,
    start_failed,
)

KV_FULL = 0.9
"""Between two scrapes blocks come and go: at this reading the pool has been full."""


FULL = 0.97
"""A pool in which a running request does not find its next block."""


def thrash(e: Evidence) -> Iterator[Finding]:
    """KV is full, the youngest gives all its blocks back, queues, and is computed again from its first
    token.
    """
    load = load_of(e)
    retracted = e.counts.get("retracted", 0) or e.counts.get("preempted_v0", 0)
    lost = load.preemptions or 0.0
    done = increase(e, "vllm:request_success_total", "vllm:request_prompt_tokens_count") or 0.0
    signature = _gave_way(load)
    if not (retracted or lost or signature) or (lost and done and lost < 0.005 * done and not signature):
        return
    if few_of_many(e):
        return
    facts = load_facts(e, load) + tuple(said(event) for event in e.of("retracted", "preempted_v0")[:1])
    yield Finding(
        Label.THRASH,
        f"{_count(lost or retracted)} requests gave their KV blocks back and were computed again: the "
        f"pool is too small for what runs",
        facts + pool_facts(e),
        Advice(
            more_kv(e),
            "no work is done twice; ITL without gaps",
            "fewer requests at once wait longer for their first token",
            "rate(vllm:num_preemptions_total[5m]) is 0 under the same load",
        ),
        Severity.WARNING,
        0.85 if lost or retracted else 0.65,
        also=(Label.KV_CAPACITY,),
        rivals=("a few preemptions an hour cost nothing: compare with requests in the same time",),
        explains=frozenset(
            ({Label.KV_CAPACITY, Label.UNDETERMINED, Label.STALL} | _queue_of_a_full_pool(load))
            if lost or retracted
            else {Label.KV_CAPACITY}
        ),
    )


FEW = 0.1
"""Preemptions for each request that ended, below which little is computed twice."""


def few_of_many(e: Evidence) -> bool:
    """Whether few requests were preempted and all of them ended, by the client's count."""
    lost, ended = load_of(e).preemptions, e.number("client:completed", "client:completed_requests")
    sent = e.number("client:total", "client:total_requests", "client:requests", "workload:requests")
    return (
        bool(lost and ended and sent)
        and (ended or 0) >= 0.99 * (sent or 0)
        and (lost or 0) <= FEW * (ended or 0)
    )


def _queue_of_a_full_pool(load: Load) -> set[Label]:
    """What a full pool explains: the queue and its slow answers, if they wait while it is full."""
    return set() if load.waits_with_room(KV_FULL) > 0.5 else {Label.QUEUEING, Label.COMPUTE}


def _count(number: float) -> str:
    return f"{number:,.0f}" if number else "Some"


def _gave_way(load: Load) -> bool:
    """Waiting grows by what running loses with the pool full (nobody arrived, somebody was sent back), or
    tokens a second collapse when the pool is full and as many run as before.
    """
    if len(load.running) == len(load.waiting) == len(load.kv) > 1:
        steps = zip(load.running, load.running[1:], load.waiting, load.waiting[1:], load.kv, strict=False)
        if any(r0 - r1 >= 2 and w1 - w0 == r0 - r1 and kv >= KV_FULL for r0, r1, w0, w1, kv in steps):
            return True
    if len(load.generated) != len(load.kv) or len(load.kv) < 3:
        return False
    before = [made for made, kv in zip(load.generated, load.kv, strict=True) if kv < FULL]
    after = [made for made, kv in zip(load.generated, load.kv, strict=True) if kv >= FULL]
    steady = min(load.running, default=0.0) >= 0.8 * load.peak_running > 1
    return bool(before and after) and steady and min(after) < 0.4 * max(before) and not load.peak_waiting


def more_kv(e: Evidence) -> str:
    used = e.flag("gpu-memory-utilization")
    fewer = "--max-num-seqs so low that running requests fit at their full length"
    if (blocks := e.flag("num-gpu-blocks-override")) is not None:
        return f"leave --num-gpu-blocks-override {blocks:.0f} out, or raise it; or {fewer}"
    if e.engine == "headrace":
        return f"--kv-cache-memory-bytes higher, --num-gpu-blocks-override left out if it is set, or {fewer}"
    if e.engine == "vllm" and on_cpu(e):
        return f"VLLM_CPU_KVCACHE_SPACE higher (GiB), or {fewer}"
    if e.engine == "sglang":
        return "--mem-fraction-static higher, or --max-running-requests lower, so that what runs fits"
    if e.engine == "llama.cpp":
        return "--ctx-size higher, or --parallel lower"
    if used is not None and used < 0.85:
        return f"--gpu-memory-utilization {used:g} -> 0.90 (the pool grows by what the card has left)"
    return f"--kv-cache-dtype fp8 (twice the tokens), another replica, or {fewer}"


def kv_full(e: Evidence) -> Iterator[Finding]:
    """Admission needs blocks for the whole prompt; when the pool is full the head of the queue waits for an
    end.
    """
    load = load_of(e)
    if start_failed(e) or load.peak_kv < KV_FULL or not (load.peak_waiting or load.peak_running):
        return
    if load.waits_with_room(KV_FULL) > 0.5 and load.kv[-1] < KV_FULL:
        return  # most of the waiting was with room, and the pool has emptied since
    waits = load.peak_waiting > 0
    yield Finding(
        Label.KV_CAPACITY,
        f"KV blocks are used up ({load.peak_kv:.0%})"
        + (f" while {load.peak_waiting:,.0f} requests wait" if waits else ""),
        load_facts(e, load) + pool_facts(e),
        Advice(
            more_kv(e),
            "as many more requests at once as tokens fit",
            "fp8 KV may cost quality; longer steps",
            "kv_cache_usage_perc below 0.9 with the same traffic",
        ),
        Severity.WARNING,
        0.8 if waits else 0.5,
        rivals=(
            (
                "longer prompts or answers than before: compare request_prompt_tokens and "
                "request_generation_tokens"
            ),
        ),
        explains=frozenset(_queue_of_a_full_pool(load) if waits else set[Label]()),
    )


def no_slot(e: Evidence) -> Iterator[Finding]:
    """max_num_seqs run; the next waits for an end, whatever else is free."""
    load = load_of(e)
    cap = e.flag("max-num-seqs") or e.flag("max-running-requests") or e.flag("max-num-active-seqs")
    cap = cap or e.number("startup:max_running_requests")
    cap = cap or (e.flag("parallel") or e.flag("np") if e.engine == "llama.cpp" else None)
    offered = concurrency(e)
    at_cap = bool(
        cap and load.peak_waiting > 0 and load.peak_running >= 0.98 * cap and load.peak_kv < KV_FULL
    )
    below = bool(cap and (asks_at_once(e) or (offered and offered > cap)) and not load.running and cap <= 64)
    if not (at_cap or below):
        return
    tiny = below and asks_at_once(e)
    yield Finding(
        Label.QUEUEING,
        f"{cap:,.0f} requests run at once at most (max_num_seqs); the others wait, and TTFT holds that wait",
        tuple(fact(e, name) for name in ("max-num-seqs", "max-running-requests") if name in e.flags)
        + load_facts(e, load),
        Advice(
            "--max-num-seqs up to what KV holds, or a client that sends no more than that",
            "a shorter queue",
            "TPOT rises: more share each step",
            "num_requests_waiting is 0 most of the time, TTFT and TPOT together",
        ),
        Severity.WARNING,
        0.8,
        also=(Label.MEASUREMENT,) if tiny else (),
        explains=frozenset({Label.COMPUTE, Label.UNDETERMINED}),
    )


def reserved_ahead(e: Evidence) -> Iterator[Finding]:
    """SGLang admits against tokens that running requests may still make: a queue with most of the pool
    free.
    """
    load = load_of(e)
    cap = e.flag("max-running-requests")
    if (
        e.engine == "sglang"
        and load.peak_waiting > 0
        and load.peak_kv < 0.7
        and not (cap and load.peak_running >= cap)
    ):
        yield Finding(
            Label.QUEUEING,
            f"{load.peak_waiting:,.0f} wait with {load.peak_kv:.0%} of the pool used: admission keeps "
            f"room for answers to come",
            load_facts(e, load),
            Advice(
                "--schedule-conservativeness lower (0.3 and below), max_new_tokens as long as answers "
                "are, SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION lower",
                "more run at once",
                "retractions when answers get long after all",
                "token usage above 0.9 with a queue",
            ),
            Severity.WARNING,
            0.7,
            also=(Label.BAD_FLAGS,),
            explains=frozenset({Label.COMPUTE, Label.UNDETERMINED}),
        )


def cap_was_reduced(e: Evidence) -> Iterator[Finding]:
    """A server that sizes for its longest request lowers the count of what may run: the pool over the context
    length, whatever the traffic's lengths are.
    """
    for event in e.of("cap_reduced")[-1:]:
        yield Finding(
            Label.QUEUEING,
            "The server lowered what may run at once to "
            f"{event.number('cap') or event.number('seqs') or 0:,.0f}",
            (said(event), *(fact(e, n) for n in ("startup:kv_cache_tokens", "context-length") if e.where(n))),
            Advice(
                "--context-length (--max-model-len) to what requests need; less state a request "
                "(speculation, Mamba cache)",
                "as many at once as were asked for",
                "longer requests are refused",
                "the same line is gone at the next start",
            ),
            Severity.WARNING,
            0.7,
            also=(Label.KV_CAPACITY, Label.BAD_FLAGS),
            explains=frozenset({Label.UNDETERMINED}),
        )


def all_at_once(e: Evidence) -> Iterator[Finding]:
    """More sent at one moment than may run: the last waits for all before it, so TTFT is a queue's length,
    not the time to read a prompt.
    """
    sent = e.number("workload:requests", "workload:num_prompts", "workload:burst_requests") or concurrency(e)
    late = [q for q in quantities(e, ("client:", "runs:", "sweep:")) if q.what == "ttft" and not q.is_rate]
    given = e.flag("max-num-seqs")
    cap = given or DEFAULT_SLOTS
    few = sent is not None and _few_slots(e, given, sent)
    many = asks_at_once(e) and sent and sent > 2 * cap
    if not (late and sent and (many or few)) or start_failed(e) or load_of(e).running:
        return
    if max(q.last for q in late) < LATE_S:
        return
    yield Finding(
        Label.QUEUEING,
        f"{sent:,.0f} requests{' sent at once' * bool(many)}, {cap:,.0f} run: TTFT of "
        f"{late[0].last:,.0f} s is mostly their queue",
        tuple(fact(e, q.name) for q in late[:2]),
        Advice(
            "a rate or a concurrency that the goal for TTFT allows; count a prompt's own prefill by "
            "sending it alone",
            "TTFT without the queue",
            "the whole takes as long as before",
            "request_queue_time_seconds beside request_prefill_time_seconds",
        ),
        Severity.WARNING,
        0.75,
        also=(Label.MEASUREMENT,) if many else (Label.BAD_FLAGS,),
        explains=frozenset({Label.COMPUTE, Label.UNDETERMINED}),
    )


def _few_slots(e: Evidence, given: float | None, sent: float) -> bool:
    """Whether so few run at once that so many must wait, and nothing tells that they came one by one."""
    if given is None or given > FEW_SLOTS or sent <= FEW_SLOTS * given:
        return False
    at_once, told = concurrency(e), e.told()
    median = [q for q in quantities(e) if q.what == "ttft" and q.stat in {"p50", "median"} and not q.is_rate]
    waited = e.number("vllm:request_queue_time_seconds_mean")
    alone = (at_once is not None and at_once <= given) or _ONE_BY_ONE.search(told) is not None
    return not alone and not any(q.last < LATE_S for q in median) and waited != 0.0


_ONE_BY_ONE = re.compile(r"one (?:at a time|after|by one|every)|sequential|a day|per day|an hour")
FEW_SLOTS = 4
"""So few run at once on no card of today because it could not do more."""


DEFAULT_SLOTS = 256.0
LATE_S = 5.0


def pool_facts(e: Evidence) -> tuple[Fact, ...]:
    names = ("startup:kv_cache_tokens", "startup:max_concurrency_x", "gpu-memory-utilization", "max-num-seqs")
    return tuple(fact(e, name) for name in names if name in e.readings or name in e.flags)


def waits_for_something(e: Evidence) -> Iterator[Finding]:
    """A queue with KV to spare: slots or the tokens of a step. Which, the running count against its cap
    tells.
    """
    load = load_of(e)
    if not load.waits or load.peak_kv >= KV_FULL or not load.peak_running or start_failed(e) or not load.kv:
        return
    if any(no_slot(e)):
        return  # that says which
    yield Finding(
        Label.QUEUEING,
        f"{load.peak_waiting:,.0f} wait with {load.peak_kv:.0%} of KV used: slots or tokens of a step "
        f"are short, not KV",
        load_facts(e, load),
        Advice(
            "compare running with --max-num-seqs: at the cap raise it, below it prompts are what fills "
            "the steps (prompt tokens a second in the log)",
            "the budget that binds",
        ),
        Severity.WARNING,
        0.5,
        explains=frozenset({Label.UNDETERMINED}),
    )


def deferred(e: Evidence) -> Iterator[Finding]:
    """Newer servers say why: `deferred` requests are skipped (grammar, adapter, KV on its way), not out of
    budget.
    """
    skipped = e.number("vllm:num_requests_waiting_by_reason{reason=deferred}", "log:deferred") or 0.0
    load = load_of(e)
    waiting = load.waiting
    # Running requests fall away and nobody takes their place: the skipped ones hold the admission limit.
    starved = len(load.running) >= 2 and load.running[-1] < 0.3 * load.running[0]
    if skipped and waiting and skipped >= 0.5 * waiting[-1]:
        yield Finding(
            Label.STALL if starved else Label.QUEUEING,
            f"{skipped:,.0f} of {waiting[-1]:,.0f} waiting requests are skipped, not short of a budget",
            tuple(
                fact(e, r.name) for r in e.readings.values() if "deferred" in r.name or "by_reason" in r.name
            )[:3],
            Advice(
                "look for what they wait for: a grammar being compiled, --max-loras, KV from a connector",
                "the wait goes with its cause; larger budgets change nothing",
            ),
            Severity.CRITICAL if starved else Severity.WARNING,
            0.7,
            also=(Label.QUEUEING,) if starved else (),
            explains=frozenset({Label.QUEUEING, Label.UNDETERMINED} if starved else {Label.UNDETERMINED}),
        )


def turned_away(e: Evidence) -> Iterator[Finding]:
    """--max-num-queued-reqs and -tokens answer 503 at the door."""
    refused = sum(increase(e, r.name) or 0.0 for r in e.under("vllm:admission_rejections_total"))
    if refused > 0:
        yield Finding(
            Label.QUEUEING,
            f"{refused:,.0f} requests were turned away with 503: the bound on what may wait was reached",
            tuple(fact(e, r.name) for r in e.under("vllm:admission_rejections_total")),
            Advice(
                "another replica, or a client that waits as Retry-After says; raise "
                "--max-num-queued-reqs only if the wait it allows is within the goal",
                "fewer refusals",
                "a longer queue: TTFT",
            ),
            Severity.WARNING,
            0.9,
        )


RULES = (
    thrash,
    kv_full,
    reserved_ahead,
    no_slot,
    cap_was_reduced,
    all_at_once,
    deferred,
    turned_away,
    waits_for_something,
)
