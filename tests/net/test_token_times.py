from hypothesis import given
from hypothesis import strategies as st

from headrace.net.token_times import Piece, token_times

streams = st.lists(st.integers(0, 9), max_size=12).map(
    lambda chars: [Piece(float(at), count) for at, count in enumerate(chars)]
)


@given(streams, st.integers(0, 60))
def test_there_are_as_many_instants_as_the_server_counted_tokens(pieces: list[Piece], tokens: int) -> None:
    texts = sum(piece.chars > 0 for piece in pieces)

    times = token_times(pieces, tokens)

    assert len(times) == (max(texts, tokens) if pieces else 0)
    assert list(times) == sorted(times)
    assert set(times) <= {piece.at for piece in pieces}


@given(streams, st.none() | st.integers(0, 60))
def test_every_event_with_text_is_a_token_whatever_the_usage_says(
    pieces: list[Piece], tokens: int | None
) -> None:
    assert {piece.at for piece in pieces if piece.chars > 0} <= set(token_times(pieces, tokens))


def test_without_a_usage_only_events_with_text_count() -> None:
    assert token_times([Piece(1, 0), Piece(2, 3), Piece(3, 0), Piece(4, 1)], None) == (2, 4)


def test_a_token_that_shows_no_text_yet_is_timed_when_its_event_came() -> None:
    assert token_times([Piece(1, 0), Piece(2, 3), Piece(3, 0)], 2) == (1, 2)


def test_tokens_that_came_in_company_share_the_instant_of_their_event() -> None:
    assert token_times([Piece(1, 2), Piece(2, 6)], 4) == (1, 2, 2, 2)
