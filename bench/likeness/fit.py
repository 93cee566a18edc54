"""Fits the weights of `diagnose/likeness.py`, and judges incidents by weights that have not seen them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold

from bench.doctor import Judged, judged, score
from bench.likeness.incidents import Origin, Solved
from headrace.diagnose.doctor import diagnose
from headrace.diagnose.finding import Finding, Label
from headrace.diagnose.likeness import SCALE, Weights, parsed, weighed

SEED = 20261201
FEWEST = 4
"""Incidents that have a trait: of a rarer one nothing can be learned."""
STRENGTH = 20.0
"""Inverse of the regularisation, as scikit-learn's C."""
TRAITS = 4000
"""Those that weigh most: the rest change no judgement, and the table stays readable."""


def fitted(incidents: Sequence[Solved]) -> Weights:
    """Multinomial logistic regression on traits weighed by rarity, twice: on all, and on those that weigh
    most.
    """
    seen = Counter(trait for each in incidents for trait in each.traits)
    names = sorted(trait for trait, count in seen.items() if count >= FEWEST)
    model = _fit(incidents, names, seen)
    heaviest = np.argsort(-np.abs(model.coef_).max(axis=0), kind="stable")[:TRAITS]
    names = sorted(names[place] for place in heaviest)
    model = _fit(incidents, names, seen)
    return Weights(
        tuple(Label(label) for label in model.classes_),
        np.asarray(model.intercept_),
        {name: place for place, name in enumerate(names)},
        _rarity(names, seen, len(incidents)),
        np.asarray(model.coef_).T,
    )


def _rarity(names: Sequence[str], seen: Counter[str], incidents: int) -> np.ndarray:
    """Smoothed inverse document frequency: ln((1 + n) / (1 + n_t)) + 1."""
    return np.array([np.log((1 + incidents) / (1 + seen[name])) + 1 for name in names])


def _fit(incidents: Sequence[Solved], names: Sequence[str], seen: Counter[str]) -> LogisticRegression:
    places = {name: place for place, name in enumerate(names)}
    rarity = _rarity(names, seen, len(incidents))
    values, columns, ends = list[float](), list[int](), [0]
    for each in incidents:
        known = sorted(places[trait] for trait in each.traits if trait in places)
        norm = float(np.linalg.norm(rarity[known])) or 1.0
        values += [float(rarity[place]) / norm for place in known]
        columns += known
        ends.append(len(columns))
    matrix = csr_matrix((values, columns, ends), shape=(len(incidents), len(names)))
    model = LogisticRegression(C=STRENGTH, max_iter=300, tol=1e-3)
    return model.fit(
        matrix,
        [each.labels[0] for each in incidents],
        sample_weight=[each.origin.weight for each in incidents],
    )


def written(weights: Weights) -> str:
    """The table as text, in hundredths; a weight of nothing is left empty."""
    lines = [
        "\t".join(("labels", *weights.labels)),
        "\t".join(("bias", *(str(round(value * SCALE)) for value in weights.bias))),
    ]
    for name, place in sorted(weights.places.items()):
        values = (weights.rarity[place], *weights.rows[place])
        lines.append("\t".join((name, *(str(round(float(v) * SCALE) or "") for v in values))))
    return "\n".join(lines) + "\n"


def cross_validated(incidents: Sequence[Solved], folds: int) -> dict[str, int | float]:
    """What the whole doctor says of each fresh incident, by weights fitted to all but its fold."""
    fresh = [each for each in incidents if each.origin is Origin.FRESH]
    alone = [_judged(each, each.found) for each in fresh]
    return score(list(_by_folds(incidents, fresh, folds))) | {
        "rules_alone_right": sum(each.primary_right for each in alone)
    }


def _by_folds(incidents: Sequence[Solved], fresh: Sequence[Solved], folds: int) -> Iterator[Judged]:
    rest = [each for each in incidents if each.origin is not Origin.FRESH]
    for known, unknown in KFold(folds, shuffle=True, random_state=SEED).split(fresh):
        weights = parsed(written(fitted(rest + [fresh[place] for place in known])).splitlines())
        for place in unknown:
            each = fresh[place]
            yield _judged(each, diagnose(each.evidence, partial(weighed, weights=weights)).findings)


def _judged(each: Solved, found: Sequence[Finding]) -> Judged:
    return judged("", each.labels, each.never, found)
