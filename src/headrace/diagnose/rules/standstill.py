"""Engines that stand still and ranks that share unevenly: waits that no budget of the scheduler explains."""

import re
from collections.abc import Iterator

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.finding import Advice, Fact, Finding, Label, Severity
from headrace.diagnose.load import KV, RUNNING, WAITING, Load, by_part, load_of, share
from headrace.diagnose.rules.queue import KV_FULL
from headrace.diagnose.rules.support import (
    concurrency,
    fact,
    load_facts,
    out_of_memory,
    said,
    start_failed,
)
from headrace.diagnose.sizes import card_count


def standing_still(e: Evidence) -> Iterator[Finding]:
    """Work is there and nothing moves: no admission without running requests, or no token from running
    ones.
    """
    load = load_of(e)
    died = e.of("engine_dead")
    ordinary = e.counts.get("stopping", 0) > 0 or out_of_memory(e) or start_failed(e)
    up = e.counts.get("ready") or e.counts.get("stats") or not e.counts.get("load_began")
    stuck = e.of("stalled") if up and not _is_at_work(e) else ()
    frozen = _frozen(e, load)
    reason = (
        frozen
        or (stuck and "a step has not come back for a minute or more")
        or (died and not ordinary and "the engine's process has ended")
    )
    if not reason or start_failed(e):
        return
    yield Finding(
        Label.STALL,
        f"The engine does not move: {reason}",
        load_facts(e, load) + tuple(said(event) for event in (*stuck, *died)[:2]),
        Advice(
            "restart the engine; keep its log and a py-spy dump of the worker for a report; let the "
            "liveness probe watch vllm:iteration_tokens_total_count, not /health",
            "requests are served again",
            "what was running is lost",
            "iteration_tokens_total_count grows while requests run",
        ),
        Severity.CRITICAL,
        0.8 if frozen or stuck else 0.6,
        rivals=(
            (
                "gauges of a hung engine keep their last value: two scrapes that are the same say "
                "nothing of load"
            ),
        ),
        explains=frozenset({Label.QUEUEING, Label.COMPUTE, Label.CPU, Label.UNDETERMINED}),
    )


_BUSY_CPU, _IDLE_GPU = 0.95, 0.1


def _is_at_work(e: Evidence) -> bool:
    """Whether what keeps a step away for a minute is seen: kernels that are tried out, or a CPU that is busy
    while the card waits for it.
    """
    cpu = [
        share(r.last) for r in e.under("host:") if r.last and re.search(r"cpu.*(?:util|perc|busy)", r.name)
    ]
    gpu = [share(r.last) for r in e.under("gpu:") if r.last is not None and "util" in r.name]
    waits_for_cpu = max(cpu, default=0.0) >= _BUSY_CPU and max(gpu, default=1.0) <= _IDLE_GPU
    starting = not (e.counts.get("ready") or e.counts.get("stats"))
    return waits_for_cpu or (starting and bool(e.counts.get("autotune") or e.counts.get("long_compile")))


def stood_a_while(e: Evidence) -> Iterator[Finding]:
    """A step that was away for a minute and came back: long to compute, to compile or to wait for."""
    for event in e.of("stood")[-1:]:
        yield Finding(
            Label.STALL,
            f"A step was away for a minute or more, {e.counts['stood']} times, and came back each time",
            (said(event),),
            Advice(
                "what began right before those lines: a new shape that compiles, a very long prompt, a peer "
                "of the group that waits (py-spy dump of a worker while it stands)",
                "requests that do not stand for a minute",
            ),
            Severity.NOTE,
            0.5,
            explains=frozenset({Label.UNDETERMINED}),
        )


_OPEN = re.compile(r"unfinished|hanging|stuck|never_answered|unanswered|open_requests|in_flight|outstanding")


