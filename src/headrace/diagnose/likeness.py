"""Which cause incidents like this one had: everything weighed at once, where a rule weighs a few numbers.

    traits of a report + what the rules say of it -> likely -> causes with their probability, likeliest first

Multinomial logistic regression on traits, each weighed by how rare it is (tf-idf). The weights are data
(`data/likeness.tsv`), fitted by `python -m bench.likeness` to incidents that others solved and to textbook
ones; docs/decisions/0019 says why, and what a weighing of words may decide.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from headrace.diagnose.finding import Label

SCALE = 100
"""Of a whole number in the table: hundredths."""
SPEAKERS = 6
"""Traits that are named as reasons."""


@dataclass(frozen=True, slots=True)
class Likely:
    """A cause, the share of such incidents that had it, and the traits that speak most for it. `traits`: how
    many that are known it was weighed by.
    """

    label: Label
    share: float
    reasons: tuple[str, ...]
    traits: int


@dataclass(frozen=True)
class Weights:
    """`rows[i]`: of the i-th trait its rarity, then its weight for each label; `bias`: for each label."""

    labels: tuple[Label, ...]
    bias: NDArray[np.float64]
    places: Mapping[str, int]
    rarity: NDArray[np.float64]
    rows: NDArray[np.float64]


def parsed(lines: Iterable[str]) -> Weights:
    """A table: a line of labels, one of biases, then trait, rarity and weights, all in hundredths."""
    _, *labels = next(found := iter(lines)).rstrip("\n").split("\t")
    _, *bias = next(found).rstrip("\n").split("\t")
    names, numbers = list[str](), list[list[int]]()
    for line in found:
        name, *values = line.rstrip("\n").split("\t")
        names.append(name)
        numbers.append([int(value or 0) for value in values])
    table = np.array(numbers, dtype=np.float64) / SCALE
    return Weights(
        tuple(Label(label) for label in labels),
        np.array([int(value) for value in bias], dtype=np.float64) / SCALE,
        {name: place for place, name in enumerate(names)},
        table[:, 0],
        table[:, 1:],
    )


@cache
def _weights() -> Weights:
    text = files("headrace.diagnose").joinpath("data/likeness.tsv").read_text("utf-8")
    return parsed(text.splitlines())


def likely(traits: Iterable[str]) -> Sequence[Likely]:
    """Every label with its probability, likeliest first."""
    return weighed(traits, _weights())


def weighed(traits: Iterable[str], weights: Weights) -> Sequence[Likely]:
    known = sorted(trait for trait in traits if trait in weights.places)
    places = [weights.places[trait] for trait in known]
    rarity = weights.rarity[places]
    by_trait = weights.rows[places] * (rarity / max(float(np.linalg.norm(rarity)), 1e-9))[:, None]
    scores = weights.bias + by_trait.sum(axis=0)
    shares = np.exp(scores - scores.max())
    shares /= shares.sum()
    return [
        Likely(label, float(shares[place]), _speakers(known, by_trait[:, place]), len(known))
        for place, label in sorted(enumerate(weights.labels), key=lambda pair: -shares[pair[0]])
    ]


def _speakers(known: Sequence[str], parts: NDArray[np.float64]) -> tuple[str, ...]:
    strongest = np.argsort(-parts, kind="stable")[:SPEAKERS]
    return tuple(known[int(place)] for place in strongest if parts[place] > 0)
