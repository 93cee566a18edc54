"""Numbers that are read wrongly: buckets, old names, means over the wrong window, what nvidia-smi shows."""

import re
from collections.abc import Iterator

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.finding import Advice, Finding, Label, Severity
from headrace.diagnose.flag_history import release_of
from headrace.diagnose.load import load_of, mean_of, share
from headrace.diagnose.quantities import quantities
from headrace.diagnose.readers.metrics import renames
from headrace.diagnose.rules.cache import hit_rate
from headrace.diagnose.rules.support import concurrency, fact, start_failed

FIRST_EDGES_S = (0.3, 0.01, 0.001)
LAST_EDGES_S = (7680.0, 2560.0, 80.0, 60.0, 10.0, 2.5)
QUANTILES = {"p50": 0.5, "median": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


def in_the_first_bucket(e: Evidence) -> Iterator[Finding]:
    """histogram_quantile interpolates inside a bucket: with all samples in the first it gives q x edge,
    whatever they are; in the last finite one it cannot exceed the edge.
    """
    edges = {
        r.last
        for r in e.readings.values()
        if "bucket" in r.name and r.last and not r.name.startswith("vllm:")
    }
    edges |= {r.last for r in e.readings.values() if r.name.endswith("first_bucket") and r.last}
    for reading in (*e.under("promql:"), *e.under("grafana:"), *e.under("dashboard:")):
        quantile = next((q for name, q in QUANTILES.items() if name in reading.name.lower()), None)
        if quantile is None or not reading.numbers:
            continue
        unit = 1e-3 if re.search(r"_ms\b", reading.name) else 1.0
        value = reading.numbers[-1] * unit
        low = next(
            (
                edge
                for edge in (*FIRST_EDGES_S, *sorted(edges))
                if abs(value - quantile * edge) < 0.004 * edge
            ),
            None,
        )
        top = next((edge for edge in LAST_EDGES_S if abs(value - edge) < 1e-6 * edge), None)
        if low is not None or top is not None:
            yield Finding(
                Label.MEASUREMENT,
                f"{reading.name} = {value:g} s is {quantile:g} of the first bucket's edge {low:g} s: "
                f"all that is known is 'below it'"
                if low is not None
                else f"{reading.name} stands at a bucket's edge, {top:g} s: it may be far above",
                (fact(e, reading.name),),
                Advice(
                    "say 'below the first edge' or 'above the last'; use the mean (sum / count), or "
                    "--custom-histogram-buckets with edges around the goal",
                    "a number that moves",
                    "more series",
                    "the mean beside it",
                ),
                Severity.NOTE,
                0.9,
                explains=frozenset({Label.QUEUEING, Label.UNDETERMINED}),
            )
            return


def mixed_window(e: Evidence) -> Iterator[Finding]:
    """A mean of ITL over a window holds the steps that carried prefills: it is not the speed of decoding."""
    carried = e.number("vllm:iteration_tokens_mean")
    streams = max(load_of(e).peak_running, 1.0)
    rates = [q for q in quantities(e, ("promql:", "client:", "measured:")) if q.is_rate]
    seen = [q for q in rates if q.name.startswith("promql:")]
    real = [q for q in rates if not q.name.startswith("promql:")]
    if carried is not None and carried > 3 * streams and seen:
        facts = tuple(fact(e, q.name) for q in (*seen[:1], *real[:1]))
        yield Finding(
            Label.MEASUREMENT,
            f"The window held prefills ({carried:g} tokens a step for {streams:g} streams): its mean "
            f"ITL is no decode speed",
            (*facts, fact(e, "vllm:iteration_tokens_mean")),
            Advice(
                "take only windows with about one token a step and stream (iteration_tokens / running "
                "near 1)",
                "a decode speed that agrees with a client's",
            ),
            Severity.NOTE,
            0.85,
            explains=frozenset({Label.MEMORY_BANDWIDTH, Label.COMPUTE, Label.UNDETERMINED, Label.QUEUEING}),
        )


def names_of_another_version(e: Evidence) -> Iterator[Finding]:
    """A series that the version does not have is absent, and a panel shows absent as 0 or nothing."""
    asked = [
        (reading, old)
        for reading in e.readings.values()
        for old in renames()
        if re.search(
            rf"{re.escape(old.partition(':')[2])}(?![a-z_])",
            f"{reading.name} {reading.text if not reading.numbers else ''}",
        )
    ]
    empty = [(r, old) for r, old in asked if not any(r.numbers) or not r.name.startswith("vllm:")]
    absent = [r for r, _ in empty if not r.numbers]
    late = e.release is not None
    gone = [(r, old) for r, old in empty if not late or (e.release or ()) >= release_of(renames()[old][1])]
    if (
        not gone
        or start_failed(e)
        or not (late or absent or any(not r.name.startswith("vllm:") for r, _ in gone))
    ):
        return
    yield Finding(
        Label.MEASUREMENT,
        f"{gone[0][1]} does not exist in this version: nothing is not zero",
        tuple(fact(e, r.name) for r, _ in gone[:3]),
        Advice(
            "; ".join(
                f"{old} -> {renames()[old][0] or 'nothing'}" for old in dict.fromkeys(old for _, old in gone)
            ),
            "panels with values",
            verify="absent(metric) in an alert",
        ),
        Severity.WARNING,
        0.8,
        explains=frozenset({Label.UNDETERMINED}),
    )


def cached_tokens_counted(e: Evidence) -> Iterator[Finding]:
    """prompt_tokens_total counts whole prompts, what hit the cache too; the log's rate and the card know only
    what was computed (since about 0.16).
    """
    rates = [q for q in quantities(e, ("promql:", "dashboard:")) if q.is_rate]
    told = [q for q in rates if q.what in {"prompt", "prefill"}]
    logged, (rate, names) = e.number("log:prompt_tok_s"), hit_rate(e)
    if told and logged and rate and abs(told[0].last * (1 - rate) - logged) < 0.25 * logged:
        yield Finding(
            Label.MEASUREMENT,
            f"{told[0].last:,.0f} prompt tokens a second include {rate:.0%} that hit the cache; "
            f"{logged:,.0f} were computed",
            (fact(e, told[0].name), *(fact(e, name) for name in names)),
            Advice(
                'vllm:prompt_tokens_by_source_total{source="local_compute"} for what the card computes',
                "a rate that agrees with the log",
            ),
            Severity.NOTE,
            0.75,
            explains=frozenset({Label.UNDETERMINED, Label.COMPUTE}),
        )


def stats_turned_off(e: Evidence) -> Iterator[Finding]:
    """--disable-log-stats takes the updates of most metrics with it: they stand at 0 whatever happens."""
    seen = [r for r in (*e.under("vllm:"), *e.under("promql:")) if r.numbers]
    if e.is_on("disable-log-stats") and not any(any(r.numbers) for r in seen):
        yield Finding(
            Label.MEASUREMENT,
            "Metrics stand at 0 because --disable-log-stats turns their updates off",
            (fact(e, "disable-log-stats"), *(fact(e, r.name) for r in seen[:2])),
            Advice("leave --disable-log-stats out", "metrics that move", "a few per cent of a CPU core"),
            Severity.WARNING,
            0.8,
            explains=frozenset({Label.UNDETERMINED, Label.STALL}),
        )


def impossible_share(e: Evidence) -> Iterator[Finding]:
    """Shares of several engines were added: their mean, or the largest, is meant."""
    for reading in (*e.under("promql:"), *e.under("dashboard:"), *e.under("grafana:"), *e.under("vllm:")):
        value, fraction = reading.last or 0.0, reading.name.startswith("vllm:") or "sum" in reading.name
        if re.search(r"usage|perc|util|hit_rate", reading.name) and (
            100 < value < 10_000 or (fraction and 1.05 < value < 20)
        ):
            yield Finding(
                Label.MEASUREMENT,
                f"{reading.name} = {reading.last:g}: shares of several servers were added",
                (fact(e, reading.name),),
                Advice("max or avg by (pod, engine) instead of sum", "a share of 100 % at most"),
                Severity.NOTE,
                0.85,
            )


def recomputed_as_hits(e: Evidence) -> Iterator[Finding]:
    """Older versions counted the blocks that a preempted request finds again as prefix hits."""
    rate, names = hit_rate(e)
    lost = load_of(e).preemptions or 0.0
    random_data = bool(re.search(r"random|unique|synthetic|no[ _]shar|distinct", e.told()))
    if (
        rate
        and rate > 0.05
        and lost > 0
        and (random_data or any("unique" in r.name for r in e.under("workload:")))
    ):
        yield Finding(
            Label.MEASUREMENT,
            f"A hit rate of {rate:.0%} on prompts that share nothing: requests that were preempted "
            f"found their own blocks",
            tuple(fact(e, name) for name in names),
            Advice(
                "subtract what preempted requests recompute, or a version that leaves resumed requests out",
                "a true rate",
            ),
            Severity.WARNING,
            0.9,
            explains=frozenset({Label.UNDETERMINED}),
        )


def per_event_not_per_token(e: Evidence) -> Iterator[Finding]:
    """With speculation or a stream interval one event carries several tokens: ITL is a time between
    events.
    """
    on = (
        any(name.startswith(("spec", "num-spec")) for name in e.flags) or (e.flag("stream-interval") or 1) > 1
    )
    found = quantities(e)
    itl = next((q for q in found if q.what == "itl" and not q.is_rate), None)
    tpot = next((q for q in found if q.what == "tpot" and not q.is_rate), None)
    if on and itl and tpot and itl.last > 1.4 * tpot.last:
        yield Finding(
            Label.MEASUREMENT,
            f"ITL {itl.last * 1e3:.1f} ms is between events that carry {itl.last / tpot.last:.1f} "
            f"tokens; TPOT is {tpot.last * 1e3:.1f} ms",
            (fact(e, itl.name), fact(e, tpot.name)),
            Advice("compare TPOT, or tokens a second, across settings", "a fair comparison"),
            Severity.NOTE,
            0.8,
        )


def busy_without_work(e: Evidence) -> Iterator[Finding]:
    """nvidia-smi's utilisation says that a kernel was resident, as polling ones are, not that work was
    done.
    """
    load = load_of(e)
    gpu = [
        share(r.last)
        for r in e.under("gpu:")
        if r.last is not None and re.search(r"util", r.name) and "mem" not in r.name
    ]
    told_idle = bool(
        re.search(
            r"(?<![a-z])idle|no[ _]requests|no[ _]traffic",
            e.told() + " ".join(r.name for r in e.under("workload:")),
        )
    )
    none = (
        (bool(load.running) and max(load.running) == 0)
        or (told_idle and not load.running)
        or concurrency(e) == 0
    )
    if gpu and max(gpu) >= 0.95 and none and load.peak_waiting == 0:
        yield Finding(
            Label.MEASUREMENT,
            f"GPU utilisation {max(gpu):.0%} with no request running is no load: a kernel polls",
            tuple(fact(e, r.name) for r in e.under("gpu:"))[:2],
            Advice(
                "read running, waiting and tokens a second; power draw tells work from polling",
                "a number that means load",
            ),
            Severity.NOTE,
            0.85,
            explains=frozenset({Label.COMPUTE, Label.UNDETERMINED, Label.CPU}),
        )


def busy_cores(e: Evidence) -> Iterator[Finding]:
    """One worker a GPU spins on a core by design; no more cores than that are busy, and none is short."""
    cores = e.number("host:busy_cores", "host:cores_at_100", "host:cpu_cores_busy", "host:busy_processes")
    ranks = e.flag("tensor-parallel-size") or e.number("hardware:gpu_count") or 1.0
    if cores is not None and cores <= ranks + 1 and not load_of(e).peak_waiting:
        yield Finding(
            Label.MEASUREMENT,
            f"{cores:g} busy cores for {ranks:g} GPUs are the workers that poll, not a shortage",
            (
                fact(
                    e, (e.number("host:busy_cores") is not None and "host:busy_cores") or "host:cores_at_100"
                ),
            ),
            Advice("compare GPU use and TTFT outside queue and prefill before giving it cores", "none"),
            Severity.NOTE,
            0.7,
            explains=frozenset({Label.CPU, Label.UNDETERMINED}),
        )


def only_finished_requests(e: Evidence) -> Iterator[Finding]:
    """Queue, prefill, decode and e2e times are observed when a request ends: during an overload they are of
    the lucky ones.
    """
    load = load_of(e)
    queue = mean_of(e, "vllm:request_queue_time_seconds")
    if load.waiting and load.waiting[-1] >= 8 and queue is not None and queue < 0.5:
        yield Finding(
            Label.MEASUREMENT,
            f"Mean queue time {queue:.3f} s while {load.waiting[-1]:,.0f} wait: it counts only requests "
            f"that have ended",
            (fact(e, "vllm:request_queue_time_seconds_sum"), fact(e, load.names["waiting"])),
            Advice("read num_requests_waiting and TTFT during an overload", "an alert that fires in time"),
            Severity.NOTE,
            0.8,
        )


def longer_steps_for_more(e: Evidence) -> Iterator[Finding]:
    """More streams at once share each step: a token takes longer by far less than the load grew, and
    nobody waits.
    """
    load = load_of(e)
    found = (
        (float(match[1]), q)
        for q in quantities(e)
        if q.what in {"itl", "tpot", "e2e", "e2el", "latency", "request"} and not q.is_rate
        for word in q.situation
        if (match := re.fullmatch(r"c(\d+)", word))
    )
    seen = sorted(found, key=lambda pair: pair[0])
    if len(seen) < 2 or load.peak_waiting > 0 or load.peak_kv >= 0.9:
        return
    (few, low), (many, high) = seen[0], seen[-1]
    if few and low.last and 1.0 < high.last / low.last < 0.3 * many / few:
        yield Finding(
            Label.EXPECTED,
            f"{many / few:g} times the streams and {high.last / low.last:.1f} times the time a token: "
            f"steps are shared",
            (fact(e, low.name), fact(e, high.name)),
            Advice("nothing, if the ITL goal holds; --max-num-seqs lower trades queue for it", "none"),
            Severity.NOTE,
            0.6,
            explains=frozenset({Label.UNDETERMINED}),
        )


_TIME = re.compile(r"(?:time_to_first_token|inter_token_latency|time_per_output_token|e2e_request_latency)")


def impossible_times(e: Evidence) -> Iterator[Finding]:
    """No request takes less than a millisecond, and none less than nothing: a histogram whose counts all lie
    below its first edge, or a difference below zero, is of the bookkeeping and not of requests.
    """
    counts = [r for r in e.readings.values() if r.last and _TIME.search(r.name) and "_bucket{" in r.name]
    edges = {float(m[1]): r for r in counts if (m := re.search(r"le=\"?([\d.]+)", r.name))}
    first = min(edges, default=1.0)
    below = first <= 0.001 and len(edges) > 1 and edges[first].last == edges[max(edges)].last
    told = [q for q in quantities(e, ("client:", "promql:", "measured:")) if not q.is_rate and q.last < 0]
    if not below and not told:
        return
    name = edges[first].name if below else told[0].name
    yield Finding(
        Label.MEASUREMENT,
        f"All of {edges[first].last:,.0f} observations lie below {first * 1e3:g} ms: no request is that fast"
        if below
        else f"{name} = {told[0].last:g} s: no time is below zero; two quantiles or clocks were subtracted",
        (fact(e, name),),
        Advice(
            "take the time at the client, and the mean (sum / count); a version that fills the histogram",
            "times that a user would see",
            verify="one request timed by hand beside the metric",
        ),
        Severity.WARNING,
        0.85,
        explains=frozenset({Label.UNDETERMINED}),
    )


RULES = (
    in_the_first_bucket,
    impossible_times,
    mixed_window,
    names_of_another_version,
    cached_tokens_counted,
    stats_turned_off,
    impossible_share,
    recomputed_as_hits,
    per_event_not_per_token,
    busy_without_work,
    busy_cores,
    only_finished_requests,
    longer_steps_for_more,
)
