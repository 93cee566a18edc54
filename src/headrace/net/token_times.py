"""When each output token came, from the events of a stream and what the server says it generated.

    [Piece(at, chars), ...], completion_tokens -> token_times -> (at, at, ...)

An event is not a token. Some events carry none (the first one may only announce the role, a proxy
may send empty ones to keep a connection open), some carry a token that shows no text yet (half a
character), some carry several (speculative decoding, a server that batches its writes). Only the
usage at the end knows the count, so the two are reconciled:

  1. every event with text is at least one token, whatever the usage says;
  2. where the usage counts more, events without text are taken as tokens, the earliest first;
  3. where it counts still more, the rest came in company: each is put to an event, events with
     more text getting more, and shares its instant. First token, last token and TPOT are then
     exact, ITL as good as what can be seen;
  4. without a usage only events with text count.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple


class Piece(NamedTuple):
    """One event of a stream that may have carried tokens."""

    at: float
    chars: int
    """Of text; 0 when the event showed none."""


def token_times(pieces: Sequence[Piece], completion_tokens: int | None) -> tuple[float, ...]:
    """One instant a token, in order. Empty when nothing that could be a token came."""
    num_texts = sum(piece.chars > 0 for piece in pieces)
    silent_left = max(0, (completion_tokens or 0) - num_texts)
    tokens = list[Piece]()
    for piece in pieces:
        if piece.chars > 0:
            tokens.append(piece)
        elif silent_left > 0:
            silent_left -= 1
            tokens.append(piece)
    if not tokens:
        return ()
    extra = _shares(max(0, (completion_tokens or 0) - len(tokens)), [piece.chars for piece in tokens])
    return tuple(piece.at for piece, more in zip(tokens, extra, strict=True) for _ in range(1 + more))


def _shares(amount: int, weights: Sequence[int]) -> list[int]:
    """Whole numbers that sum to `amount`, in proportion to `weights` (evenly, if all are 0)."""
    reached = list(accumulate(weights if any(weights) else [1] * len(weights)))
    bounds = [0, *(amount * so_far // reached[-1] for so_far in reached)]
    return [after - before for before, after in pairwise(bounds)]
