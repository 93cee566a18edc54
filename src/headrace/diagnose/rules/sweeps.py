"""One thing varied and the rest measured: what grows with it, what stands still, and where it bends.

Throughput that stops says that something is full; which, the other columns tell: tokens that take as long as
before (slots: steps are not the limit), tokens that take longer (the card), the pool's usage (KV).
"""

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.finding import Advice, Finding, Label, Severity
from headrace.diagnose.load import load_of, share
from headrace.diagnose.rules.queue import more_kv
from headrace.diagnose.rules.support import concurrency, out_of_memory
from headrace.diagnose.sweep import Column, Sweep, sweep_of

FLAT = 1.15
"""Throughput that grows less than so much while the load doubles has met its limit."""
LEVEL = 1.25
"""Time a token that grows no more than so much: steps are as short as before."""
SOARS = 5.0
STILL_GROWS = 1.25
"""Throughput at the last point over the one before, from which the end of the sweep is not the server's."""
SHORT_TTFT_S = 1.0


def queue_before_the_first_token(e: Evidence) -> Iterator[Finding]:
    """TTFT soars while a token takes as long as before: steps have room, so who waits does so for admission,
    behind a cap on what runs.
    """
    sweep = sweep_of(e)
    if sweep is None or sweep.varied.kind not in {"loads", "answers"} or concurrency(e) == 1:
        return
    firsts, gaps = sweep.column("ttft"), sweep.column("gaps")
    if firsts is None or gaps is None or firsts.grown < SOARS or not 0 < gaps.grown < LEVEL:
        return
    if load_of(e).peak_kv >= 0.9:
        return
    yield Finding(
        Label.QUEUEING,
        f"TTFT grows {firsts.grown:,.0f} times and a token takes as long as before: requests wait to be "
        f"admitted, the steps have room",
        sweep.facts,
        Advice(
            "--max-num-seqs (or the client's cap on concurrency) higher, as far as KV allows",
            "more share each step: a shorter queue and more tokens a second",
            "each token takes a little longer",
            "running above the plateau it has now, TTFT and TPOT together",
        ),
        Severity.WARNING,
        0.8,
        also=(Label.BAD_FLAGS,),
        explains=frozenset({Label.COMPUTE, Label.UNDETERMINED, Label.MEMORY_BANDWIDTH}),
    )


def flat_sweep(e: Evidence) -> Iterator[Finding]:
    """Where more requests at once bring no more tokens and only longer waits, the card is saturated; a cap
    of the scheduler would show as tokens that take as long as before, KV as full.
    """
    sweep = sweep_of(e)
    if sweep is None or sweep.varied.kind != "loads" or load_of(e).peak_kv >= 0.9 or out_of_memory(e):
        return
    usage = sweep.column("usage")
    if usage is not None and max(map(share, usage.values)) >= 0.9:
        return
    for rate in sweep.columns("rates") or _implied(sweep):
        knee = _knee(sweep.varied, rate)
        if knee is None:
            continue
        yield Finding(
            Label.COMPUTE,
            f"Throughput stops at {max(rate.values):,.0f} from {_short(sweep.varied)} {knee:g} on: the card "
            f"is saturated",
            (sweep.varied.row(), rate.row()),
            Advice(
                f"take {knee:g} as this card's limit; another replica for more, a quantised checkpoint "
                f"or shorter prompts for a higher one. Scheduler settings move the wait, not the limit",
                "throughput in proportion to replicas",
                "another card",
                "the same sweep over two replicas",
            ),
            Severity.WARNING,
            0.8,
            explains=frozenset({Label.QUEUEING, Label.UNDETERMINED, Label.BAD_FLAGS, Label.MEMORY_BANDWIDTH}),
        )
        return


def _implied(sweep: Sweep) -> tuple[Column, ...]:
    """Of those who keep so many open, and the time that each takes, how many end in a second (Little)."""
    if re.search(r"rate|qps|rps", sweep.varied.name):
        return ()
    return tuple(
        replace(column, values=tuple(n / s for n, s in zip(sweep.varied.values, column.values, strict=True)))
        for column in sweep.columns("latencies")
        if min(column.values) > 0
    )


def _knee(loads: Column, rate: Column) -> float | None:
    """The load from which twice of it brings nothing; None where the sweep ends before."""
    points = [(a, b) for a, b in zip(loads.values, rate.values, strict=True) if a > 0]
    top = max((b for _, b in points), default=0.0)
    knee = next((a for a, b in points if b * FLAT >= top), None)
    return knee if knee is not None and len(points) >= 3 and points[-1][0] >= 2 * knee else None


def _short(column: Column) -> str:
    return column.name.rpartition(":")[2]


