"""The served model's tokenizer and chat template.

OpenVINO GenAI turns text into tokens and back, `tokenizer_graph.py` long text; `chat_template.py` turns
conversations into text.
"""

import re
import threading
from collections.abc import Sequence
from functools import cached_property

import openvino_genai

from headrace.core.errors import BadInput, ModelUnusable
from headrace.core.ports import Chat
from headrace.core.request import Grammar
from headrace.executor.chat_template import ChatTemplate, last_line
from headrace.executor.grammars import Grammars, Vocabulary
from headrace.executor.models import ModelFiles
from headrace.executor.pieces import Pieces, pieces_of
from headrace.executor.tokenizer_graph import TokenizerGraph, graph_of

LONG_TEXT = 2000
"""Characters. For shorter ones GenAI's own way is quicker (275 and 340 µs)."""

_SPACE = "\u2581".encode()
_BYTE = re.compile(rb"<0x([0-9A-F]{2})>")


class OpenVinoTokenizer:
    """May be used from many threads: the library's own calls are made one at a time."""

    def __init__(self, files: ModelFiles) -> None:
        self._lock = threading.Lock()
        self._folder = files.folder
        try:
            self._tokenizer = openvino_genai.Tokenizer(str(files.folder))
            vocab = self._tokenizer.get_vocab()
        except (RuntimeError, ValueError) as error:
            raise ModelUnusable(
                f"OpenVINO cannot read the tokenizer of {files.name} ({files.folder}): {last_line(error)}",
                "if the folder may be damaged, remove it and convert or export the model again",
            ) from error
        self._vocab_size = max(vocab.values()) + 1
        self._first_token_id = files.first_token_id
        if not 0 <= (files.first_token_id or 0) < self._vocab_size:
            raise ModelUnusable(
                f"{files.name} wants the token {files.first_token_id} before every text, "
                f"and its vocabulary has {self._vocab_size} tokens",
                "is the file whole? Convert or download it again",
            )
        self._token_bytes = in_bytes({token_id: _as_bytes(text) for text, token_id in vocab.items()})
        self._grammars = Grammars(self.vocabulary)
        self._template = ChatTemplate(
            self._tokenizer.get_original_chat_template() or self._tokenizer.chat_template,
            self._tokenizer.get_bos_token(),
            self._tokenizer.get_eos_token(),
        )

    @property
    def eos_token_id(self) -> int:
        return self._tokenizer.get_eos_token_id()

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Raises `BadInput` for text that is not Unicode (lone surrogates)."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BadInput(
                f"the text holds half a character at place {error.start}", "send valid Unicode"
            ) from error
        if not text:
            return []
        if len(text) > LONG_TEXT and self._graph is not None:
            tokens = self._graph.encode(text)
        else:
            tokens = self._encode(text, add_special_tokens)
        if add_special_tokens and self._first_token_id is not None:
            tokens.insert(0, self._first_token_id)
        return tokens

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Ids that the vocabulary does not have say nothing."""
        if self._pieces is not None:
            return self._pieces.text(token_ids, skip_special_tokens=skip_special_tokens)
        known = [token for token in token_ids if 0 <= token < self._vocab_size]
        with self._lock:
            return self._tokenizer.decode(known, skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        return self._token_bytes.get(token_id, b"")

    @property
    def takes_tools(self) -> bool:
        return self._template.takes_tools

    def apply_chat_template(self, chat: Chat) -> str:
        return self._template.render(chat)

    def check_grammar(self, grammar: Grammar) -> None:
        self._grammars.check(grammar)

    def vocabulary(self) -> Vocabulary:
        """What each token is in bytes, as far as it can be part of a text."""
        return Vocabulary(
            tokens=[self.token_bytes(token) for token in range(self._vocab_size)],
            special_token_ids=sorted(self._special),
            eos_token_id=self.eos_token_id,
            encode=self.encode,
        )

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        with self._lock:
            return (
                self._tokenizer.encode(text, add_special_tokens=add_special_tokens).input_ids.data[0].tolist()
            )

    @cached_property
    def _graph(self) -> TokenizerGraph | None:
        return graph_of(self._folder, self._encode)

    @cached_property
    def _pieces(self) -> Pieces | None:
        return pieces_of(self._token_bytes, self._special, self._decode_all)

    @cached_property
    def _special(self) -> frozenset[int]:
        """Tokens that mark, and are shown only on demand."""
        alone = [[token] for token in range(self._vocab_size)]
        shown, visible = self._decode_all(alone, False), self._decode_all(alone, True)
        return frozenset(token for token in range(self._vocab_size) if shown[token] and not visible[token])

    def _decode_all(self, texts: list[list[int]], skip_special_tokens: bool) -> list[str]:
        with self._lock:
            return self._tokenizer.decode(texts, skip_special_tokens=skip_special_tokens)


def in_bytes(pieces: dict[int, bytes]) -> dict[int, bytes]:
    """SentencePiece writes a space as U+2581 and, where it falls back to bytes, a byte as <0x0A>."""
    if b"<0x0A>" not in pieces.values():
        return pieces
    return {
        token: bytes((int(byte[1], 16),)) if (byte := _BYTE.fullmatch(piece)) else piece.replace(_SPACE, b" ")
        for token, piece in pieces.items()
    }


def _as_bytes(text: str | bytes) -> bytes:
    """A vocabulary's key: bytes, or text where all keys of the vocabulary are whole characters."""
    return text if isinstance(text, bytes) else text.encode()
