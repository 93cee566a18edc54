import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.bill import CAUSES, Cause
from headrace.report.bill import BAR_CHARS, WORDS, bar, bill_rows

bills = st.dictionaries(st.sampled_from(CAUSES), st.floats(0, 1e6))


def test_every_cause_has_words_that_fit_into_the_table() -> None:
    assert set(WORDS) == set(CAUSES)
    assert all(len(words.what) <= 27 and len(words.budget) <= 28 for words in WORDS.values())


@given(bills)
def test_the_rows_are_the_bill_largest_first(bill_s: dict[Cause, float]) -> None:
    rows = bill_rows(bill_s)

    assert {row.cause: row.seconds for row in rows} == {c: s for c, s in bill_s.items() if s > 0}
    assert [row.seconds for row in rows] == sorted((row.seconds for row in rows), reverse=True)
    if rows:
        assert sum(row.share for row in rows) == pytest.approx(1)


@given(st.floats(-1, 2))
def test_a_bar_is_never_longer_than_its_place(share: float) -> None:
    assert len(bar(share)) <= BAR_CHARS


def test_a_bar_grows_by_eighths() -> None:
    assert [bar(share) for share in (0, 1 / 64, 1 / 8, 9 / 64, 1)] == ["", "▏", "█", "█▏", "█" * 8]
