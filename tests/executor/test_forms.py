"""The packed form is kept up to the last size, of those timed, at which it is clearly the faster one."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.executor.forms import CLEARLY, FEW_TOKENS, SIZES, few_tokens

ratios = st.lists(st.floats(0.3, 3.0), min_size=len(SIZES), max_size=len(SIZES))


@given(ratios)
def test_it_stops_at_the_first_size_that_is_no_gain(ratios: list[float]) -> None:
    by_size = dict(zip(SIZES, ratios, strict=True))
    timed: list[int] = []

    def packed_s(size: int) -> float:
        timed.append(size)
        return by_size[size]

    limit = few_tokens(packed_s, lambda _: 1.0)

    gains = [size for size in SIZES if all(by_size[each] <= CLEARLY for each in SIZES if each <= size)]
    assert limit == max(gains, default=FEW_TOKENS)
    assert timed == list(SIZES[: len(gains) + 1])  # nothing is timed that cannot matter
