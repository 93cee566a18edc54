"""What a measurement comes to: percentiles and rates.

    Measurement -> summarise -> {class: ClassSummary, ..., "all": ClassSummary}

Latencies start when a request was due (core.timeline). Percentiles are numpy's "linear" ones:
between two neighbouring samples they are interpolated. They are of the requests that brought a
whole answer; the others are counted as `failed` beside them, never mixed in and never dropped.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.core.errors import BadInput
from headrace.core.measurement import ALL, Measurement
from headrace.core.timeline import Failure, Timeline


@dataclass(frozen=True, slots=True)
class Percentiles:
    """A distribution in five numbers, in the unit of its samples."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class ClassSummary:
    """One class of requests over a run. None where there is nothing to take percentiles of."""

    request_class: str
    requests: int
    """How many were due: `failed` of them brought no whole answer."""
    failed: int
    ttft_s: Percentiles | None
    itl_s: Percentiles | None
    """Over every gap between two tokens of one answer, not over means of answers."""
    tpot_s: Percentiles | None
    e2e_s: Percentiles | None
    throughput_rps: float
    """Whole answers a second of the run."""
    output_tokens_per_s: float
    """Tokens of whole answers a second of the run."""


def summarise(measurement: Measurement) -> dict[str, ClassSummary]:
    """One summary per class in order of name, then one of all together."""
    by_class = defaultdict[str, list[Timeline | Failure]](list)
    for result in measurement.measured:
        by_class[result.request_class].append(result)
    if ALL in by_class:
        raise BadInput(f"a class of requests is called {ALL!r}, which is the name of all together")
    groups = {name: by_class[name] for name in sorted(by_class)} | {ALL: measurement.measured}
    return {name: _summary(name, group, measurement.per_s) for name, group in groups.items()}


def percentiles(samples: Iterable[float]) -> Percentiles | None:
    """None of no samples."""
    values = np.fromiter(samples, dtype=np.float64)
    if values.size == 0:
        return None
    p50, p95, p99 = np.percentile(values, (50, 95, 99), method="linear").tolist()
    return Percentiles(int(values.size), float(values.mean()), p50, p95, p99)


def client_lag_s(measurement: Measurement) -> Percentiles | None:
    """How late requests left us. When this is large the client was the bottleneck, not the server."""
    return percentiles(timeline.dispatch_lag_s for timeline in measurement.timelines)


def _summary(name: str, results: Sequence[Timeline | Failure], per_s: Callable[[int], float]) -> ClassSummary:
    timelines = [r for r in results if isinstance(r, Timeline)]
    tokens = sum(len(t.token_at) for t in timelines)
    return ClassSummary(
        request_class=name,
        requests=len(results),
        failed=len(results) - len(timelines),
        ttft_s=percentiles(t.ttft_s for t in timelines),
        itl_s=percentiles(gap_s for t in timelines for gap_s in t.itl_s),
        tpot_s=percentiles(tpot_s for t in timelines if (tpot_s := t.tpot_s) is not None),
        e2e_s=percentiles(t.e2e_s for t in timelines),
        throughput_rps=per_s(len(timelines)),
        output_tokens_per_s=per_s(tokens),
    )
