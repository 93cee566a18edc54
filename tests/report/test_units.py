import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.report.units import seconds


@pytest.mark.parametrize(
    ("amount_s", "text"),
    [
        (0, "0 ms"),
        (0.000414, "0.41 ms"),
        (0.00949, "9.49 ms"),
        (0.0312, "31.2 ms"),
        (0.3124, "312 ms"),
        (0.9994, "999 ms"),
        (0.9999, "1.00 s"),
        (3.5249, "3.52 s"),
        (9.999, "10.0 s"),
        (99.99, "100 s"),
        (1234.5, "1234 s"),
    ],
)
def test_a_duration_shows_three_digits_and_the_unit_that_suits_it(amount_s: float, text: str) -> None:
    assert seconds(amount_s) == text


@given(st.floats(0, 86_400))
def test_a_duration_fits_its_column(amount_s: float) -> None:
    assert len(seconds(amount_s)) <= 7
