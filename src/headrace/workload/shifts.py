"""What changed from one workload to another, whether by more than chance, and what it will do.

    Columns a, Columns b --compare--> Comparison

A feature has shifted when its difference is beyond chance *and* large enough to matter: ten million
requests make any difference certain, however small.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from headrace.workload.columns import ALONE, Columns
from headrace.workload.features import LONG_PROMPT_TOKENS, TOKEN_S, Features, describe
from headrace.workload.two_samples import (
    Ratio,
    Sample,
    holm,
    kolmogorov_smirnov,
    rate_difference,
    ratio_difference,
)

CERTAIN = 0.01
"""A smaller probability, after Holm's correction, is beyond chance."""
MATTERS_RELATIVE = 0.1
MATTERS_POINTS = 0.02
"""Of a share: two percentage points."""


LONG_SHARE = "long prompts of tokens"
"""Share of the prompt tokens that long prompts hold."""


class Unit(StrEnum):
    RATE = "requests a second"
    TOKENS = "tokens"
    SHARE = "share"


@dataclass(frozen=True, slots=True)
class Shift:
    name: str
    unit: Unit
    a: float
    b: float
    probability: float | None
    """Of at least this difference by chance, corrected for the number of tests; None: too few requests."""
    matters: bool

    @property
    def shifted(self) -> bool:
        return self.matters and self.probability is not None and self.probability < CERTAIN

    @property
    def times(self) -> float:
        return self.b / self.a if self.a else float("inf") if self.b else 1.0


@dataclass(frozen=True, slots=True)
class Comparison:
    a: Features
    b: Features
    shifts: tuple[Shift, ...]
    consequences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Side:
    columns: Columns
    features: Features
    clusters: NDArray[np.int64]

    def sample(self, tokens: NDArray[np.int32]) -> Sample:
        return Sample(tokens.astype(np.float64), self.clusters)

    def share(self, of: NDArray[np.float64], whole: NDArray[np.float64]) -> Ratio:
        return Ratio(of, whole, self.clusters)


def compare(
    a: Columns, b: Columns, long_tokens: int = LONG_PROMPT_TOKENS, token_s: float = TOKEN_S
) -> Comparison:
    sides = [_Side(each, describe(each, long_tokens, token_s), _clusters(each)) for each in (a, b)]
    raw = [*_always(*sides), *_reuse(*sides), *_classes(*sides)]
    known = [(place, shift.probability) for place, shift in enumerate(raw) if shift.probability is not None]
    shifts = list(raw)
    adjusted = holm([probability for _, probability in known])
    for (place, _), probability in zip(known, adjusted, strict=True):
        shifts[place] = replace(raw[place], probability=probability)
    features_a, features_b = sides[0].features, sides[1].features
    return Comparison(
        features_a, features_b, tuple(shifts), tuple(_consequences(features_a, features_b, shifts))
    )


def _clusters(columns: Columns) -> NDArray[np.int64]:
    """Sessions, and each request of none."""
    clusters = columns.session_index.astype(np.int64)
    alone = clusters == ALONE
    clusters[alone] = len(columns.sessions) + 1 + np.arange(np.count_nonzero(alone))
    return clusters


def _shift(name: str, unit: Unit, a: float, b: float, probability: float | None) -> Shift:
    if unit is Unit.SHARE:
        matters = abs(b - a) >= MATTERS_POINTS
    else:
        matters = abs(b - a) >= MATTERS_RELATIVE * max(a, b)
    return Shift(name, unit, a, b, probability, matters)


def _always(a: _Side, b: _Side) -> list[Shift]:
    long_a, long_b = a.features.long_prompts, b.features.long_prompts
    rates = a.features.timing.rate, b.features.timing.rate
    return [
        _shift("rate", Unit.RATE, *rates, rate_difference(a.columns.at_ns, b.columns.at_ns)),
        *_lengths("prompt", a.sample(a.columns.prompt_tokens), b.sample(b.columns.prompt_tokens)),
        *_lengths("output", a.sample(a.columns.output_tokens), b.sample(b.columns.output_tokens)),
        _shift(
            LONG_SHARE,
            Unit.SHARE,
            long_a.token_share,
            long_b.token_share,
            ratio_difference(_long(a, long_a.threshold_tokens), _long(b, long_a.threshold_tokens)),
        ),
    ]


