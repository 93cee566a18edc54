"""Whether two workloads differ beyond chance: the few tests that this needs, by their formulas.

Each gives the probability of at least this difference if there were none. What depends on one another,
as the turns of a session, counts as one (a cluster): taken for independent, two drawings of one recipe
would differ "beyond chance". (SciPy has the tests too, without clusters, and weighs 35 MB.)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FEWEST = 10
"""With fewer requests on a side nothing is said."""
BINS = 50
_TERMS = 101


@dataclass(frozen=True, slots=True)
class Sample:
    """One number a request, and who depends on whom."""

    values: NDArray[np.float64]
    clusters: NDArray[np.int64]
    """Equal for requests that depend on one another, from 0 without gaps."""

    @property
    def effective_size(self) -> float:
        """So many independent requests would know the mean as well (Kish's design effect), at most all."""
        alone, clustered = (
            _ratio(Ratio(self.values, np.ones_like(self.values), clusters))[1]
            for clusters in (np.arange(len(self.values)), self.clusters)
        )
        return len(self.values) * min(1.0, alone / clustered) if clustered else float(len(self.values))


def kolmogorov_smirnov(a: Sample, b: Sample) -> float | None:
    """Of two samples' distributions. Ties make the result larger than it is, never smaller.

    Q(l) = 2 sum (-1)^(j-1) exp(-2 j^2 l^2), l = (sqrt(n) + 0.12 + 0.11 / sqrt(n)) D, n = ab / (a + b):
    Stephens 1970, as in Press et al., Numerical Recipes, 14.3.
    """
    if min(len(a.values), len(b.values)) < FEWEST:
        return None
    distance = ks_distance(a.values, b.values)
    size_a, size_b = a.effective_size, b.effective_size
    root = math.sqrt(size_a * size_b / (size_a + size_b))
    scaled = (root + 0.12 + 0.11 / root) * distance
    if scaled < 0.2:  # the series converges slowly there, and is 1 to six digits
        return 1.0
    terms = (2 * (-1) ** (j - 1) * math.exp(-2 * (j * scaled) ** 2) for j in range(1, _TERMS))
    return min(1.0, max(0.0, sum(terms)))


def ks_distance(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """The largest gap between the two cumulative distributions."""
    a, b = np.sort(a), np.sort(b)
    values = np.unique(np.concatenate((a, b)))
    below_a = np.searchsorted(a, values, side="right") / len(a)
    below_b = np.searchsorted(b, values, side="right") / len(b)
    return float(np.abs(below_a - below_b).max())


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of two sums over the requests."""

    above: NDArray[np.float64]
    below: NDArray[np.float64]
    clusters: NDArray[np.int64]


def ratio_difference(a: Ratio, b: Ratio) -> float | None:
    """Of two ratios of sums, by linearised variances over clusters (Cochran 1977, 6.3) and the normal law."""
    if min(len(a.above), len(b.above)) < FEWEST:
        return None
    (ratio_a, variance_a), (ratio_b, variance_b) = _ratio(a), _ratio(b)
    return _two_sided(ratio_a - ratio_b, variance_a + variance_b)


def _ratio(of: Ratio) -> tuple[float, float]:
    below = float(of.below.sum())
    ratio = float(of.above.sum()) / below
    left = np.bincount(of.clusters, weights=of.above - ratio * of.below)
    return ratio, float((left * left).sum()) / below**2


def rate_difference(a_ns: NDArray[np.int64], b_ns: NDArray[np.int64]) -> float | None:
    """Of two rates of arrival, each as uncertain as its own bursts make it.

    The variance of a rate is its dispersion times rate / duration (Cox and Lewis 1966); the dispersion
    is that of the counts in fiftieths of the workload, and at least Poisson's.
    """
    if min(len(a_ns), len(b_ns)) < FEWEST or a_ns[-1] == a_ns[0] or b_ns[-1] == b_ns[0]:
        return None
    (rate_a, variance_a), (rate_b, variance_b) = _rate(a_ns), _rate(b_ns)
    return _two_sided(rate_a - rate_b, variance_a + variance_b)


def _rate(at_ns: NDArray[np.int64]) -> tuple[float, float]:
    duration_ns = int(at_ns[-1] - at_ns[0])
    counts = np.bincount((at_ns - at_ns[0]) * BINS // (duration_ns + 1), minlength=BINS)
    rate = (len(at_ns) - 1) / (duration_ns / 1e9)
    dispersion = max(1.0, float(counts.var(ddof=1) / counts.mean()))
    return rate, dispersion * rate / (duration_ns / 1e9)


def _two_sided(difference: float, variance: float) -> float:
    if variance <= 0:
        return 1.0 if difference == 0 else 0.0
    return math.erfc(abs(difference) / math.sqrt(2 * variance))


def holm(probabilities: Sequence[float]) -> list[float]:
    """For several tests at once, so that one in many is not taken for a finding (Holm 1979)."""
    order = sorted(range(len(probabilities)), key=lambda place: probabilities[place])
    adjusted = [0.0] * len(probabilities)
    highest = 0.0
    for rank, place in enumerate(order):
        highest = max(highest, min(1.0, probabilities[place] * (len(order) - rank)))
        adjusted[place] = highest
    return adjusted
