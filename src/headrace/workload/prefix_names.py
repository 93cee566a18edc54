"""Names for the beginnings of prompts that tell who shares them, and nothing else.

    tokens or text, salt -> (id of the first block, id of the first two, ...)

A hash under a salt that is thrown away cannot be matched against guessed texts. Each id covers the
prompt from its very beginning, so equal ids mean equal beginnings, as in a server's prefix cache.
"""

from collections.abc import Callable, Sequence
from hashlib import blake2b

import numpy as np

BLOCK_TOKENS = 64
SALT_BYTES = 32
BYTES_PER_TOKEN = 4
"""Of English text; used only where no tokenizer is at hand."""
_ID_BITS = 53
"""All readers of JSON know whole numbers up to here. Among 10 million ids, one pair collides in 200 files."""


class PrefixNames:
    """Names blocks of `block_tokens` tokens; without a tokenizer, as many bytes as those take."""

    def __init__(
        self,
        salt: bytes,
        block_tokens: int = BLOCK_TOKENS,
        encode: Callable[[str], list[int]] | None = None,
    ) -> None:
        self._salt = salt
        self._encode = encode
        self.block_tokens = block_tokens

    def of_text(self, text: str) -> tuple[int, ...]:
        if self._encode is not None:
            return self.of_tokens(self._encode(text))
        return self._chain(text.encode(errors="replace"), self.block_tokens * BYTES_PER_TOKEN)

    def of_tokens(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        return self._chain(np.asarray(token_ids, dtype="<u4").tobytes(), self.block_tokens * 4)

    def of_person(self, name: str) -> str:
        """For tenants and sessions: the same name is the same word, which does not tell the name."""
        return blake2b(name.encode(errors="replace"), key=self._salt, digest_size=6).hexdigest()

    def count(self, text: str) -> int | None:
        return None if self._encode is None else len(self._encode(text))

    def _chain(self, content: bytes, block_bytes: int) -> tuple[int, ...]:
        """Whole blocks only: where the next token is unknown, nobody can say that it is shared."""
        chain = blake2b(key=self._salt, digest_size=8)
        ids: list[int] = []
        for start in range(0, len(content) - block_bytes + 1, block_bytes):
            chain.update(content[start : start + block_bytes])
            ids.append(int.from_bytes(chain.digest(), "little") >> (64 - _ID_BITS))
        return tuple(ids)
