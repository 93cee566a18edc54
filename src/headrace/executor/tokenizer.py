"""The served model's tokenizer and chat template.

OpenVINO GenAI turns text into tokens and back. The chat template is rendered by jinja2, as in the
library that templates are written for; GenAI's own renderer holds the interpreter lock for as long
as a template cares to loop. A template comes with the model, so it is somebody else's program: it
runs in jinja2's sandbox and gets a fixed number of steps.
"""

import json
import re
import sys
import threading
from collections.abc import Sequence
from datetime import datetime
from types import FrameType
from typing import Any, NoReturn

import jinja2
import jinja2.meta
import openvino_genai
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from headrace.core.errors import BadInput, ModelUnusable
from headrace.core.ports import Chat
from headrace.core.request import Grammar
from headrace.executor.grammars import Grammars, Vocabulary
from headrace.executor.models import ModelFiles

_SPACE = "\u2581".encode()
_BYTE = re.compile(rb"<0x([0-9A-F]{2})>")
_MOST_STEPS = 300_000  # lines of the template's Python; real ones take some dozen a message


class OpenVinoTokenizer:
    """May be used from many threads: the library's own calls are made one at a time."""

    def __init__(self, files: ModelFiles) -> None:
        self._lock = threading.Lock()
        try:
            self._tokenizer = openvino_genai.Tokenizer(str(files.folder))
            vocab = self._tokenizer.get_vocab()
        except (RuntimeError, ValueError) as error:
            raise ModelUnusable(
                f"OpenVINO cannot read the tokenizer of {files.name} ({files.folder}): {_last_line(error)}",
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
        self._template = _ChatTemplate(
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
        with self._lock:
            encoded = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
            tokens: list[int] = encoded.input_ids.data[0].tolist()
        if add_special_tokens and self._first_token_id is not None:
            tokens.insert(0, self._first_token_id)
        return tokens

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Ids that the vocabulary does not have say nothing."""
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
        with self._lock:
            alone = [[token] for token in range(self._vocab_size)]
            shown = self._tokenizer.decode(alone, skip_special_tokens=False)
            visible = self._tokenizer.decode(alone, skip_special_tokens=True)
        tokens = range(self._vocab_size)
        return Vocabulary(
            tokens=[self.token_bytes(token) for token in tokens],
            special_token_ids=[token for token in tokens if shown[token] and not visible[token]],
            eos_token_id=self.eos_token_id,
            encode=self.encode,
        )


def in_bytes(pieces: dict[int, bytes]) -> dict[int, bytes]:
    """SentencePiece writes a space as U+2581 and, where it falls back to bytes, a byte as <0x0A>."""
    if b"<0x0A>" not in pieces.values():
        return pieces
    return {
        token: bytes((int(byte[1], 16),)) if (byte := _BYTE.fullmatch(piece)) else piece.replace(_SPACE, b" ")
        for token, piece in pieces.items()
    }


class _ChatTemplate:
    def __init__(self, source: str, bos_token: str, eos_token: str) -> None:
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._template: jinja2.Template | None = None
        self._fault = "the model has no chat template"
        self.takes_tools = False
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
        )
        environment.filters["tojson"] = _to_json  # jinja2's own escapes for HTML
        if source:
            try:
                self._template = environment.from_string(source, globals=_functions())
                variables = jinja2.meta.find_undeclared_variables(environment.parse(source))
                self.takes_tools = "tools" in variables
            except (jinja2.TemplateError, RecursionError, SyntaxError) as error:
                self._fault = f"the model's chat template is broken: {_last_line(error)}"

    def render(self, chat: Chat) -> str:
        """As the `transformers` library fills in templates. Its own names go before a caller's."""
        if self._template is None:
            raise BadInput(self._fault, "send the prompt as text, to /v1/completions")
        turns = [{"role": turn.role, "content": turn.content, **turn.more} for turn in chat.messages]
        known = {
            **chat.template_kwargs,
            **self._tokens,
            "messages": turns,
            "tools": [*chat.tools] or None,
            "add_generation_prompt": chat.add_generation_prompt,
        }
        try:
            with _Steps(_MOST_STEPS):
                text = self._template.render(known)
        except Exception as error:  # a template is a program: it can fail in any way
            raise BadInput(
                f"the model's chat template refuses these messages: {_last_line(error)}",
                "check roles and their order; some models take no system message",
            ) from error
        return _left_open(text, chat.messages[-1].content) if chat.continue_final_message else text


def _left_open(text: str, last: str) -> str:
    """`text` up to the end of the last message. Templates may strip it, or drop it."""
    place = text.rfind(last.strip())
    if place < 0:
        raise BadInput(
            "the model's chat template changes or drops the final message, so it cannot be continued",
            "set continue_final_message to false",
        )
    unstripped = last.lstrip()
    kept = unstripped if text.startswith(unstripped, place) else last.strip()
    return text[: place + len(kept)]


class _Steps:
    """Lets the code inside run for so many lines of Python, then raises in the middle of it."""

    def __init__(self, most: int) -> None:
        self._left = most
        self._before: Any = None

    def __enter__(self) -> None:
        self._before = sys.gettrace()
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _trace(self, _frame: FrameType, _event: str, _arg: object) -> Any:
        self._left -= 1
        if self._left < 0:
            raise RuntimeError(f"it did not end within {_MOST_STEPS} steps")
        return self._trace


def _functions() -> dict[str, Any]:
    """What templates may call beyond jinja2's own."""
    return {"raise_exception": _refuse, "strftime_now": _strftime_now}


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


def _as_bytes(text: str | bytes) -> bytes:
    """A vocabulary's key: bytes, or text where all keys of the vocabulary are whole characters."""
    return text if isinstance(text, bytes) else text.encode()


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__
