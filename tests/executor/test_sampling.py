"""What a draw depends on, and how often each token is drawn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from headrace.core.request import SamplingParams
from headrace.executor.sampling import at_least_the_largest, sample, uniform

VOCABULARY = 1000  # not a multiple of the parts in which the largest are looked for
DRAWS = 6000


def logits_of(seed: int, rows: int = 1, scale: float = 3.0) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal((rows, VOCABULARY)) * scale).astype(np.float32)


def exact(row: NDArray[np.float32], params: SamplingParams) -> NDArray[np.float64]:
    """The probabilities by the definition, slowly."""
    order = np.argsort(-row.astype(np.float64), kind="stable")
    kept = order[: params.top_k] if params.top_k else order
    weights = np.exp((row[kept].astype(np.float64) - row.max()) / params.temperature)
    weights *= weights >= params.min_p
    weights /= weights.sum()
    fewest = int(np.searchsorted(weights.cumsum(), params.top_p)) + 1 if params.top_p < 1 else kept.size
    probabilities = np.zeros(row.size)
    probabilities[kept[:fewest]] = weights[:fewest] / weights[:fewest].sum()
    return probabilities


def draws(row: NDArray[np.float32], params: SamplingParams) -> NDArray[np.int64]:
    """Many draws for one request: its stream, output after output."""
    return np.array([sample(row[None].copy(), [params], [index])[0] for index in range(DRAWS)])


@pytest.mark.slow
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(1, temperature=1.0, seed=1),
        SamplingParams(1, temperature=0.5, seed=2),
        SamplingParams(1, temperature=2.0, top_k=40, seed=3),
        SamplingParams(1, temperature=1.0, top_p=0.8, seed=4),
        SamplingParams(1, temperature=1.3, top_k=100, top_p=0.9, seed=-5),
        SamplingParams(1, temperature=1.5, min_p=0.05, top_p=0.95, seed=6),
    ],
)
def test_tokens_come_as_often_as_their_probabilities_say(params: SamplingParams) -> None:
    row = logits_of(7)[0]
    probabilities = exact(row, params)
    counts = np.bincount(draws(row, params), minlength=VOCABULARY)
    assert not counts[probabilities == 0].any(), "a token outside top-k and top-p was drawn"
    order = np.argsort(-probabilities)
    often = [token for token in order if probabilities[token] * DRAWS >= 5]
    seen = np.array([*counts[often], DRAWS - counts[often].sum()], float)
    expected = np.array([*probabilities[often], 1 - probabilities[often].sum()]) * DRAWS
    expected, seen = expected[expected > 1e-6], seen[expected > 1e-6]
    chi_square = ((seen - expected) ** 2 / expected).sum()
    degrees = len(seen) - 1
    assert chi_square < degrees + 4 * (2 * degrees) ** 0.5 + 8, f"chi-square {chi_square:.0f} of {degrees}"


@given(
    st.integers(0, 50),
    st.integers(0, 30),
    st.floats(0.05, 1.0),
    st.floats(0.0, 1.0),
    st.integers(0, 1 << 64),
)
def test_nothing_outside_min_p_top_k_and_top_p_is_drawn(
    table: int, top_k: int, top_p: float, min_p: float, seed: int
) -> None:
    params = SamplingParams(1, temperature=2.0, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    row = logits_of(table)[0]
    order = np.argsort(-row)
    probabilities = exact(row, params)
    allowed = int((probabilities > 0).sum())
    (token,) = sample(row[None].copy(), [params], [3])
    assert token in order[: allowed + 1], "one more may stay in where rounding moves the border"


@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.7, 1.0]), st.sampled_from([1.0, 0.9]), st.integers(0, 9)),
        max_size=9,
    )
)
def test_the_batch_changes_no_draw(neighbours: list[tuple[float, float, int]]) -> None:
    mine = SamplingParams(1, temperature=0.9, top_p=0.95, seed=42)
    params = [SamplingParams(1, temperature=t, top_p=p, seed=s) for t, p, s in neighbours]
    rows = logits_of(1, rows=len(params) + 1)
    (alone,) = sample(rows[-1:].copy(), [mine], [5])
    assert sample(rows.copy(), [*params, mine], [*range(len(params)), 5])[-1] == alone


def test_a_draw_does_not_turn_on_the_arithmetic_of_a_step() -> None:
    """A preempted or differently chunked request sees logits up to 1e-4 apart; 6 of 10 answers parted."""
    size = 49152
    generator = np.random.default_rng(11)
    logits = (generator.standard_normal(size) * 3).astype(np.float32)
    moved = logits + generator.uniform(-1e-4, 1e-4, size).astype(np.float32)
    params = [SamplingParams(1, temperature=1.0, seed=8)]

    parted = sum(
        sample(logits[None].copy(), params, [index]) != sample(moved[None].copy(), params, [index])
        for index in range(400)
    )

    assert parted <= 1


def test_a_stream_is_told_by_seed_and_place_only() -> None:
    assert uniform(3, 5) == uniform(3, 5)
    assert len({uniform(seed, index) for seed in range(-50, 50) for index in range(50)}) == 5000
    assert all(0 <= uniform(seed, 0) < 1 for seed in (-(1 << 70), -1, 0, 1 << 200))


def test_temperature_0_takes_the_likeliest_token_whatever_the_seed() -> None:
    rows = logits_of(3, rows=4)
    params = [SamplingParams(1, temperature=0.0, seed=seed) for seed in range(4)]
    assert sample(rows.copy(), params, [0] * 4) == rows.argmax(axis=-1).tolist()


@pytest.mark.parametrize("temperature", [0.0, 1e-4, 1.0, 1e30, 1e308])
def test_extreme_temperatures_and_logits_still_give_a_token(temperature: float) -> None:
    for row in (
        np.full(VOCABULARY, -np.inf, np.float32),
        np.full(VOCABULARY, np.nan, np.float32),
        np.array([3e38, -3e38] * (VOCABULARY // 2), np.float32),
        np.zeros(VOCABULARY, np.float32),
    ):
        for top_p in (1.0, 0.5, 1e-9):
            params = SamplingParams(1, temperature=temperature, top_p=top_p, top_k=7, seed=1)
            (token,) = sample(row[None].copy(), [params], [0])
            assert 0 <= token < VOCABULARY


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (0, 0.9), (3, 0.9)])
def test_a_forbidden_token_is_not_drawn_however_hot_it_is(top_k: int, top_p: float) -> None:
    for seed in range(20):
        row = logits_of(seed)
        row[0, -1] = -np.inf
        params = SamplingParams(9, temperature=1e308, top_k=top_k, top_p=top_p, seed=seed)
        (token,) = sample(row, [params], [0])
        assert 0 <= token < VOCABULARY - 1


@given(st.integers(0, 99), st.integers(1, VOCABULARY + 5), st.integers(1, 3 * VOCABULARY))
def test_the_largest_are_found_with_all_that_equal_the_least_of_them(
    seed: int, count: int, size: int
) -> None:
    row = np.random.default_rng(seed).integers(-9, 9, size).astype(np.float32)
    row[row < -6] = -np.inf
    least = np.sort(row)[::-1][: min(count, size)][-1]
    assert at_least_the_largest(row, count).tolist() == np.flatnonzero(row >= least).tolist()
