"""Runs side by side (`runs:` lists of one length): what was changed between them, and what came of it."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from headrace.diagnose.evidence import Evidence, Reading
from headrace.diagnose.finding import Advice, Fact, Finding, Label, Severity
from headrace.diagnose.quantities import quantity_of, told_change
from headrace.diagnose.rules.support import fact, span, start_failed

SAME = 1.05
"""Two runs of one thing differ by as much."""
BETTER, WORSE = 1.1, 1.25
MUCH_MORE = 1.5
"""Of a resource: so many times more must show, if the resource is what is short."""

_POOL = re.compile(r"kv.*(?:blocks?|tokens?|size|gib|gb)|gpu_blocks|cache_blocks|pool_(?:tokens|blocks)")
_LINK = re.compile(r"bandwidth_(?:x|gb|gbit)|network|link|nic|ethernet|gbps|gbit")
_CORES = re.compile(r"cpu_(?:request|limit|quota|count)|(?:^|_)(?:cpus?|vcpus?|cores?)$")


@dataclass(frozen=True, slots=True)
class Tried:
    """The run with most of something beside the one with least of it."""

    varied: Reading
    outcome: Reading
    times_more: float
    times_better: float
    """Of the run with more: above 1 where more was better."""


def larger_pool_is_faster(e: Evidence) -> Iterator[Finding]:
    """The same server started twice has another pool (what profiling found free differs): where only the
    larger one holds the running requests, only the smaller one makes them wait or computes them again.
    """
    for tried in _tried(e, _POOL):
        if tried.times_better > BETTER:
            yield Finding(
                Label.KV_CAPACITY,
                f"With {tried.times_more:.2f} times the KV pool the same load goes "
                f"{tried.times_better:.2f} times as well: the smaller pool does not hold it",
                _facts(e, tried),
                Advice(
                    "pin the larger pool (--kv-cache-memory-bytes, --num-gpu-blocks-override), or fewer "
                    "requests at once (--max-num-seqs)",
                    "each start serves alike",
                    "less free memory for peaks",
                    "'GPU KV cache size' of each start, and preemptions at that load",
                ),
                Severity.WARNING,
                0.75,
                explains=frozenset({Label.UNDETERMINED, Label.BAD_FLAGS, Label.INTERCONNECT, Label.COMPUTE}),
            )
            return


def faster_link_is_no_faster(e: Evidence) -> Iterator[Finding]:
    """What is short gets better with more of it. Stages of a pipeline exchange a few kB a token, so that the
    link between them is not it.
    """
    for tried in _tried(e, _LINK):
        if tried.times_more >= MUCH_MORE and 1 / SAME <= tried.times_better <= SAME:
            yield Finding(
                Label.EXPECTED,
                f"{tried.times_more:g} times the link and the same result: the link is not what is short",
                _facts(e, tried),
                Advice(
                    "more requests at once for throughput (a pipeline makes no request faster); for latency "
                    "tensor parallelism within a node",
                    "stages that are busy at the same time",
                    verify="bytes a second on the link beside what it can carry",
                ),
                Severity.NOTE,
                0.75,
                explains=frozenset({Label.INTERCONNECT, Label.UNDETERMINED}),
            )
            return


def more_cores_are_no_faster(e: Evidence) -> Iterator[Finding]:
    """What is short gets better with more of it: cores that are added and bring nothing, or less, are not the
    cause, and something else differs between the runs.
    """
    for tried in _tried(e, _CORES):
        if tried.times_more >= MUCH_MORE and tried.times_better <= SAME:
            less = tried.times_better < 1 / WORSE
            yield Finding(
                Label.UNDETERMINED,
                f"{tried.times_more:g} times the cores and "
                + ("a worse result" if less else "the same result")
                + ": the CPU is not what is short, and nothing here tells what is",
                _facts(e, tried),
                Advice(
                    "change one thing at a time (a restart is a second one), and compare a fast and a slow "
                    "state of one process: time of each step, clocks of the card, a trace of its kernels",
                    "the cause by what goes with the slow state",
                ),
                Severity.NOTE,
                0.7,
                explains=frozenset({Label.CPU}),
            )
            return


def other_processor(e: Evidence) -> Iterator[Finding]:
    """The same card in two machines: what is faster with another processor waits for the processor."""
    differs = [
        r
        for r in e.under("hardware:")
        if re.search(r"cpu|processor|host", r.name) and len(set(r.values)) > 1 and not r.numbers
    ]
    runs = [r for r in e.under("runs:") if len(r.numbers) > 1 and _good(r) is not None]
    for named in differs:
        for outcome in runs:
            good = _good(outcome)
            values = [good(value) for value in outcome.numbers] if good else []
            if len(values) != len(named.values) or min(values) <= 0 or max(values) < WORSE * min(values):
                continue
            yield Finding(
                Label.CPU,
                f"With another processor the same card is {max(values) / min(values):.1f} times as good",
                (
                    Fact(f"{named.name}: {named.text[:100]}", named.where),
                    fact(e, outcome.name, span(e, outcome.name)),
                ),
                Advice(
                    "cores with a high clock for the engine, none shared with others; a version with less "
                    "work between steps (async scheduling, CUDA graphs)",
                    f"up to {max(values) / min(values):.1f} times",
                    verify="GPU utilization near 100 % under the same load",
                ),
                Severity.WARNING,
                0.8,
                rivals=("a second difference between the machines: PCIe, power limit, clocks of the card",),
                explains=frozenset({Label.UNDETERMINED, Label.COMPUTE, Label.MEMORY_BANDWIDTH}),
            )
            return


_OF_THE_CARD = re.compile(r"gpu.*(?:util|busy)|sm_(?:util|active)")
_LOADS = re.compile(r"concurren|clients|users|in_?flight|requests?(?:_at_once)?$|batch")
FALLS = 0.8


def card_idles_with_more(e: Evidence) -> Iterator[Finding]:
    """More requests at hand make fuller steps, and the card no less busy: where it idles, what prepares steps
    and answers them (one core of the server, or of the client) has no time left.
    """
    series = [r for r in (*e.under("runs:"), *e.under("sweep:")) if len(r.numbers) > 1]
    cards = [r for r in series if _OF_THE_CARD.search(r.name)]
    for load in (r for r in series if _LOADS.search(r.name) and r not in cards):
        for card in (r for r in cards if len(r.numbers) == len(load.numbers)):
            pairs = sorted(zip(load.numbers, card.numbers, strict=True))
            (few, busy), (many, idle) = pairs[0], pairs[-1]
            if many < 4 * few or idle > FALLS * busy or start_failed(e):
                continue
            yield Finding(
                Label.CPU,
                f"The card is {idle:g} busy with {many:g} requests and {busy:g} with {few:g}: it waits for "
                "what prepares its steps",
                (fact(e, load.name, span(e, load.name)), fact(e, card.name, span(e, card.name))),
                Advice(
                    "a newer version (async scheduling, a front end of its own), --api-server-count; and a "
                    "generator of several processes, to see whether it is the client",
                    "a card that is busy while requests are there",
                    "cores",
                    "CPU use of each process under that load",
                ),
                Severity.WARNING,
                0.7,
                rivals=("a client that sends no faster with more: its own CPU use",),
                explains=frozenset({Label.UNDETERMINED, Label.COMPUTE, Label.MEMORY_BANDWIDTH}),
            )
            return


_LOST = re.compile(r"recomput|preempt|retract|wasted")


def smaller_pool_computes_again(e: Evidence) -> Iterator[Finding]:
    """Who is preempted gives its blocks back and is computed again: what grows as the pool shrinks, at the
    same load, is that.
    """
    series = [r for r in (*e.under("runs:"), *e.under("sweep:")) if len(r.numbers) > 1]
    pools = [r for r in series if _POOL.search(r.name.lower()) and not _LOST.search(r.name)]
    for pool in pools:
        for lost in (r for r in series if _LOST.search(r.name) and len(r.numbers) == len(pool.numbers)):
            by_size = [value for _, value in sorted(zip(pool.numbers, lost.numbers, strict=True))]
            if by_size[0] > WORSE * by_size[-1] and by_size == sorted(by_size, reverse=True):
                yield Finding(
                    Label.THRASH,
                    f"{lost.name.partition(':')[2]} goes from {by_size[-1]:g} to {by_size[0]:g} as the pool "
                    f"shrinks from {max(pool.numbers):,.0f} to {min(pool.numbers):,.0f}: requests push each "
                    "other out and are computed again",
                    (fact(e, pool.name, span(e, pool.name)), fact(e, lost.name, span(e, lost.name))),
                    Advice(
                        "a pool for what runs at its full length, or fewer at once (--max-num-seqs)",
                        "each token is computed once",
                        "a longer queue",
                        "num_preemptions_total stands still under the same load",
                    ),
                    Severity.WARNING,
                    0.8,
                    also=(Label.KV_CAPACITY,),
                    explains=frozenset(
                        {Label.KV_CAPACITY, Label.UNDETERMINED, Label.COMPUTE, Label.QUEUEING}
                    ),
                )
                return


def _tried(e: Evidence, name: re.Pattern[str]) -> Iterator[Tried]:
    if start_failed(e):
        return
    runs = [r for r in e.under("runs:") if len(r.numbers) > 1]
    for varied in (r for r in runs if name.search(r.name.lower()) and min(r.numbers) > 0):
        most, least = (
            pick(range(len(varied.numbers)), key=varied.numbers.__getitem__) for pick in (max, min)
        )
        for outcome in runs:
            good = None if name.search(outcome.name.lower()) else _good(outcome)
            if good is None or len(outcome.numbers) != len(varied.numbers):
                continue
            with_most, with_least = good(outcome.numbers[most]), good(outcome.numbers[least])
            if min(with_most, with_least) > 0:
                more = varied.numbers[most] / varied.numbers[least]
                yield Tried(varied, outcome, more, with_most / with_least)


def _good(reading: Reading) -> Callable[[float], float] | None:
    """How good a value of an outcome is, so that ratios can be taken; None of what is no outcome."""
    change = told_change(reading)
    if change is not None:
        rate = change.is_rate
        return lambda value: 100 + value if rate else 1e4 / max(100 + value, 1e-9)
    quantity = quantity_of(reading)
    if quantity is None:
        return None
    return (lambda value: value) if quantity.is_rate else (lambda value: 1 / value if value else 0.0)


def _facts(e: Evidence, tried: Tried) -> tuple[Fact, ...]:
    return tuple(fact(e, r.name, span(e, r.name)) for r in (tried.varied, tried.outcome))


RULES = (
    larger_pool_is_faster,
    faster_link_is_no_faster,
    more_cores_are_no_faster,
    other_processor,
    card_idles_with_more,
    smaller_pool_computes_again,
)