def batching_is_free(e: Evidence) -> Iterator[Finding]:
    """Decode reads all weights for one token a sequence: while that read binds, more sequences cost
    nothing, so throughput grows with them and each token takes as long.
    """
    sweep = sweep_of(e)
    if sweep is None or sweep.varied.kind != "loads" or sweep.varied.grown < 4:
        return
    gaps, rates, firsts = sweep.column("gaps"), sweep.column("rates"), sweep.column("ttft")
    scaled = rates is not None and rates.grown > 0.75 * sweep.varied.grown
    level = gaps is not None and 0 < gaps.grown < LEVEL and (firsts is None or firsts.grown < SOARS)
    if scaled or level:
        yield Finding(
            Label.MEMORY_BANDWIDTH,
            f"{sweep.varied.grown:g} times the load costs a token hardly more time: steps are bound by "
            f"reading the weights",
            sweep.facts,
            Advice(
                "more requests at once (it is free until throughput bends), fewer bytes of weights "
                "(fp8, AWQ), speculation for single streams",
                "throughput in proportion to concurrency",
                "none until the bend",
                "the same sweep further out",
            ),
            Severity.NOTE,
            0.7,
            explains=frozenset({Label.UNDETERMINED}),
        )


def still_growing(e: Evidence) -> Iterator[Finding]:
    """Throughput still grows at the last point, waits are short: the sweep ended before the server did."""
    sweep, load = sweep_of(e), load_of(e)
    if sweep is None or sweep.varied.kind != "loads" or load.peak_waiting > 0 or load.peak_kv >= 0.9:
        return
    rate, firsts = sweep.column("rates"), sweep.column("ttft")
    if rate is None or firsts is None or rate.values[-2] <= 0:
        return
    late_s = firsts.values[-1] / (1000 if "ms" in firsts.name else 1)
    if rate.values[-1] / rate.values[-2] >= STILL_GROWS and late_s < SHORT_TTFT_S:
        yield Finding(
            Label.EXPECTED,
            f"Healthy: throughput still grows {rate.values[-1] / rate.values[-2]:.2f} times at the last "
            f"point, TTFT is {late_s:.2f} s",
            sweep.facts,
            Advice("go on with the sweep to find the knee; nothing here needs a change", "none"),
            Severity.NOTE,
            0.75,
            explains=frozenset({Label.UNDETERMINED, Label.MEASUREMENT}),
        )


def shared_by_more(e: Evidence) -> Iterator[Finding]:
    """Each of more users gets less while all together get far more: the steps are shared."""
    sweep = sweep_of(e)
    if (
        sweep is None
        or sweep.varied.kind != "loads"
        or load_of(e).peak_waiting > 0
        or load_of(e).peak_kv >= 0.9
    ):
        return
    each = next((c for c in sweep.columns("rates") if "user" in c.name or "stream" in c.name), None)
    whole = next((c for c in sweep.columns("rates") if c is not each and c.grown > 1), None)
    if each is None or whole is None or each.grown >= 1:
        return
    if each.grown * sweep.varied.grown > 4 and whole.grown > 0.3 * sweep.varied.grown:
        yield Finding(
            Label.EXPECTED,
            f"{sweep.varied.grown:g} times the users get {whole.grown:.1f} times the tokens together and "
            f"{each.grown:.2f} times each: steps are shared",
            sweep.facts,
            Advice("nothing, if each is fast enough; --max-num-seqs lower trades a queue for it", "none"),
            Severity.NOTE,
            0.7,
            explains=frozenset({Label.UNDETERMINED}),
        )


def prefill_in_proportion(e: Evidence) -> Iterator[Finding]:
    """Reading a prompt is arithmetic: alone on the card, TTFT grows with its length."""
    sweep = sweep_of(e)
    firsts = sweep.column("ttft") if sweep is not None else None
    if sweep is None or firsts is None or sweep.varied.kind != "prompts":
        return
    longer, slower = sweep.varied.grown, firsts.grown
    if longer >= 2 and slower > 0.15 * longer and slower > 2:
        yield Finding(
            Label.COMPUTE,
            f"{longer:g} times the prompt takes {slower:.1f} times the TTFT: reading prompts is arithmetic",
            (sweep.varied.row(), firsts.row()),
            Advice(
                "prefix caching of what repeats, shorter prompts, more or faster cards", "TTFT in proportion"
            ),
            Severity.NOTE,
            0.7,
            explains=frozenset({Label.QUEUEING, Label.UNDETERMINED}),
        )


