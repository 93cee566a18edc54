"""A run in numbers, predicted and real ones side by side: what all targets of `bench.fidelity` share."""

import urllib.request
from collections.abc import Sequence
from itertools import combinations

import numpy as np

from bench.fidelity.record import Seen
from headrace.core.timeline import Failure, Timeline

METRICS: dict[str, tuple[str, float]] = {
    "ttft_p50_s": ("TTFT P50, s", 1.0),
    "ttft_p95_s": ("TTFT P95, s", 1.0),
    "itl_mean_s": ("ITL mean, ms", 1e3),
    "output_tokens_per_s": ("output tokens/s", 1.0),
    "preemptions": ("preemptions", 1.0),
}
SHARES = tuple(name for name in METRICS if name != "preemptions")
"""Metrics whose errors are shares. Preemptions are small whole numbers, so they are told as they are."""


def compare(title: str, predicted: Seen, measured: Sequence[Seen]) -> dict[str, float]:
    """Print the table of one point. Errors in percent by metric, and the preemptions as counted."""
    print(f"\n{title}")
    heads = "".join(f"{f'run {number + 1}':>10}" for number in range(len(measured)))
    print(f"  {'':<18}{'predicted':>11}{heads}{'error':>9}{'spread':>9}")
    errors: dict[str, float] = {}
    for name, (label, unit) in METRICS.items():
        said, seen = getattr(predicted, name), [getattr(each, name) for each in measured]
        cells = "".join(f"{value * unit:>10.2f}" for value in seen)
        mean = float(np.mean(seen))
        if name == "preemptions":
            errors |= {"predicted_preemptions": said, "preemptions": mean}
            print(f"  {label:<18}{said:>11.0f}" + "".join(f"{value:>10.0f}" for value in seen), flush=True)
        else:
            errors[name] = error_pct(predicted, measured, name)
            spread = spread_pct(measured, name)
            print(f"  {label:<18}{said * unit:>11.2f}{cells}{errors[name]:>+8.1f}%{spread:>8.1f}%")
    return errors


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
