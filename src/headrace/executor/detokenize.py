"""Text as it comes, token by token, never half a character.

    push(ids) -> text that no later token can change        finish() -> what was held back

Knows tokens only through the `Tokenizer` port. A token may hold part of a character, and what a
token says may depend on the one before it (SentencePiece drops a leading space), so a short window
of ids is decoded as a whole, with some of the prompt's in front, and the new end of its text is
handed out.

    window   [ context | told | new ]
    text     [ ...     |      | final | up to 3 U+FFFD: perhaps a character in the making ]

A character has at most four bytes, so an unfinished one has at most three, and three U+FFFD are the
most it can show as. Any before these are bytes the model really got wrong.
"""

from collections.abc import Sequence

from headrace.core.ports import Tokenizer

_CONTEXT = 6  # tokens before the new ones; only the text directly before matters
_WIDEST = 24  # tokens in the window before it is cut back to its context
_UNFINISHED = "\ufffd"


class IncrementalDetokenizer:
    """Turns one request's output into text."""

    def __init__(
        self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int] = (), *, skip_special_tokens: bool = True
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._window = list(prompt_token_ids[-_CONTEXT:])
        # A prompt may end inside a character. The output then completes it, and it belongs to the output.
        self._told = len(self._decode().rstrip(_UNFINISHED)) if self._window else 0

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that has become final with `token_ids`; empty while a character is unfinished."""
        self._window += token_ids
        text = self._decode()
        final = len(text) - _held_back(text)
        fresh = text[self._told : final]
        self._told = max(self._told, final)
        if final == len(text) and len(self._window) > _WIDEST:
            del self._window[:-_CONTEXT]
            self._told = len(self._decode())
        return fresh

    def finish(self) -> str:
        """The rest: a character that was never finished shows as U+FFFD."""
        return self._decode()[self._told :]

    def _decode(self) -> str:
        return self._tokenizer.decode(self._window, skip_special_tokens=self._skip_special_tokens)


def _held_back(text: str) -> int:
    trailing = len(text) - len(text.rstrip(_UNFINISHED))
    return min(trailing, 3)
