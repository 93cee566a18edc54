"""Draws tokens from logits, whoever they are for (`sampler.py` knows).

    logits (rows, vocabulary) --greedy, or temperature > min-p > top-k > top-p > a race--> token ids

vLLM's order of cuts. Where row i's race begins depends on its seed and on how many tokens its
request has produced, on nothing else: not on its neighbours in the batch, nor on a preemption in
between. There is no generator whose state would have to be kept, saved or replayed.

The race: each token has a time drawn from an exponential distribution, divided by its probability; the
earliest wins, which it does as often as its probability says. Other arithmetic moves a logit by 1e-4 at most
(docs/decisions/0004), and then another token wins only where two were that near. A number looked for in
the running sum of probabilities is no such proof: it moves with all tokens before (docs/log.md). The
times are a stretch of one fixed table, from a place that is drawn: a number for each token of the
vocabulary, step by step, would cost more than all the rest.

Greedy rows are taken together. The others go one by one, each vectorised over its vocabulary: a row of
logits fits into a core's cache and a batch does not, so a batch at once is no faster (docs/log.md).
"""

from collections.abc import Sequence
from functools import cache
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from headrace.core.request import SamplingParams

_GREEDY_BELOW = 1e-5  # vLLM's; a smaller temperature could only overflow
_HOTTEST = (
    1e30  # hotter, and its inverse is 0 in 32 bits: 0 times -inf is no number. All are alike long before
)
_PART = 256  # of the vocabulary: a search finds a part first, then the token in it
_TABLE = 1 << 22  # times to choose a stretch from, 16 MiB: far more than any vocabulary has tokens

Floats = NDArray[np.float32]


def sample(logits: Floats, params: Sequence[SamplingParams], num_outputs: Sequence[int]) -> list[int]:
    """One token a row. `num_outputs[i]` tokens have been drawn for row i's request before."""
    tokens: list[int] = logits.argmax(axis=-1).tolist()
    for row, param in enumerate(params):
        if param.temperature < _GREEDY_BELOW:
            continue
        largest = float(logits[row, tokens[row]])
        if isfinite(largest):  # else nothing can be weighed, and any token is as good
            weights = _weights(logits[row], largest, param)
            tokens[row] = _winner(weights, uniform(param.seed, num_outputs[row]))
    return tokens


def uniform(seed: int, index: int) -> float:
    """The `index`-th number of the stream that `seed` names, in [0, 1): Philox, a counter and a key."""
    bits = np.random.Philox(key=seed % (1 << 128), counter=index).random_raw()
    return (bits >> 11) * 2.0**-53


def at_least_the_largest(row: Floats, count: int) -> NDArray[np.int64]:
    """The places of the `count` largest numbers and of those that equal the least of them; all if fewer.

    The `count`-th largest of the maxima of parts is no more than the `count`-th largest of all, so what
    has to be ordered is a few hundred numbers instead of the vocabulary.
    """
    if count >= row.size:
        return np.arange(row.size)
    maxima = np.maximum.reduceat(row, np.arange(0, row.size, _PART))
    if count > maxima.size:
        return np.flatnonzero(row >= np.partition(row, -count)[-count])
    places = np.flatnonzero(row >= np.partition(maxima, -count)[-count])
    return places[row[places] >= np.partition(row[places], -count)[-count]]


def _weights(logits: Floats, largest: float, param: SamplingParams) -> Floats:
    """Probabilities up to a factor, 0 for what min-p, top-k and then top-p exclude.

    Equals at a border stay in: nothing tells them apart.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        weights = logits - np.float32(largest)
        weights *= np.float32(1.0 / min(param.temperature, _HOTTEST))
        np.exp(weights, out=weights)
    if param.min_p > 0.0:
        weights *= weights >= param.min_p  # the largest weighs 1
    if 0 < param.top_k < weights.size:
        kept = at_least_the_largest(logits, param.top_k)
        likely = weights[kept]
        weights[:] = 0.0
        weights[kept] = likely
    if param.top_p < 1.0:
        weights *= weights >= _least_of_nucleus(weights, param.top_p)
    return weights


def _least_of_nucleus(weights: Floats, top_p: float) -> np.float32:
    """The least weight among the fewest tokens that together hold the share `top_p`."""
    total = float(weights.sum(dtype=np.float64))
    # All tokens below this weight together hold less than 1 - top_p, so none of them is in the
    # nucleus: what has to be sorted is a few hundred numbers instead of the vocabulary.
    likely = np.sort(weights[weights >= (1.0 - top_p) * total / weights.size])[::-1]
    held = likely.cumsum(dtype=np.float64)
    return likely[min(int(held.searchsorted(top_p * total)), likely.size - 1)]


def _winner(weights: Floats, number: float) -> int:
    """The token that wins the race which begins at the share `number` of the table."""
    table = _speeds()
    begin = int(number * (table.size - weights.size))
    return int((weights * table[begin : begin + weights.size]).argmax())


@cache
def _speeds() -> Floats:
    """One over times from the exponential distribution of mean 1."""
    times = np.random.Generator(np.random.Philox(key=0)).standard_exponential(_TABLE, dtype=np.float32)
    speeds: Floats = np.reciprocal(np.maximum(times, np.float32(2.0**-64)))
    speeds.flags.writeable = False
    return speeds