def knee_of_the_pool(e: Evidence) -> Iterator[Finding]:
    """Up to a full pool a token takes a little longer with each request; beyond, requests give way to each
    other and tokens take several times as long.
    """
    sweep = sweep_of(e)
    if sweep is None:
        return
    usage, gaps = sweep.column("usage"), sweep.column("gaps")
    usage = sweep.varied if sweep.varied.kind == "usage" else usage
    if usage is None or gaps is None:
        return
    points = list(zip(map(share, usage.values), gaps.values, strict=True))
    full = [gap for use, gap in points if use >= 0.95]
    before = [gap for use, gap in points if use < 0.95]
    if full and before and min(full) > 2 * max(before) > 0:
        yield Finding(
            Label.THRASH,
            f"From a full pool on a token takes {min(full) / max(before):.1f} times as long: requests "
            f"give way to each other",
            (usage.row(), gaps.row()),
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


def price_of_more_at_once(e: Evidence) -> Iterator[Finding]:
    """A higher cap lets more share each step instead of waiting: TPOT rises less than in proportion, the
    queue falls. That is the trade that was asked for.
    """
    sweep = sweep_of(e)
    if sweep is None or sweep.varied.kind != "caps" or not sweep.columns("gaps"):
        return
    slower = max(column.grown for column in sweep.columns("gaps"))
    if slower <= MUCH_LATER and _held_by_the_cap(e, sweep):
        yield _cap_too_low(sweep)
    elif 1.0 <= slower < sweep.varied.grown:
        yield Finding(
            Label.EXPECTED,
            f"{sweep.varied.grown:g} times the cap and {slower:.2f} times the time a token: more share each "
            f"step instead of waiting",
            (sweep.varied.row(), *(column.row() for column in sweep.columns("gaps")[:2])),
            Advice("judge TTFT and TPOT together, or end to end, before calling it worse", "none"),
            Severity.NOTE,
            0.8,
            explains=frozenset({Label.UNDETERMINED, Label.BAD_FLAGS, Label.COMPUTE, Label.MEMORY_BANDWIDTH}),
        )


def _held_by_the_cap(e: Evidence, sweep: Sweep) -> bool:
    """Whether the highest value that was tried makes far more tokens than the one that is set."""
    now = e.flag("max-num-seqs") or e.flag("max-running-requests") or e.flag("parallel")
    rates, caps = sweep.column("rates"), sweep.varied.values
    if now is None or rates is None or not caps[0] <= now < caps[-1]:
        return False
    return rates.values[-1] > MANY_MORE * float(np.interp(now, caps, rates.values))


def _cap_too_low(sweep: Sweep) -> Finding:
    return Finding(
        Label.QUEUEING,
        f"With a cap of {sweep.varied.values[-1]:g} it makes far more tokens: the one that is set leaves the "
        "card idle",
        sweep.facts,
        Advice(
            f"--max-num-seqs {sweep.varied.values[-1]:g}",
            "tokens a second as in that run",
            "TPOT as in that run",
            "TTFT under the same load: it falls where requests waited for a slot",
        ),
        Severity.WARNING,
        0.7,
        also=(Label.BAD_FLAGS,),
        explains=frozenset({Label.UNDETERMINED, Label.COMPUTE, Label.MEMORY_BANDWIDTH}),
    )


MANY_MORE, MUCH_LATER = 2.0, 2.0


def split_does_not_pay(e: Evidence) -> Iterator[Finding]:
    """Twice the cards and hardly more tokens: each layer waits for an all-reduce."""
    sweep = sweep_of(e)
    rates = sweep.column("rates") if sweep is not None and sweep.varied.kind == "cards" else None
    if sweep is not None and rates is not None and 0 < rates.grown < 0.6 * sweep.varied.grown:
        yield Finding(
            Label.INTERCONNECT,
            "More cards bring less than they cost: steps wait for each other's parts",
            (sweep.varied.row(), rates.row()),
            Advice(
                "replicas instead of a wider split; NVLink rather than PCIe where it must be split",
                "tokens a second",
            ),
            Severity.WARNING,
            0.7,
            also=(Label.BAD_FLAGS,),
            explains=frozenset({Label.COMPUTE, Label.UNDETERMINED}),
        )


def more_workers_no_faster(e: Evidence) -> Iterator[Finding]:
    """Threads of one Python process take turns: more of them make preprocessing slower, not faster."""
    sweep = sweep_of(e)
    rates = sweep.column("rates") if sweep is not None and sweep.varied.kind == "workers" else None
    if sweep is not None and rates is not None and 0 < rates.grown < 1.3:
        yield Finding(
            Label.CPU,
            f"More {_short(sweep.varied)} bring nothing: they wait for one lock or one core",
            (sweep.varied.row(), rates.row()),
            Advice(
                "processes instead of threads (--api-server-count), and cores for them",
                "front-end work in parallel",
            ),
            Severity.WARNING,
            0.7,
            explains=frozenset({Label.COMPUTE, Label.UNDETERMINED}),
        )


RULES = (
    queue_before_the_first_token,
    flat_sweep,
    batching_is_free,
    still_growing,
    shared_by_more,
    prefill_in_proportion,
    knee_of_the_pool,
    price_of_more_at_once,
    split_does_not_pay,
    more_workers_no_faster,
)
