"""Texts whose token counts and shared beginnings are exact for the tokenizer that is served.

    TraceRequest, its number --ExactTexts.prompt--> a user's message

Rendered by the model's chat template and encoded, the message is a prompt of exactly `prompt_tokens`
tokens, and two prompts have the same tokens under the prefix ids they share, from the very first.

A text is a row of words that the tokenizer keeps apart: one token each, whatever word comes before. That
is found out once, for every pair of them; each text is encoded again before it is given, so a
tokenizer that would make another number of tokens of it is an error and never a wrong number.

    block         |      0      |      1      |   2
    tokens        <head> w w w w w w w w w w w w w <tail>
    drawn from     ids[0]        ids[1]        the request's own number, beyond its ids
"""

from collections.abc import Callable, Sequence
from hashlib import shake_128
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import BadInput
from headrace.core.ports import Chat, ChatMessage, Tokenizer
from headrace.workload.trace import TraceRequest
from headrace.workload.words import WORDS

MOST_ATOMS = 128
FEWEST_ATOMS = 16
TRIES = 8
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
Encode = Callable[[str], list[int]]


class ExactTexts:
    """Texts of one seed for one tokenizer. The same request and number always get the same text."""

    def __init__(self, encode: Encode, seed: int, whose: str) -> None:
        """`encode` makes the tokens of a prompt from a message; `whose` is for complaints."""
        self._encode = encode
        self._seed = seed
        self._whose = whose
        self._openers, self._atoms = _find_atoms(encode, whose)
        first, second = encode(self._openers[0]), encode(self._openers[1])
        self._head = next(
            place for place, pair in enumerate(zip(first, second, strict=True)) if pair[0] != pair[1]
        )
        self._tail = len(first) - self._head - 1

    @classmethod
    def of_chat(cls, tokenizer: Tokenizer, seed: int) -> "ExactTexts":
        """For a message that is a chat's only one."""

        def encode(message: str) -> list[int]:
            chat = Chat((ChatMessage("user", message),))
            return tokenizer.encode(tokenizer.apply_chat_template(chat))

        return cls(encode, seed, "the model's tokenizer with its chat template")

    @property
    def least_tokens(self) -> int:
        """Of a prompt: what is around a message, and one word."""
        return self._head + 1 + self._tail

    def prompt(self, request: TraceRequest, number: int) -> str:
        """Raises `BadInput` for fewer than `least_tokens`, or where the tokenizer joins words after all."""
        if request.prompt_tokens < self.least_tokens:
            raise BadInput(
                f"request {number + 1} has {request.prompt_tokens} prompt tokens; {self._whose} makes at "
                f"least {self.least_tokens} of any message",
                "leave short prompts out, or send them to a server without a chat template",
            )
        for attempt in range(TRIES):
            text = self._text(request, f"own/{number}/{attempt}")
            if len(self._encode(text)) == request.prompt_tokens and self._shares(request, text):
                return text
        raise BadInput(
            f"{self._whose} joins words: no text of exactly {request.prompt_tokens} tokens in {TRIES} tries",
            "another model's tokenizer may do; please report this one",
        )

    def _text(self, request: TraceRequest, own: str) -> str:
        words = request.prompt_tokens - self._tail - self._head
        drawn = self._draw(request, own, self._head, self._head + words)
        opener = self._openers[int(drawn[0]) % len(self._openers)]
        return opener + "".join(self._atoms[int(place) % len(self._atoms)] for place in drawn[1:])

    def _shares(self, request: TraceRequest, text: str) -> bool:
        """Whether the tokens under the request's ids are the same as in every other text under them.

        A text that ends with them has the same tokens exactly if what follows joins nothing before.
        """
        shared = min(
            len(request.prefix_ids) * request.prefix_block_tokens, request.prompt_tokens - self._tail
        )
        words = shared - self._head
        if words < 1:
            return True
        alone = self._text_of_first(text, words)
        return self._encode(alone)[:shared] == self._encode(text)[:shared]

    def _text_of_first(self, text: str, words: int) -> str:
        if self._atoms[0].startswith(" "):
            return " ".join(text.split(" ", words)[:words])
        return text[:words]

    def _draw(self, request: TraceRequest, own: str, start: int, end: int) -> NDArray[np.uint16]:
        """Numbers for the tokens from `start` to `end`, by the blocks that they lie in."""
        size = request.prefix_block_tokens
        named = len(request.prefix_ids) * size
        parts: list[NDArray[np.uint16]] = []
        for block, prefix_id in enumerate(request.prefix_ids[: -(-end // size)] if size else ()):
            first, last = max(start, block * size), min(end, (block + 1) * size)
            if first < last:
                parts.append(
                    self._numbers(f"id/{prefix_id}", size)[first - block * size : last - block * size]
                )
        if named < end:
            parts.append(self._numbers(own, end)[max(start, named) : end])
        return np.concatenate(parts)

    def _numbers(self, path: str, count: int) -> NDArray[np.uint16]:
        return np.frombuffer(shake_128(f"{self._seed}/{path}".encode()).digest(2 * count), dtype="<u2")


def _find_atoms(encode: Encode, whose: str) -> tuple[Sequence[str], Sequence[str]]:
    """Words that begin a message, and words that go on: one token each, next to any other of them."""
    for candidates, space in ((WORDS, " "), (_LETTERS, "")):
        openers = _of_one_length(encode, candidates)
        if len(openers) < FEWEST_ATOMS:
            continue
        start = openers[0]
        alone = len(encode(start))
        atoms = [space + word for word in candidates if len(encode(start + space + word)) == alone + 1]
        atoms = _kept_apart(encode, start, atoms[:MOST_ATOMS])
        if len(atoms) >= FEWEST_ATOMS:
            return _openers_for(encode, openers[:MOST_ATOMS], atoms), atoms
    raise BadInput(
        f"{whose} has too few words of one token each, so no text can have an exact number of tokens"
    )


def _of_one_length(encode: Encode, candidates: Sequence[str]) -> list[str]:
    """Those that make the shortest prompts: one token, if any is."""
    lengths = {word: len(encode(word)) for word in candidates}
    shortest = min(lengths.values())
    return [word for word, length in lengths.items() if length == shortest]


def _kept_apart(encode: Encode, start: str, atoms: list[str]) -> list[str]:
    """The atoms without those that join another, next to it in either order."""
    bare = len(encode(start))
    while atoms:
        every_pair = [*(a + b + a for a, b in combinations(atoms, 2)), *(a + a for a in atoms)]
        if len(encode(start + "".join(every_pair))) == bare + 3 * len(every_pair) - len(atoms):
            return atoms
        joined = {b for a, b in combinations(atoms, 2) if len(encode(start + a + b + a)) != bare + 3} | {
            a for a in atoms if len(encode(start + a + a)) != bare + 2
        }
        # Joins that only longer rows show: halve until none is left.
        atoms = [atom for atom in atoms if atom not in joined] if joined else atoms[: len(atoms) // 2]
    return atoms


def _openers_for(encode: Encode, openers: list[str], atoms: list[str]) -> list[str]:
    bare = len(encode(openers[0]))
    row = "".join(atoms)
    return [word for word in openers if len(encode(word + row)) == bare + len(atoms)]
