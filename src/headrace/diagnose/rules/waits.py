"""Waits that numbers show though nobody counted a queue: time in it, too few that run, prompts that are read
together.
"""

import re
from collections.abc import Iterator

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.finding import Advice, Finding, Label, Severity
from headrace.diagnose.load import load_of
from headrace.diagnose.quantities import Quantity, quantities
from headrace.diagnose.rules.support import asks_at_once, concurrency, fact, start_failed

LONG_WAIT_S = 0.3
FULL = 0.9
ROOM = 4.0
"""The pool holds so many times what runs."""
TOGETHER = 1.15
"""P99 over mean of TTFT: below it everybody's first token comes at the same time."""
LATE_S = 1.0

_QUEUE_TIME = re.compile(r"queue_time(?:_seconds)?(?:_mean|_avg|_p50)?(?:_(?!sum|count|bucket)\w+)?$")
_SERVICE_TIME = re.compile(
    r"(?:inference|execute|service|e2e_inference)_time(?:_seconds)?(?:_mean|_avg|_p50)?$"
)


def queue_beyond_service(e: Evidence) -> Iterator[Finding]:
    """A request waits longer than it is worked on, and the pool is not seen full: more arrive than the slots
    let through (Little: those in flight = rate x time of each).
    """
    waits = [r for r in e.readings.values() if r.last and _QUEUE_TIME.search(r.name)]
    served = next((r for r in e.readings.values() if r.last and _SERVICE_TIME.search(r.name)), None)
    if not waits or served is None or start_failed(e) or load_of(e).peak_kv >= FULL:
        return
    longest, work = max(waits, key=lambda r: r.last or 0.0), served.last or 0.0
    waited = longest.last or 0.0
    if waited < max(LONG_WAIT_S, work):
        return
    yield Finding(
        Label.QUEUEING,
        f"Requests wait {waited:.2f} s and are worked on for {work:.2f} s: most of their time is the queue",
        (fact(e, longest.name), fact(e, served.name)),
        Advice(
            "--max-num-seqs above served rate x time of each, where running stands at it; else replicas",
            "a shorter queue",
            "each step is shared by more",
            "queue time below the time of the work, at the same rate",
        ),
        Severity.WARNING,
        0.7,
        rivals=("a full KV pool: kv_cache_usage_perc while they wait",),
        explains=frozenset({Label.UNDETERMINED, Label.COMPUTE}),
    )


_MANY = re.compile(
    r"\b(?:much|far|many|lots?|large|larger|more|hundreds|dozens|long|grows?|high|higher|most)\b"
)


def few_run_many_wait(e: Evidence) -> Iterator[Finding]:
    """Slots and KV are free and few run: what a step may read lets in one prompt at a time."""
    load, cap = load_of(e), e.flag("max-num-seqs")
    held = e.number("startup:max_concurrency_x") or 0.0
    told = e.text("workload:waiting") or e.text("workload:queue") or e.text("workload:pending")
    many = load.peak_waiting > 2 * load.peak_running or bool(_MANY.search(told.lower()))
    if not load.running or not many or load.peak_kv >= FULL or start_failed(e):
        return
    running = load.peak_running
    if not (cap and running < 0.25 * cap and (held > ROOM * running or (load.kv and load.peak_kv < 0.5))):
        return
    yield Finding(
        Label.QUEUEING,
        f"{running:,.0f} run of {cap:,.0f} that may, with KV free, and others wait: the tokens of a step let "
        f"no more in",
        (fact(e, load.names["running"]), fact(e, "max-num-seqs")),
        Advice(
            "--max-num-batched-tokens higher (V0 with chunked prefill: 512 by default)",
            "more prompts are read in a step",
            "longer steps: ITL",
            "running rises with the same burst",
        ),
        Severity.WARNING,
        0.7,
        also=(Label.BAD_FLAGS,),
        explains=frozenset({Label.UNDETERMINED, Label.BAD_FLAGS, Label.COMPUTE, Label.INTERCONNECT}),
    )


def first_tokens_together(e: Evidence) -> Iterator[Finding]:
    """Prompts that come at once and are read in shared steps end together: the first waits for the last, and
    TTFT of all is the time to read all of them.
    """
    firsts = {q.stat: q for q in quantities(e, ("client:",)) if _is_first(q)}
    usual = firsts.get("mean") or firsts.get("avg") or firsts.get("p50") or firsts.get("median")
    last = firsts.get("p99") or firsts.get("max")
    sent = e.number("workload:requests", "workload:num_prompts") or concurrency(e) or 0.0
    if usual is None or last is None or sent < 4 or not asks_at_once(e) or start_failed(e):
        return
    if usual.last < LATE_S or last.last > TOGETHER * usual.last or load_of(e).peak_kv >= FULL:
        return
    yield Finding(
        Label.QUEUEING,
        f"{sent:,.0f} requests come at once and all have their first token after {last.last:.1f} s: their "
        f"prompts are read in the same steps",
        (fact(e, usual.name), fact(e, last.name)),
        Advice(
            "let prompts end one after the other (--max-num-partial-prefills 1, a smaller burst, a rate)",
            "half the mean TTFT, the last as before",
            "none for throughput",
            "TTFT P50 well below its P99",
        ),
        Severity.WARNING,
        0.7,
        also=(Label.COMPUTE,),
        explains=frozenset({Label.UNDETERMINED}),
    )


def _is_first(q: Quantity) -> bool:
    return q.what == "ttft" and not q.is_rate and not q.situation


RULES = (queue_beyond_service, few_run_many_wait, first_tokens_together)