def _frozen(e: Evidence, load: Load) -> str:
    left = [r for r in e.under("client:") if _OPEN.search(r.name) and (r.last or 0) > 0]
    if left and load.running and max(load.running) == 0 and load.peak_waiting == 0:
        return f"{left[0].last:,.0f} requests are open at the client, and the engine knows of none"
    ended = e.number("client:completed", "client:completed_requests", "client:successful_requests")
    sent = e.number(
        "client:total", "client:total_requests", "client:requests", "client:sent", "workload:requests"
    )
    if ended and sent and ended < 0.95 * sent and load.running and load.running[-1] == 0 == load.peak_waiting:
        return f"{sent - ended:,.0f} of {sent:,.0f} requests have no answer, and the engine knows of none"
    counters = ("vllm:iteration_tokens_total_count", "vllm:generation_tokens_total")
    steps = next((series for name in counters if len(series := e.series(name)) > 1), ())
    if (
        len(steps) > 1
        and steps[-1] == steps[0]
        and load.running
        and min(load.running) > 0
        and _outlasts_a_step(e, len(steps), len(steps) - 1)
    ):
        return "requests run and not one step was made between the scrapes"
    idle = bool(load.running) and max(load.running) == 0 and load.waiting
    if (idle and min(load.waiting) > 0) or _ends_with_a_queue(e, load):
        return f"{load.waiting[-1]:,.0f} requests wait and none runs"
    looks = len(load.generated)
    quiet = next((n for n in range(looks, 2, -1) if max(load.generated[-n:] + load.prompted[-n:]) == 0), 0)
    if quiet and load.running and min(load.running[-quiet:]) > 0 and _outlasts_a_step(e, looks + 1, quiet):
        return f"{load.running[-1]:,.0f} requests run and no token was made for three reports or more"
    if (
        load.generated
        and len(load.generated) < 3
        and max(load.generated + load.prompted) == 0
        and load.running
        and load.running[-1] > 0
        and _outlasts_a_step(e, len(load.running), len(load.generated))
    ):
        return f"{load.running[-1]:,.0f} requests run and no token is made"
    return ""


def _ends_with_a_queue(e: Evidence, load: Load) -> bool:
    """In the last two reports nobody runs, more and more wait, and no token is read or made in the last."""
    last = slice(-2, None)
    reports = min(len(load.running), len(load.waiting))
    return (
        reports >= 3
        and max(load.running[last]) == 0 < min(load.waiting[last])
        and load.waiting[-1] >= load.waiting[-2]
        and bool(load.generated and load.prompted)
        and load.generated[-1] == load.prompted[-1] == 0
        and _outlasts_a_step(e, reports, 1)
    )


LONGEST_STEP_S = 10.0
"""One of a long prompt in large chunks, or that compiles kernels, takes seconds; counters stand meanwhile."""


def _outlasts_a_step(e: Evidence, looks: int, quiet: int) -> bool:
    """Whether `quiet` of the intervals between so many looks at a live server are longer than any step. The
    reports of a log are ten seconds apart, and of pages nobody knows.
    """
    window_s = e.number("server:window_s")
    return window_s is None or window_s * quiet / max(1, looks - 1) >= LONGEST_STEP_S


def longer_than_the_pool(e: Evidence) -> Iterator[Finding]:
    """Hybrid models: the start-up check counts bounded layers; a full-attention request beyond the pool's
    tokens is admitted never, and nobody passes the head of the queue.
    """
    tokens, longest = (
        e.number("startup:kv_cache_tokens"),
        e.number("startup:max_model_len", "startup:concurrency_length"),
    )
    times = e.number("startup:max_concurrency_x")
    longest = longest or e.flag("max-model-len")
    if tokens and longest and times and tokens < 0.9 * longest:
        yield Finding(
            Label.STALL,
            f"Requests between {tokens:,.0f} and {longest:,.0f} tokens pass the check at the door and "
            f"never fit the pool",
            tuple(fact(e, name) for name in ("startup:kv_cache_tokens", "startup:max_concurrency_x")),
            Advice(
                f"--max-model-len {int(tokens)}, and a newer version",
                "too long requests are refused instead of blocking the queue",
                "none that could have run is lost",
                "running is above 0 whenever waiting is",
            ),
            Severity.WARNING,
            0.7,
            also=(Label.KV_CAPACITY,),
        )


