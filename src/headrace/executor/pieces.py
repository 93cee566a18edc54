"""Text of tokens without the library, where it is nothing but their bytes in a row.

    each token's bytes, the library's decode --pieces_of--> Pieces, or None where its text is more than that

OpenVINO runs a graph for every text, which takes some 200 µs however short it is; of a vocabulary of bytes
(GPT-2's kind) all that it does is to put them in a row. Other kinds keep to the library: SentencePiece
drops a text's first space, and some tokenizers clean up before punctuation. Which kind one is is not read
from its files but tried, on all its tokens.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

TRIED_TOGETHER = 32
"""Tokens in a text that is tried."""

Decode = Callable[[list[list[int]], bool], list[str]]
"""Texts of lists of tokens, with or without (True) special ones."""


class Pieces:
    """What each token adds to a text, in bytes."""

    def __init__(self, token_bytes: Mapping[int, bytes], special: Collection[int]) -> None:
        self._all = token_bytes
        self._visible = {token: piece for token, piece in token_bytes.items() if token not in special}

    def text(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """What is no UTF-8 shows as U+FFFD, as many as the Unicode standard recommends (and vLLM shows)."""
        pieces = self._visible if skip_special_tokens else self._all
        return b"".join([pieces.get(token, b"") for token in token_ids]).decode("utf-8", "replace")


def pieces_of(token_bytes: Mapping[int, bytes], special: Collection[int], decode: Decode) -> Pieces | None:
    """None if the library has another text for any row of tokens: every token is in one, in no order.

    Half characters are left out, of which the library shows other U+FFFD in rare cases.
    """
    pieces = Pieces(token_bytes, special)
    whole = [token for token, piece in token_bytes.items() if _is_text(piece)]
    step = -(-len(whole) // TRIED_TOGETHER)  # apart: neighbours in the vocabulary are alike
    rows = [
        [
            whole[(start + place * step) % len(whole)] for place in range(TRIED_TOGETHER)
        ]  # the library fills up
        for start in range(step)
    ]
    for skips in (False, True):
        if decode(rows, skips) != [pieces.text(row, skip_special_tokens=skips) for row in rows]:
            return None
    return pieces


def _is_text(piece: bytes) -> bool:
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True
