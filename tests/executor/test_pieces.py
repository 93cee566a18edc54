"""Tokens become text without the library only where it would give the same text."""

from collections.abc import Callable

import pytest

from headrace.executor.pieces import Decode, pieces_of
from headrace.executor.tokenizer import OpenVinoTokenizer

WORDS = {token: f" {token}".encode() for token in range(100, 200)}
HALVES = {200: "é".encode()[:1], 201: "é".encode()[1:]}
ENDS = {202: b"<|end|>"}
VOCABULARY = WORDS | HALVES | ENDS


def library(changes: Callable[[str], str] = str, special: frozenset[int] = frozenset(ENDS)) -> Decode:
    """One that puts bytes in a row, then does something else besides."""

    def text(token_ids: list[int], skips: bool) -> str:
        shown = [VOCABULARY[token] for token in token_ids if not (skips and token in special)]
        return changes(b"".join(shown).decode("utf-8", "replace"))

    def decode(texts: list[list[int]], skips: bool) -> list[str]:
        assert len({len(token_ids) for token_ids in texts}) == 1, "OpenVINO fills shorter ones up"
        return [text(token_ids, skips) for token_ids in texts]

    return decode


def test_a_vocabulary_of_bytes_needs_no_library() -> None:
    pieces = pieces_of(VOCABULARY, ENDS, library())
    assert pieces is not None
    assert pieces.text([100, 200, 201, 202], skip_special_tokens=True) == " 100é"
    assert pieces.text([100, 200, 201, 202], skip_special_tokens=False) == " 100é<|end|>"
    assert pieces.text([200, 100, 7, -1], skip_special_tokens=True) == "\ufffd 100"


@pytest.mark.parametrize(
    "other",
    [
        library(lambda text: text.removeprefix(" ")),
        library(lambda text: text.replace(" 137", "137")),
        library(special=frozenset({137, *ENDS})),
        library(special=frozenset()),
    ],
    ids=["drops the first space", "cleans one token up", "hides one more", "hides none"],
)
def test_a_library_that_does_anything_else_is_asked(other: Decode) -> None:
    assert pieces_of(VOCABULARY, ENDS, other) is None


@pytest.mark.slow
@pytest.mark.model
def test_the_built_in_model_needs_no_library(tokenizer: OpenVinoTokenizer) -> None:
    assert tokenizer._pieces is not None
