"""Texts of about so many tokens, for a tokenizer that nobody knows: a word is about a token.

    TraceRequest, its number --WordTexts.text--> a user's message

A block of a prompt that the trace names by an id becomes the same words wherever that id stands, so a prefix
cache finds what it found when the trace was taken, to a block. What has no id is words of its own.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache

from numpy.random import RandomState

from headrace.workload.chance import stream
from headrace.workload.trace import TraceRequest
from headrace.workload.words import WORDS


class WordTexts:
    """Texts of one seed."""

    least_tokens = 1

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def texts(self, requests: Sequence[TraceRequest]) -> Iterator[str]:
        return (self.text(request, number) for number, request in enumerate(requests))

    def text(self, request: TraceRequest, number: int) -> str:
        shared: list[str] = []
        for prefix_id in request.prefix_ids:
            if len(shared) >= request.prompt_tokens:
                break
            shared += _block(self._seed, prefix_id, request.prefix_block_tokens)
        own = max(0, request.prompt_tokens - len(shared))
        return " ".join([*shared[: request.prompt_tokens], *_words(stream(self._seed, "own", number), own)])


@lru_cache(maxsize=4096)
def _block(seed: int, prefix_id: int, words: int) -> list[str]:
    return _words(stream(seed, "id", prefix_id), words)


def _words(chance: RandomState, count: int) -> list[str]:
    return [WORDS[int(place)] for place in chance.random_sample(count) * len(WORDS)]
