"""How long things are: lengths in tokens and pauses in seconds, as a recipe states them.

    128                              always the same
    {uniform: [100, 500]}            every whole number as likely
    {median: 200, p95: 1500}         log-normal, as most lengths are
    {mean: 8s}                       exponential
    {values: {64: 3, 512: 1}}        these, so often

`least` and `most` cut off what is beyond: a draw is moved to the border.
"""

import math
import re
from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.random import RandomState
from numpy.typing import NDArray

from headrace.workload.chance import forever

P95_Z = 1.6448536269514722
"""Of a standard normal, what 95 % are below."""

Number = int | float | str
_TIME = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?")


class Amount(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """One distribution. Numbers, or times such as `8s`."""

    uniform: tuple[Number, Number] | None = None
    median: Number | None = None
    p95: Number | None = None
    mean: Number | None = None
    values: dict[Number, float] | None = None
    least: Number | None = None
    most: Number | None = None

    def kind(self) -> str:
        given = [name for name in ("uniform", "median", "mean", "values") if getattr(self, name) is not None]
        if len(given) != 1 or (self.p95 is not None) != (given == ["median"]):
            raise ValueError("write one of a number, uniform, median with p95, mean, or values")
        return given[0]


def number_of(said: Number) -> float:
    """A number, or a time in seconds. Raises `ValueError`."""
    try:
        number = float(said)
    except OverflowError:
        number = math.inf
    except ValueError:
        return _time_of(str(said))
    if not math.isfinite(number):
        raise ValueError(f"{str(said)[:20]} is no number that anything could be")
    return number


def _time_of(said: str) -> float:
    match = _TIME.fullmatch(said.strip())
    if match is None or not any(match.groups()):
        raise ValueError(f"{said!r} is neither a number nor a time such as 90s, 10m, 250ms or 1h30m")
    hours, minutes, seconds, milliseconds = (float(part or 0) for part in match.groups())
    return 3600 * hours + 60 * minutes + seconds + milliseconds / 1000


def draws(said: Number | Amount, chance: RandomState) -> Iterator[float]:
    """For ever. Raises `ValueError` for what is no distribution."""
    if not isinstance(said, Amount):
        return forever(lambda count: np.full(count, _positive(number_of(said))))
    least, most = _borders(said)
    drawn = {"uniform": _uniform, "median": _log_normal, "mean": _exponential, "values": _listed}[
        said.kind()
    ](said, chance)
    return (min(max(each, least), most) for each in drawn)


def whole_draws(said: Number | Amount, chance: RandomState) -> Iterator[int]:
    """Whole numbers, 1 or more."""
    return (max(1, round(each)) for each in draws(said, chance))


def _uniform(said: Amount, chance: RandomState) -> Iterator[float]:
    assert said.uniform is not None
    low, high = (number_of(border) for border in said.uniform)
    if not 0 <= low <= high:
        raise ValueError(f"uniform from {low:g} to {high:g}: write the smaller first")
    if low == int(low) and high == int(high):
        # As many whole numbers as there are, each as likely.
        return forever(lambda count: np.floor(low + chance.random_sample(count) * (high - low + 1)))
    return forever(lambda count: low + chance.random_sample(count) * (high - low))


def _log_normal(said: Amount, chance: RandomState) -> Iterator[float]:
    assert said.median is not None
    assert said.p95 is not None
    median, p95 = _positive(number_of(said.median)), number_of(said.p95)
    if not p95 >= median:
        raise ValueError(f"p95 is {p95:g}, below the median {median:g}")
    sigma = math.log(p95 / median) / P95_Z
    return forever(lambda count: median * np.exp(sigma * chance.standard_normal(count)))


def _exponential(said: Amount, chance: RandomState) -> Iterator[float]:
    assert said.mean is not None
    mean = _positive(number_of(said.mean))
    return forever(lambda count: mean * chance.standard_exponential(count))


def _listed(said: Amount, chance: RandomState) -> Iterator[float]:
    assert said.values is not None
    values = np.array([_positive(number_of(value)) for value in said.values])
    return (float(values[place]) for place in places(list(said.values.values()), chance))


def places(weights: list[float], chance: RandomState) -> Iterator[int]:
    """Indices, each as often as its weight. Raises `ValueError` for weights that say nothing."""
    if not weights or min(weights) < 0 or not 0 < sum(weights) < math.inf:
        raise ValueError(f"weights of {weights} say nothing: one must be above 0, and none below")
    up_to = np.cumsum(weights) / sum(weights)

    def draw(count: int) -> NDArray[np.float64]:
        return np.searchsorted(up_to, chance.random_sample(count), side="right").astype(np.float64)

    return (min(int(place), len(weights) - 1) for place in forever(draw))


def _borders(said: Amount) -> tuple[float, float]:
    least = 0.0 if said.least is None else number_of(said.least)
    most = math.inf if said.most is None else number_of(said.most)
    if not 0 <= least <= most:
        raise ValueError(f"least is {least:g} and most {most:g}")
    return least, most


def _positive(amount: float) -> float:
    if not amount > 0:
        raise ValueError(f"{amount:g} is not more than 0")
    return amount
