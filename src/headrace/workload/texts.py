"""Texts whose token counts and shared beginnings are exact for the tokenizer that is served.

    TraceRequest, its number --ExactTexts.texts--> a user's message

Rendered by the model's chat template and encoded, the message is a prompt of exactly `prompt_tokens`
tokens, and two prompts have the same tokens under the prefix ids they share, from the very first.

A text is a row of words that the tokenizer keeps apart (vocabulary.py), so its tokens are known before it is
encoded. It is encoded nevertheless before it is given: a tokenizer that makes others of it is an error and
never a wrong number.

    block         |      0      |      1      |   2
    tokens        <head> w w w w w w w w w w w w w <tail>
    drawn from     ids[0]        ids[1]        the request's own number, beyond its ids
"""

from collections.abc import Iterator, Sequence
from hashlib import shake_128

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import BadInput
from headrace.workload.trace import TraceRequest
from headrace.workload.vocabulary import Vocabulary

TRIES = 8
BATCH = 64
"""Texts encoded at a time."""


class ExactTexts:
    """Texts of one seed for one tokenizer. The same request and number always get the same text."""

    def __init__(self, vocabulary: Vocabulary, seed: int) -> None:
        self._vocabulary = vocabulary
        self._seed = seed

    @property
    def least_tokens(self) -> int:
        """Of a prompt: what is around a message, and one word."""
        return self._vocabulary.least_tokens

    def texts(self, requests: Sequence[TraceRequest]) -> Iterator[str]:
        """Of requests numbered from 0. Raises `BadInput` as `text` does, or where words join after all."""
        for first in range(0, len(requests), BATCH):
            yield from self._checked(requests[first : first + BATCH], first)

    def text(self, request: TraceRequest, number: int) -> str:
        """One text, not encoded for proof. Raises `BadInput` for fewer than `least_tokens`."""
        return self._written(self._places(request, number, 0))

    def _checked(self, requests: Sequence[TraceRequest], first: int) -> list[str]:
        made = [""] * len(requests)
        wrong = list(range(len(requests)))
        for attempt in range(TRIES):
            places = [self._places(requests[each], first + each, attempt) for each in wrong]
            texts = [self._written(each) for each in places]
            still = list[int]()
            encoded = self._vocabulary.encode(texts)
            for each, text, drawn, tokens in zip(wrong, texts, places, encoded, strict=True):
                made[each] = text
                if list(tokens) != self._tokens(drawn):
                    still.append(each)
            wrong = still
            if not wrong:
                return made
        raise BadInput(
            f"{self._vocabulary.whose} joins words: no text of exactly "
            f"{requests[wrong[0]].prompt_tokens} tokens in {TRIES} tries",
            "--tokenizer none makes texts of about so many; please report this tokenizer",
        )

    def _written(self, places: list[int]) -> str:
        opener, *atoms = places
        words = self._vocabulary
        return words.openers[opener] + "".join([words.atoms[atom] for atom in atoms])

    def _tokens(self, places: list[int]) -> list[int]:
        """What the prompt must be encoded as."""
        opener, *atoms = places
        words = self._vocabulary
        ids = words.atom_ids
        return [*words.head, words.opener_ids[opener], *(ids[atom] for atom in atoms), *words.tail]

    def _places(self, request: TraceRequest, number: int, attempt: int) -> list[int]:
        """Of its opener among the openers, and of its atoms among the atoms."""
        if request.prompt_tokens < self.least_tokens:
            raise BadInput(
                f"request {number + 1} has {request.prompt_tokens} prompt tokens; {self._vocabulary.whose} "
                f"makes at least {self.least_tokens} of any message",
                "leave short prompts out, or send them to a server without a chat template",
            )
        start, end = len(self._vocabulary.head), request.prompt_tokens - len(self._vocabulary.tail)
        drawn = self._draw(request, f"own/{number}/{attempt}", start, end)
        opener = int(drawn[0]) % len(self._vocabulary.openers)
        return [opener, *(drawn[1:] % len(self._vocabulary.atoms)).tolist()]

    def _draw(self, request: TraceRequest, own: str, start: int, end: int) -> NDArray[np.uint16]:
        """Numbers for the tokens from `start` to `end`, by the blocks that they lie in."""
        size = request.prefix_block_tokens
        named = len(request.prefix_ids) * size
        parts: list[NDArray[np.uint16]] = []
        for block, prefix_id in enumerate(request.prefix_ids[: -(-end // size)] if size else ()):
            first, last = max(start, block * size), min(end, (block + 1) * size)
            if first < last:
                numbers = self._numbers(f"id/{prefix_id}", size)
                parts.append(numbers[first - block * size : last - block * size])
        if named < end:
            parts.append(self._numbers(own, end)[max(start, named) : end])
        return np.concatenate(parts)

    def _numbers(self, path: str, count: int) -> NDArray[np.uint16]:
        return np.frombuffer(shake_128(f"{self._seed}/{path}".encode()).digest(2 * count), dtype="<u2")
