"""A cost model fitted to steps that were measured.

    [(StepShape, ns), ...] --fit--> FittedCost{ns by feature, residual} -> nanoseconds of any step

Time is a sum of non-negative rates times what a step contains: sequences, tokens, context, attention
pairs; and of the number of tokens also in pieces, `upto` a knot where early tokens cost more than late
ones (kernels that fill up), `over` it where late ones do (bound by memory first, then by arithmetic), once
`past` one where a slower kernel takes over. A step of another size than the one before it (`resized`)
pays for preparing its kernels.
Rates cannot be negative, so that a larger step never costs less, however far from the data.

Steps of a millisecond and of a second count alike: errors are relative. Steps that something
else disturbed count less the further they are off (Huber's weights).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from headrace.core.cost import FrontEnd, Machine, Residual, StepShape
from headrace.core.errors import BadInput

Floats = npt.NDArray[np.float64]

FEWEST_RECORDS = 10
_KNOTS = (8, 32, 128, 512, 2048)
_JUMPS = (4,)
"""Tokens up to which OpenVINO multiplies as for single ones: five take 1.4 times as long as four."""
_UPTO, _OVER, _PAST = "tokens_upto_", "tokens_over_", "tokens_past_"
_ROUNDS = 20
_HUBER = 1.345
"""In standard deviations: beyond it a step is an outlier. 95 % efficient on clean data."""

_LINEAR: dict[str, Callable[[StepShape], int]] = {
    "step": lambda _: 1,
    "decode_seqs": lambda shape: shape.decode_seqs,
    "decode_context_tokens": lambda shape: shape.decode_context_tokens,
    "prefill_seqs": lambda shape: shape.prefill_seqs,
    "prefill_tokens": lambda shape: shape.prefill_tokens,
    "prefill_context_tokens": lambda shape: shape.prefill_context_tokens,
    "prefill_attention_pairs": lambda shape: shape.prefill_attention_pairs,
    "sampled_seqs": lambda shape: shape.sampled_seqs,
    "resized": lambda shape: int(shape.resized),
}


class _ByTokens(dict[int, float]):
    """The part of a step's time that depends on its number of tokens, computed when first asked for."""

    def __init__(self, pieces: Sequence[tuple[str, int, float]]) -> None:
        super().__init__()
        self._pieces = pieces

    def __missing__(self, tokens: int) -> float:
        ns = self[tokens] = sum(rate * _piece(name, knot, tokens) for name, knot, rate in self._pieces)
        return ns


@dataclass(frozen=True, slots=True)
class FittedCost:
    """A `CostModel`. `ns` has a rate for each feature that costs something, in nanoseconds."""

    ns: Mapping[str, float]
    residual: Residual
    provenance: Mapping[str, str]
    machine: Machine | None = None
    front_end: FrontEnd | None = None
    """What comes on top of steps; None where nobody measured it."""
    _rates: tuple[float, ...] = field(init=False, repr=False, compare=False)
    _by_tokens: _ByTokens = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        pieces = [(*_parse(name), rate) for name, rate in self.ns.items() if name not in _LINEAR]
        object.__setattr__(self, "_rates", tuple(self.ns.get(name, 0.0) for name in _LINEAR))
        object.__setattr__(self, "_by_tokens", _ByTokens(pieces))

    def step_ns(self, shape: StepShape) -> int:
        step, decode, context, prefill, tokens, earlier, pairs, sampled, resized = self._rates
        seqs = shape.decode_seqs
        ns = step + seqs * decode + shape.decode_context_tokens * context + shape.sampled_seqs * sampled
        if shape.resized:
            ns += resized
        if shape.prefill_seqs:
            ns += (
                self._by_tokens[seqs + shape.prefill_tokens]
                + shape.prefill_seqs * prefill
                + shape.prefill_tokens * tokens
                + shape.prefill_context_tokens * earlier
                + shape.prefill_attention_pairs * pairs
            )
        else:
            ns += self._by_tokens[seqs]
        return int(ns) or 1