def uneven_ranks(e: Evidence) -> Iterator[Finding]:
    """Each data-parallel rank has its own queue and pool; who balances by count of requests fills some."""
    running = by_part(e, RUNNING)
    waiting = by_part(e, WAITING)
    work = {rank: series[-1] + (waiting.get(rank, (0.0,))[-1]) for rank, series in running.items()}
    if not work:
        return
    most, least = max(work.values()), min(work.values())
    ranks = e.flag("data-parallel-size") or float(len(work))
    offered = concurrency(e)
    fair = offered / ranks if offered else sum(work.values()) / max(len(work), 1)
    if (most >= 8 and most > 1.6 * max(fair, 1.0)) or (most >= 8 and most > 3 * (least + 1)):
        kv = [share(s[-1]) for s in by_part(e, KV).values()]
        full = bool(kv) and max(kv) >= KV_FULL
        yield Finding(
            Label.DP_IMBALANCE,
            f"One rank has {most:,.0f} requests, a fair share is {fair:,.0f}: the others' cards idle",
            tuple(
                Fact(f"engine {rank}: {n:,.0f} running and waiting") for rank, n in sorted(work.items())[:8]
            ),
            Advice(
                "a version that balances by KV as well as counts (0.31 on), or a router in front of "
                "single ranks (--data-parallel-external-lb) that knows KV usage; read every engine's "
                "metrics, never their mean",
                "the same load over all cards",
                "prefix hits may fall when requests of one user spread",
                "running and waiting by engine are alike",
            ),
            Severity.WARNING,
            0.85,
            also=(Label.KV_CAPACITY,) if full else (),
            explains=frozenset({Label.KV_CAPACITY, Label.QUEUEING, Label.THRASH, Label.CLIENT}),
        )


def answer_without_an_end(e: Evidence) -> Iterator[Finding]:
    """llama.cpp throws half of the context away when it is full and goes on: an answer that does so again and
    again never ends by itself, and its slot is never free.
    """
    if e.counts.get("llama_shift", 0) >= SHIFTS_OF_AN_ENDLESS_ANSWER:
        yield Finding(
            Label.STALL,
            f"An answer never ends: its context was shifted {e.counts['llama_shift']} times, and its slot is "
            f"taken all the while",
            tuple(said(event) for event in e.of("llama_shift", "llama_slot")[:2]),
            Advice(
                "--predict with a bound and stop in the requests; --no-context-shift; a larger --ctx-size",
                "slots come free",
                "long answers are cut",
                "no more 'context shift' lines",
            ),
            Severity.CRITICAL,
            0.75,
            also=(Label.BAD_FLAGS,),
            explains=frozenset({Label.UNDETERMINED, Label.KV_CAPACITY}),
        )


SHIFTS_OF_AN_ENDLESS_ANSWER = 3


def uneven_work(e: Evidence) -> Iterator[Finding]:
    """Replicas that are asked alike make alike many tokens; one that makes most of them gets most requests:
    a balancer that counts connections, or none at all.
    """
    work = next((found for pattern in _WORK if (found := by_part(e, (pattern,)))), None) or _cards_in_use(e)
    shares = {part: series[-1] for part, series in work.items()}
    whole = sum(shares.values())
    if len(shares) < 2 or whole <= 0 or by_part(e, RUNNING):
        return
    fair = whole / len(shares)
    idle = sum(value < 0.2 * fair for value in shares.values())
    if max(shares.values()) > 1.6 * fair and idle >= len(shares) / 2:
        yield Finding(
            Label.DP_IMBALANCE,
            f"{idle} of {len(shares)} parts do next to nothing, one does {max(shares.values()) / whole:.0%}",
            tuple(Fact(f"{part}: {value:g}") for part, value in sorted(shares.items())[:8]),
            Advice(
                "balance requests, not connections (a headless service, a router in front of the pods), by "
                "tokens or KV rather than by count",
                "the same load over all cards",
                "prefix hits may fall when requests of one user spread",
                "tokens made by each part are alike",
            ),
            Severity.WARNING,
            0.8,
            also=(Label.CLIENT,),
            explains=frozenset({Label.CLIENT, Label.CPU, Label.UNDETERMINED}),
        )


_WORK = (
    r"vllm:generation_tokens_total$",
    r"vllm:prompt_tokens_total$",
    r"vllm:request_success_total$",
    r"gpu:.*(?:util|busy)",
)


def _cards_in_use(e: Evidence) -> dict[str, tuple[float, ...]]:
    """One reading of every card at one time, where there are as many values as cards and several ranks."""
    ranks = e.flag("data-parallel-size") or e.number("hardware:replicas", "hardware:pods") or 1.0
    for reading in e.under("gpu:"):
        if ranks > 1 and "util" in reading.name and len(reading.numbers) == card_count(e) > 1:
            return {str(card): (value,) for card, value in enumerate(reading.numbers)}
    return {}


RULES = (
    uneven_work,
    answer_without_an_end,
    uneven_ranks,
    standing_still,
    stood_a_while,
    longer_than_the_pool,
)
