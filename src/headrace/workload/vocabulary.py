"""Words that a tokenizer keeps apart, and what it puts around a message: what exact texts are made of.

    encode: messages -> the tokens of each as a whole prompt --find_vocabulary--> Vocabulary

    tokens of a prompt      <head> opener atom atom … atom <tail>

Every opener and every atom is one token, whatever atom comes before it. That is found out once, for every
pair of them. The tokenizer may be far away, so it is asked many things at a time.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from headrace.core.errors import BadInput
from headrace.core.ports import Chat, ChatMessage, Tokenizer
from headrace.workload.words import WORDS

CANDIDATES = 192
"""Of the words: each costs two questions."""
MOST_ATOMS = 64
FEWEST_ATOMS = 16
ROW_ATOMS = 256
"""Of one question about pairs: longer ones might not fit a small model's context."""
_LETTERS = "abcdefghijklmnopqrstuvwxyz"

Encode = Callable[[Sequence[str]], Sequence[Sequence[int]]]
"""Messages, each the only one of a chat, to the tokens of their prompts."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Of one tokenizer with its chat template."""

    encode: Encode
    whose: str
    """For complaints."""
    head: tuple[int, ...]
    """Tokens before any message, the same for all."""
    tail: tuple[int, ...]
    openers: tuple[str, ...]
    opener_ids: tuple[int, ...]
    atoms: tuple[str, ...]
    atom_ids: tuple[int, ...]

    @property
    def least_tokens(self) -> int:
        """Of a prompt: what is around a message, and one word."""
        return len(self.head) + 1 + len(self.tail)


def of_tokenizer(tokenizer: Tokenizer) -> Vocabulary:
    """Of one in this process. Raises as `find_vocabulary` does."""

    def encode(messages: Sequence[str]) -> list[list[int]]:
        chats = (Chat((ChatMessage("user", message),)) for message in messages)
        return [tokenizer.encode(tokenizer.apply_chat_template(chat)) for chat in chats]

    return find_vocabulary(encode, "the model's tokenizer with its chat template")


def find_vocabulary(encode: Encode, whose: str) -> Vocabulary:
    """Raises `BadInput` for a tokenizer that has too few words of one token."""
    for candidates, space in ((WORDS[:CANDIDATES], " "), (_LETTERS, "")):
        openers = _of_one_length(encode, candidates)
        if len(openers) < FEWEST_ATOMS:
            continue
        start, alone = openers[0], len(_one(encode, openers[0]))
        lengths = map(len, encode([start + space + word for word in candidates]))
        atoms = [
            space + word for word, length in zip(candidates, lengths, strict=True) if length == alone + 1
        ]
        atoms = _kept_apart(encode, start, atoms[:MOST_ATOMS])
        if len(atoms) >= FEWEST_ATOMS:
            return _vocabulary(encode, whose, openers, atoms)
    raise BadInput(
        f"{whose} has too few words of one token each, so no text can have an exact number of tokens"
    )


def _vocabulary(encode: Encode, whose: str, openers: list[str], atoms: list[str]) -> Vocabulary:
    alone = encode(openers[:MOST_ATOMS])
    head = next(
        place for place, pair in enumerate(zip(alone[0], alone[1], strict=True)) if pair[0] != pair[1]
    )
    tail = len(alone[0]) - head - 1
    row = _one(encode, openers[0] + "".join(atoms))
    return Vocabulary(
        encode,
        whose,
        head=tuple(row[:head]),
        tail=tuple(row[len(row) - tail :]),
        openers=tuple(openers[:MOST_ATOMS]),
        opener_ids=tuple(tokens[head] for tokens in alone),
        atoms=tuple(atoms),
        atom_ids=tuple(row[head + 1 : len(row) - tail]),
    )


def _of_one_length(encode: Encode, candidates: Sequence[str]) -> list[str]:
    """Those that make the shortest prompts: one token, if any is."""
    lengths = [len(tokens) for tokens in encode(candidates)]
    return [word for word, length in zip(candidates, lengths, strict=True) if length == min(lengths)]


def _kept_apart(encode: Encode, start: str, atoms: list[str]) -> list[str]:
    """The atoms without those that join another, next to it in either order."""
    bare = len(_one(encode, start))
    while atoms:
        rows = list(_rows(atoms))
        lengths = [len(tokens) - bare for tokens in encode([start + "".join(row) for row in rows])]
        wrong = [row for row, length in zip(rows, lengths, strict=True) if length != len(row)]
        if not wrong:
            return atoms
        joined = _joined(encode, start, sorted({pair for row in wrong for pair in pairwise(row)}))
        # Joins that only longer rows show: halve until none is left.
        atoms = [atom for atom in atoms if atom not in joined] if joined else atoms[: len(atoms) // 2]
    return atoms


def _joined(encode: Encode, start: str, pairs: list[tuple[str, str]]) -> set[str]:
    """The second of each pair that is not two tokens."""
    bare = len(_one(encode, start))
    lengths = map(len, encode([start + a + b for a, b in pairs]))
    return {b for (_, b), length in zip(pairs, lengths, strict=True) if length != bare + 2}


def _rows(atoms: list[str]) -> Iterator[list[str]]:
    """Every atom beside every other, in both orders, and beside itself."""
    every = [atom for a, b in combinations(atoms, 2) for atom in (a, b, a)]
    every += [atom for each in atoms for atom in (each, each)]
    yield from (every[place : place + ROW_ATOMS + 1] for place in range(0, len(every), ROW_ATOMS))


def _one(encode: Encode, message: str) -> Sequence[int]:
    return encode([message])[0]
