"""What a twin of a server needs to know, as far as its metrics tell: settings, traffic, and how it did.

    Evidence -> settings_of -> {"max_num_seqs": 64, ...}      under vLLM's names, only what is known
    Evidence -> traffic_of  -> Traffic(rate, lengths, backlog) or None

Lengths come from the server's own histograms, so a thing between two edges is anywhere between them.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.load import load_of, mean_of

_NUMBERS = (
    "max-num-batched-tokens",
    "max-num-seqs",
    "long-prefill-token-threshold",
    "max-model-len",
    "block-size",
)
_SWITCHES = ("enable-chunked-prefill", "enable-prefix-caching", "scheduler-reserve-full-isl")
_TEXTS = ("scheduling-policy",)
FEWEST = 8
"""Requests that ended while somebody looked: fewer say too little of lengths."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """A histogram: `counts[i]` of them lie above `edges[i]` and at most at `edges[i + 1]`."""

    edges: tuple[float, ...]
    counts: tuple[float, ...]

    def quantile(self, share: float) -> float:
        """As if all were spread evenly between two edges."""
        wanted, passed = share * sum(self.counts), 0.0
        for (low, high), count in zip(pairwise(self.edges), self.counts, strict=True):
            if count and passed + count >= wanted:
                return low + (high - low) * (wanted - passed) / count
            passed += count
        return self.edges[-1]


@dataclass(frozen=True, slots=True)
class Traffic:
    """What came while somebody looked, and what it met."""

    window_s: float
    rate_per_s: float
    prompts: Lengths
    answers: Lengths
    waiting: int
    """At the beginning: work that was there before anybody came."""
    ttft_s: float | None
    itl_s: float | None
    """Means as the server counts them: what a twin is held against."""


def settings_of(e: Evidence) -> dict[str, int | bool | str]:
    """The budgets that are known, under vLLM's names."""
    found = dict[str, int | bool | str]()
    for name in _NUMBERS:
        if (value := e.flag(name)) is not None:
            found[name.replace("-", "_")] = int(value)
    for name in _SWITCHES:
        if name in e.flags:
            found[name.replace("-", "_")] = e.is_on(name)
    for name in _TEXTS:
        if name in e.flags:
            found[name.replace("-", "_")] = str(e.flags[name].value)
    tokens, size = e.number("startup:kv_cache_tokens"), int(found.get("block_size", 16))
    blocks = (
        e.flag("num-gpu-blocks-override") or e.flag("num-gpu-blocks") or (tokens / size if tokens else None)
    )
    if blocks:
        found["num_gpu_blocks_override"] = int(blocks)
    return found


def traffic_of(e: Evidence) -> Traffic | None:
    """None where there are no two looks with their time, or too few requests ended between them."""
    window = e.number("server:window_s")
    stem = "headrace:" if e.engine == "headrace" else "vllm:"
    firsts = _grown(e, "vllm:time_to_first_token_seconds_count")
    prompts = _lengths(e, "vllm:request_prompt_tokens")
    answers = _lengths(e, "vllm:request_generation_tokens")
    load = load_of(e)
    if not window or firsts is None or prompts is None or answers is None or sum(prompts.counts) < FEWEST:
        return None
    queued = load.waiting[-1] - load.waiting[0] if load.waiting else 0.0
    return Traffic(
        window_s=window,
        rate_per_s=max(0.0, firsts + queued) / window,
        prompts=prompts,
        answers=answers,
        waiting=int(load.waiting[0]) if load.waiting else 0,
        ttft_s=mean_of(e, f"{stem}time_to_first_token_seconds")
        or mean_of(e, "vllm:time_to_first_token_seconds"),
        itl_s=mean_of(e, "vllm:inter_token_latency_seconds")
        or mean_of(e, "vllm:time_per_output_token_seconds"),
    )


def _grown(e: Evidence, name: str) -> float | None:
    series = e.series(name)
    return series[-1] - series[0] if len(series) > 1 else None


_EDGE = re.compile(r"\{le=([^,}]+)")


def _lengths(e: Evidence, name: str) -> Lengths | None:
    """What a histogram grew by between the first look and the last."""
    below = dict[float, float]()
    for reading in e.under(f"{name}_bucket{{"):
        match = _EDGE.search(reading.name)
        if match and len(reading.numbers) > 1:
            below[float(match[1])] = reading.numbers[-1] - reading.numbers[0]
    return _histogram(sorted(below.items()))


def _histogram(below: Sequence[tuple[float, float]]) -> Lengths | None:
    """Of cumulative counts; what lies above the last finite edge is taken to lie at it."""
    finite = [(edge, count) for edge, count in below if edge != float("inf")]
    if not finite or below[-1][1] <= 0:
        return None
    counts = [later - earlier for (_, earlier), (_, later) in pairwise([(0.0, 0.0), *finite])]
    counts[-1] += below[-1][1] - finite[-1][1]
    return Lengths((0.0, *(edge for edge, _ in finite)), tuple(max(0.0, count) for count in counts))


def told_settings(settings: Mapping[str, int | bool | str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())
