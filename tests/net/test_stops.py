"""Stop strings are found wherever the tokens are cut, and nothing of them is delivered."""

from hypothesis import example, given
from hypothesis import strategies as st

from headrace.net.stops import StopFinder

TEXTS = st.text(alphabet="abé\n", max_size=30)
STOPS = st.lists(st.text(alphabet="abé\n", min_size=1, max_size=4), min_size=1, max_size=4)


def first_stop(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The definition: the stop string that is complete first, the longest of those that are."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            found = max(complete, key=len)
            return text[: end - len(found)], found
    return text, None


def deliver(pieces: list[str], stops: list[str]) -> tuple[list[str], StopFinder]:
    finder = StopFinder(stops)
    delivered: list[str] = []
    for piece in pieces:
        delivered.append(finder.push(piece))
        if finder.found is not None:
            return delivered, finder
    return [*delivered, finder.rest()], finder


@given(st.lists(TEXTS, max_size=8), STOPS)
@example(["aab", "aab"], ["aabaaa", "ab"])
@example(["ab", "a"], ["aba", "ba"])
def test_what_is_delivered_does_not_depend_on_where_the_pieces_are_cut(
    pieces: list[str], stops: list[str]
) -> None:
    delivered, finder = deliver(pieces, stops)
    assert ("".join(delivered), finder.found) == first_stop("".join(pieces), stops)


@given(st.lists(TEXTS, max_size=8), STOPS)
def test_nothing_is_held_back_that_cannot_begin_a_stop_string(pieces: list[str], stops: list[str]) -> None:
    finder = StopFinder(stops)
    pushed = delivered = ""
    for piece in pieces:
        pushed += piece
        delivered += finder.push(piece)
        if finder.found is not None:
            return
        held = pushed[len(delivered) :]
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)


def test_without_a_match_the_held_text_comes_at_the_end() -> None:
    delivered, finder = deliver(["Hello wo", "r"], ["world"])
    assert delivered == ["Hello ", "", "wor"]
    assert finder.found is None