def fit(
    records: Sequence[tuple[StepShape, int]],
    provenance: Mapping[str, str],
    machine: Machine | None = None,
) -> FittedCost:
    """Raises `BadInput` for too few records, or durations that are not above 0."""
    if len(records) < FEWEST_RECORDS:
        raise BadInput(f"{len(records)} steps were recorded; at least {FEWEST_RECORDS} are needed for a fit")
    shortest = min(ns for _, ns in records)
    if not shortest > 0:
        raise BadInput(f"a step is said to have taken {shortest} ns; durations must be above 0")
    shapes = [shape for shape, _ in records]
    names = _features(shapes)
    table = np.array([[_value(name, shape) for name in names] for shape in shapes], dtype=np.float64)
    took_ns = np.array([ns for _, ns in records], dtype=np.float64)
    rates = _robust_rates(table / took_ns[:, None])
    off = np.abs(table @ rates / took_ns - 1.0)
    residual = Residual(len(records), float(np.median(off)), float(np.quantile(off, 0.95)))
    ns = {name: float(rate) for name, rate in zip(names, rates, strict=True) if rate > 0}
    return FittedCost(ns, residual, dict(provenance), machine)


def refuse_unknown_features(names: Sequence[str]) -> None:
    """Raises `BadInput` for a name that no fit makes, as in a file of a later version."""
    for name in names:
        if name not in _LINEAR:
            _parse(name)


def _features(shapes: Sequence[StepShape]) -> list[str]:
    """All that vary, with the knots that have steps on both sides."""
    tokens = [shape.tokens for shape in shapes]
    fewest, most = min(tokens), max(tokens)
    pieces = [f"{kind}{knot}" for knot in _KNOTS if fewest < knot < most for kind in (_UPTO, _OVER)]
    jumps = [f"{_PAST}{knot}" for knot in _JUMPS if fewest <= knot < most]
    return [*_LINEAR, *pieces, *jumps]


def _value(name: str, shape: StepShape) -> int:
    if name in _LINEAR:
        return _LINEAR[name](shape)
    return _piece(*_parse(name), shape.tokens)


def _piece(kind: str, knot: int, tokens: int) -> int:
    if kind == _PAST:
        return int(tokens > knot)
    return min(tokens, knot) if kind == _UPTO else max(0, tokens - knot)


def _parse(name: str) -> tuple[str, int]:
    for kind in (_UPTO, _OVER, _PAST):
        knot = name.removeprefix(kind)
        if knot != name and knot.isdecimal():
            return kind, int(knot)
    raise BadInput(
        f"a cost model has no feature {name!r}",
        f"known are {', '.join(_LINEAR)}, {_UPTO}N, {_OVER}N, {_PAST}N",
    )


def _robust_rates(relative: Floats) -> Floats:
    """Rates that bring each row's sum as near to 1 as they can, without the outliers pulling."""
    weights = np.ones(len(relative))
    rates = np.zeros(relative.shape[1])
    for _ in range(_ROUNDS):
        before = rates
        rates = nnls(relative * weights[:, None], weights)
        off = np.abs(relative @ rates - 1.0)
        spread = 1.4826 * float(np.median(off))
        if spread <= 1e-9 or np.allclose(rates, before, rtol=1e-4, atol=0.0):
            break
        weights = np.sqrt(np.minimum(1.0, _HUBER * spread / np.maximum(off, 1e-12)))
    return rates


def nnls(table: Floats, target: Floats) -> Floats:
    """The non-negative x for which `table @ x` is nearest to `target` (least squares).

    Lawson and Hanson's active set: let in the column that helps most, solve freely for those let in,
    and where that makes one negative, go only as far as the first zero and put it out again. Columns
    are scaled alike first: a step counts one of itself and a billion attention pairs.
    """
    scale = np.linalg.norm(table, axis=0)
    scale[scale == 0.0] = 1.0
    columns = table / scale
    x = np.zeros(columns.shape[1])
    inside = np.zeros(len(x), dtype=bool)
    for _ in range(3 * len(x)):
        gain = np.where(inside, -np.inf, columns.T @ (target - columns @ x))
        best = int(np.argmax(gain))
        if gain[best] <= 1e-10 * float(np.linalg.norm(target)):
            break
        inside[best] = True
        x = _settle(columns, target, x, inside)
    return x / scale


def _settle(columns: Floats, target: Floats, x: Floats, inside: npt.NDArray[np.bool_]) -> Floats:
    """Solve for the columns that are `inside`, putting out (in place) those that would turn negative."""
    while inside.any():
        free = np.zeros(len(x))
        free[inside] = np.linalg.lstsq(columns[:, inside], target, rcond=None)[0]
        negative = inside & (free <= 0.0)
        if not negative.any():
            return free
        step = float(np.min(x[negative] / (x[negative] - free[negative])))
        x = x + step * (free - x)
        inside &= x > 1e-15
        x[~inside] = 0.0
    return np.zeros(len(x))