def _lengths(what: str, a: Sample, b: Sample) -> list[Shift]:
    """One test of the whole distribution stands behind both figures."""
    probability = kolmogorov_smirnov(a, b)
    figures: tuple[tuple[str, Callable[[NDArray[np.float64]], float]], ...] = (
        ("mean", lambda tokens: float(tokens.mean())),
        ("P95", lambda tokens: float(np.percentile(tokens, 95))),
    )
    return [
        _shift(f"{what} {name}", Unit.TOKENS, of(a.values), of(b.values), probability) for name, of in figures
    ]


def _long(side: _Side, threshold: int) -> Ratio:
    prompts = side.columns.prompt_tokens.astype(np.float64)
    return side.share(np.where(prompts > threshold, prompts, 0.0), prompts)


def _reuse(a: _Side, b: _Side) -> list[Shift]:
    if a.features.reuse is None or b.features.reuse is None:
        return []
    reuse = a.features.reuse.token_share, b.features.reuse.token_share
    return [_shift("prefix reuse", Unit.SHARE, *reuse, ratio_difference(_shared(a), _shared(b)))]


def _shared(side: _Side) -> Ratio:
    columns = side.columns
    return side.share(columns.shared_tokens.astype(np.float64), columns.prompt_tokens.astype(np.float64))


def _classes(a: _Side, b: _Side) -> list[Shift]:
    names = dict.fromkeys((*a.columns.classes, *b.columns.classes))
    if len(names) < 2:
        return []
    shifts: list[Shift] = []
    for name in names:
        of_a, of_b = _of_class(a, name), _of_class(b, name)
        shares = float(of_a.above.mean()), float(of_b.above.mean())
        shifts.append(_shift(f"share of {name}", Unit.SHARE, *shares, ratio_difference(of_a, of_b)))
    return shifts


def _of_class(side: _Side, name: str) -> Ratio:
    columns = side.columns
    index = columns.classes.index(name) if name in columns.classes else None
    is_it = (
        np.zeros(len(columns.at_ns)) if index is None else (columns.class_index == index).astype(np.float64)
    )
    return side.share(is_it, np.ones(len(is_it)))


_MORE_LONG = (
    "More of every step is long prompts: short requests wait longer for their first token, and ITL rises "
    "at P95. Look at long_prefill_token_threshold and --scheduling-policy shortest."
)
_FEWER_LONG = (
    "Fewer long prompts stand in the way of short ones: a larger max_num_batched_tokens costs less ITL."
)


def _consequences(a: Features, b: Features, shifts: list[Shift]) -> list[str]:
    """In words, of those that shifted, with what to look at."""
    shifted = {shift.name: shift for shift in shifts if shift.shifted}
    said: list[str] = []
    if rate := shifted.get("rate"):
        said.append(
            f"{rate.times:.2f} times the rate: "
            + ("queues grow" if rate.times > 1 else "there is room")
            + " wherever a budget was nearly spent."
        )
    if long := shifted.get(LONG_SHARE):
        said.append(_MORE_LONG if long.b > long.a else _FEWER_LONG)
    if output := shifted.get("output mean") or shifted.get("output P95"):
        longer = output.b > output.a
        said.append(
            f"Answers are {'longer' if longer else 'shorter'}: each keeps its slot and KV blocks "
            f"{'longer' if longer else 'less long'}, {_count(a.concurrency.mean)} requests at once become "
            f"{_count(b.concurrency.mean)}. Look at max_num_seqs and the KV cache."
        )
    if reuse := shifted.get("prefix reuse"):
        said.append(
            f"The prefix cache can spare {reuse.b:.0%} of the prompts instead of {reuse.a:.0%}: "
            f"{b.computed_tokens_per_s:,.0f} prompt tokens a second are to be computed instead of "
            f"{a.computed_tokens_per_s:,.0f}."
        )
    if "prompt mean" in shifted and LONG_SHARE not in shifted:
        said.append(
            f"Prompts take {shifted['prompt mean'].times:.2f} times the tokens: so much more, or less, "
            "prefill, and KV cache for each request."
        )
    return said


def _count(amount: float) -> str:
    return f"{amount:,.0f}" if amount >= 10 else f"{amount:.1f}"
