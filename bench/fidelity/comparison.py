"""A run in numbers, predicted and real ones side by side: what all targets of `bench.fidelity` share."""

import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from bench.fidelity.record import Seen
from bench.fidelity.scenarios import Budgets
from headrace.core.exchange import Arrival
from headrace.core.timeline import Failure, Timeline

METRICS: dict[str, tuple[str, float]] = {
    "ttft_p50_s": ("TTFT P50, s", 1.0),
    "ttft_p95_s": ("TTFT P95, s", 1.0),
    "itl_mean_s": ("ITL mean, ms", 1e3),
    "output_tokens_per_s": ("output tokens/s", 1.0),
    "preemptions": ("preemptions", 1.0),
}
RANKED_PREFIX = "ranked: "
SHARES = tuple(name for name in METRICS if name != "preemptions")
"""Metrics whose errors are shares. Preemptions are small whole numbers, so they are told as they are."""


@dataclass(slots=True)
class Point:
    """What is predicted, then measured."""

    name: str
    budgets: Budgets
    arrivals: Sequence[Arrival]
    repeats: int
    predicted: Seen | None = None


@dataclass(frozen=True, slots=True)
class Compared:
    """One point's errors and, of more than one run, their spread, by metric; preemptions said and seen."""

    name: str
    errors_pct: Mapping[str, float]
    spreads_pct: Mapping[str, float]
    preemptions: tuple[float, float]


def compare(point: Point, measured: Sequence[Seen]) -> Compared:
    """Print the table of one point."""
    predicted = point.predicted
    assert predicted is not None, "predicted before measured"
    print(f"\n{point.name}: {len(point.arrivals)} requests")
    heads = "".join(f"{f'run {number + 1}':>10}" for number in range(len(measured)))
    print(f"  {'':<18}{'predicted':>11}{heads}{'error':>9}{'spread':>9}")
    errors: dict[str, float] = {}
    spreads: dict[str, float] = {}
    for name, (label, unit) in METRICS.items():
        said, seen = getattr(predicted, name), [getattr(each, name) for each in measured]
        cells = "".join(f"{value * unit:>10.2f}" for value in seen)
        if name == "preemptions":
            print(f"  {label:<18}{said:>11.0f}" + "".join(f"{value:>10.0f}" for value in seen))
        else:
            errors[name] = error_pct(predicted, measured, name)
            spread = f"{'one run':>9}"
            if len(measured) > 1:
                spreads[name] = spread_pct(measured, name)
                spread = f"{spreads[name]:>8.1f}%"
            print(f"  {label:<18}{said * unit:>11.2f}{cells}{errors[name]:>+8.1f}%{spread}")
    print(f"  machine at {np.mean([each.pace for each in measured]):.2f} of the calibration's step time")
    counted = float(np.mean([each.preemptions for each in measured]))
    return Compared(point.name, errors, spreads, (predicted.preemptions, counted))


def result_of(
    compared: Sequence[Compared], tau: float | None, ranked: int, aim_pct: float
) -> dict[str, object]:
    """What the last line says. Within the aim is also what is within the real runs' own spread."""
    sizes = [abs(point.errors_pct[name]) for point in compared for name in SHARES]
    if not sizes:
        return {"points": 0, "kendall_tau": tau, "settings_ranked": ranked}
    spreads = [spread for point in compared for spread in point.spreads_pct.values()]
    aims = [max(aim_pct, point.spreads_pct.get(name, 0.0)) for point in compared for name in SHARES]
    within = [size <= aim for size, aim in zip(sizes, aims, strict=True)]
    return {
        "median_error_pct": round(float(np.median(sizes)), 2),
        "worst_error_pct": round(max(sizes), 2),
        "spread_pct": round(float(np.median(spreads)), 2) if spreads else None,
        "kendall_tau": tau,
        "worst_spread_pct": round(max(spreads), 2) if spreads else None,
        "within_aim": f"{sum(within)} of {len(within)}",
        "median_error_pct_by_metric": {
            name: round(float(np.median([abs(point.errors_pct[name]) for point in compared])), 2)
            for name in SHARES
        },
        "preemptions": {
            point.name: {"predicted": point.preemptions[0], "measured": point.preemptions[1]}
            for point in compared
            if any(point.preemptions)
        },
        "points": len(compared),
        "settings_ranked": ranked,
    }


def rank(title: str, points: Sequence[Point], seen: Sequence[float]) -> float | None:
    """Kendall's tau of P95 TTFT, None below two settings. All of them met the same requests."""
    if len(points) < 2:
        return None
    said = [point.predicted.ttft_p95_s for point in points if point.predicted is not None]
    print(f"\nTTFT P95 under {len(seen)} settings, {title}, s")
    print(f"  {'':<66}{'said':>8}{'seen':>8}")
    for point, predicted, measured in sorted(zip(points, said, seen, strict=True), key=lambda row: row[2]):
        print(f"  {point.name.removeprefix(RANKED_PREFIX):<66}{predicted:>8.2f}{measured:>8.2f}", flush=True)
    return round(kendall_tau(said, seen), 3)


def ranked_name(budgets: Budgets) -> str:
    words = ", ".join(f"{name} {value}" for name, value in budgets.items()) or "defaults"
    return f"{RANKED_PREFIX}{words}"


def kendall_tau(some: Sequence[float], others: Sequence[float]) -> float:
    """Pairs in the same order less those in the opposite one, of all pairs. Ties are neither."""
    pairs = list(combinations(range(len(some)), 2))
    return sum(float(np.sign((some[a] - some[b]) * (others[a] - others[b]))) for a, b in pairs) / len(pairs)


def error_pct(predicted: Seen, measured: Sequence[Seen], name: str) -> float:
    return 100 * (getattr(predicted, name) / float(np.mean([getattr(each, name) for each in measured])) - 1)


def spread_pct(measured: Sequence[Seen], name: str) -> float:
    """From the least to the most of the real runs, as a share of their mean."""
    values = [getattr(each, name) for each in measured]
    return 100 * (max(values) - min(values)) / float(np.mean(values))


def seen_of(results: Sequence[Timeline | Failure], preemptions: float) -> Seen:
    failed = [result for result in results if isinstance(result, Failure)]
    assert not failed, f"{len(failed)} of {len(results)} requests failed, the first: {failed[0].reason}"
    timelines = [result for result in results if isinstance(result, Timeline)]
    ttfts = [timeline.ttft_s for timeline in timelines]
    gaps = [gap for timeline in timelines for gap in timeline.itl_s]
    tokens = sum(len(timeline.token_at) for timeline in timelines)
    over_s = max(timeline.token_at[-1] for timeline in timelines) - timelines[0].due_at
    p50, p95 = (float(np.quantile(ttfts, share)) for share in (0.5, 0.95))
    return Seen(p50, p95, float(np.mean(gaps)), tokens / over_s, preemptions)


def preemptions_of(url: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    counted = [line for line in lines if line.startswith("vllm:num_preemptions_total")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in counted)
