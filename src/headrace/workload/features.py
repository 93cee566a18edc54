"""What of a workload decides how a server should be tuned.

    Columns --describe--> Features

Percentiles are exact, by linear interpolation, as everywhere in this project. A concurrency
needs to know how long answers take, which a workload does not say: it is given for an assumed time a
token, without any wait.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.workload.columns import Columns

LONG_PROMPT_TOKENS = 2048
"""Longer than one step of vLLM's smaller default budget (`max_num_batched_tokens`)."""
TOKEN_S = 0.02
"""Fifty tokens a second: a usual answer of a server that is not overloaded."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens."""

    mean: float
    p50: float
    p95: float
    p99: float
    most: int


@dataclass(frozen=True, slots=True)
class Timing:
    """When requests come."""

    duration_s: float
    """From the first to the last."""
    rate: float
    """Requests a second; 0 where all come at once."""
    gap_cv: float
    """Deviation of the gaps over their mean: 1 for Poisson, more is burstier."""
    dispersion: float
    """Variance of the requests in a second over their mean: 1 for Poisson."""
    autocorrelation: float
    """Of neighbouring gaps: 0 for Poisson."""
    peak_1s: int
    """Most requests in one second, counted from the first."""
    peak_60s: int
    instants: int
    """Different ones. Far fewer than requests: the clock ticked."""


@dataclass(frozen=True, slots=True)
class Concurrency:
    """Requests under way at once, if every token of an answer took `token_s` and nobody waited."""

    token_s: float
    peak: int
    mean: float


@dataclass(frozen=True, slots=True)
class LongPrompts:
    threshold_tokens: int
    share: float
    """Of the requests."""
    token_share: float
    """Of the prompt tokens."""


@dataclass(frozen=True, slots=True)
class Reuse:
    """What a prefix cache could find that forgets nothing."""

    block_share: float
    """Of the blocks that the workload names."""
    token_share: float
    """Of all prompt tokens."""


@dataclass(frozen=True, slots=True)
class ClassMix:
    name: str
    share: float
    token_share: float
    """Of the prompt tokens."""
    prompt: Lengths
    output: Lengths


@dataclass(frozen=True, slots=True)
class Groups:
    """Tenants or sessions."""

    count: int
    mean_requests: float
    top_share: float
    """Of the requests of any, those of the largest."""


@dataclass(frozen=True, slots=True)
class Features:
    """Everything that `headrace workload describe` says."""

    requests: int
    left_out: int
    prompt: Lengths
    output: Lengths
    timing: Timing
    concurrency: Concurrency
    long_prompts: LongPrompts
    reuse: Reuse | None
    """None where the workload does not say what is shared."""
    classes: tuple[ClassMix, ...]
    """By their share."""
    tenants: Groups | None
    sessions: Groups | None
    waiting_share: float
    """Of the requests, turns that wait for the answer before them."""

    @property
    def prompt_tokens_per_s(self) -> float:
        return self.prompt.mean * self.timing.rate

    @property
    def computed_tokens_per_s(self) -> float:
        """Prompt tokens that no cache can spare."""
        return self.prompt_tokens_per_s * (1 - (self.reuse.token_share if self.reuse else 0.0))

    @property
    def output_tokens_per_s(self) -> float:
        return self.output.mean * self.timing.rate


def describe(columns: Columns, long_tokens: int = LONG_PROMPT_TOKENS, token_s: float = TOKEN_S) -> Features:
    prompts = columns.prompt_tokens
    total_prompt = int(prompts.sum(dtype=np.int64))
    is_long = prompts > long_tokens
    timing = timing_of(columns.at_ns)
    return Features(
        requests=len(prompts),
        left_out=columns.left_out,
        prompt=lengths_of(prompts),
        output=lengths_of(columns.output_tokens),
        timing=timing,
        concurrency=_concurrency(columns, token_s, timing.duration_s),
        long_prompts=LongPrompts(
            long_tokens,
            float(is_long.mean()),
            float(prompts[is_long].sum(dtype=np.int64) / total_prompt),
        ),
        reuse=_reuse(columns, total_prompt),
        classes=_class_mix(columns, total_prompt),
        tenants=_groups(columns.tenants),
        sessions=_groups(columns.sessions),
        waiting_share=columns.waiting / len(prompts),
    )


def lengths_of(tokens: NDArray[np.int32]) -> Lengths:
    p50, p95, p99 = np.percentile(tokens, (50, 95, 99)).tolist()
    return Lengths(float(tokens.mean(dtype=np.float64)), p50, p95, p99, int(tokens.max()))


def timing_of(at_ns: NDArray[np.int64]) -> Timing:
    since_ns = at_ns - at_ns[0]
    duration_s = float(since_ns[-1]) / 1e9
    gaps_s = np.diff(since_ns) / 1e9
    mean_gap_s = float(gaps_s.mean()) if len(gaps_s) else 0.0
    counts = np.bincount(since_ns // 1_000_000_000)
    whole = counts[: int(duration_s)] if duration_s >= 1 else counts
    return Timing(
        duration_s=duration_s,
        rate=1 / mean_gap_s if mean_gap_s else 0.0,
        gap_cv=float(gaps_s.std()) / mean_gap_s if mean_gap_s else 0.0,
        dispersion=float(whole.var() / whole.mean()) if whole.any() else 0.0,
        autocorrelation=_lag_1(gaps_s),
        peak_1s=int(counts.max()),
        peak_60s=int(np.bincount(since_ns // 60_000_000_000).max()),
        instants=int(np.count_nonzero(gaps_s)) + 1,
    )


def _lag_1(gaps_s: NDArray[np.float64]) -> float:
    if len(gaps_s) < 2:
        return 0.0
    off = gaps_s - gaps_s.mean()
    spread = float((off * off).sum())
    return float((off[:-1] * off[1:]).sum()) / spread if spread else 0.0


def _concurrency(columns: Columns, token_s: float, duration_s: float) -> Concurrency:
    """At an arrival: those that have come, less those that have ended."""
    lasting_ns = columns.output_tokens * (token_s * 1e9)
    ends = np.sort(columns.at_ns + lasting_ns.astype(np.int64))
    ended = np.searchsorted(ends, columns.at_ns, side="right")
    at_once = np.arange(1, len(ended) + 1) - ended
    whole_s = max(duration_s, float(ends[-1] - columns.at_ns[0]) / 1e9)
    mean = float(lasting_ns.sum()) / 1e9 / whole_s if whole_s else float(len(ended))
    return Concurrency(token_s, int(at_once.max()), mean)


def _reuse(columns: Columns, total_prompt: int) -> Reuse | None:
    if not columns.prefix_blocks:
        return None
    shared = float(columns.shared_tokens.sum(dtype=np.int64))
    return Reuse(columns.prefix_hits / columns.prefix_blocks, shared / total_prompt)


def _class_mix(columns: Columns, total_prompt: int) -> tuple[ClassMix, ...]:
    mixes: list[ClassMix] = []
    for index, name in enumerate(columns.classes):
        of_class = columns.class_index == index
        prompts = columns.prompt_tokens[of_class]
        mixes.append(
            ClassMix(
                name=name,
                share=len(prompts) / len(of_class),
                token_share=int(prompts.sum(dtype=np.int64)) / total_prompt,
                prompt=lengths_of(prompts),
                output=lengths_of(columns.output_tokens[of_class]),
            )
        )
    return tuple(sorted(mixes, key=lambda mix: -mix.share))


def _groups(counts: dict[str, int]) -> Groups | None:
    if not counts:
        return None
    total = sum(counts.values())
    return Groups(len(counts), total / len(counts), max(counts.values()) / total)
