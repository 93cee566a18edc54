"""The tokenizer and chat template of a model that is served elsewhere, from the files of its repository.

    tokenizer.json + chat_template.jinja | tokenizer_config.json --of_files--> messages -> prompts' tokens

As vLLM does for a chat: the template is rendered, with the beginning of an answer, and the text encoded
without further special tokens. `tokenizers` reads the file; it is an extra: no model is served with it here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from headrace.core.errors import BadInput, ModelUnusable
from headrace.core.ports import Chat, ChatMessage
from headrace.executor.chat_template import ChatTemplate, last_line

FILE, CONFIG, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
CONVERTED = "openvino_tokenizer.xml"
"""A folder that has it is a model of our own executor, and read by that."""


class _Named(msgspec.Struct):
    name: str
    template: str


class _Added(msgspec.Struct):
    content: str


class _Config(msgspec.Struct):
    """What templates ask for of a tokenizer's configuration."""

    chat_template: str | list[_Named] | None = None
    bos_token: str | _Added | None = None
    eos_token: str | _Added | None = None


def names_files(said: str) -> bool:
    """Whether it is a `tokenizer.json`, or a folder with one that our own executor cannot read."""
    path = Path(said)
    return said.endswith(".json") or ((path / FILE).is_file() and not (path / CONVERTED).exists())


def of_files(said: str) -> Callable[[Sequence[str]], list[list[int]]]:
    """Messages, each the only one of a chat, to the tokens of their prompts. `said` is the file or its
    folder. Raises `BadInput` where a file or the library is missing, `ModelUnusable` for files that
    cannot be read.
    """
    path = Path(said)
    path = path if said.endswith(".json") else path / FILE
    if not path.is_file():
        raise BadInput(f"{path} is not there", "give a model's tokenizer.json, or the folder that it is in")
    template = _template_beside(path)
    tokenizer = _read(path)

    def encode(messages: Sequence[str]) -> list[list[int]]:
        texts = [template.render(Chat((ChatMessage("user", message),))) for message in messages]
        return [encoded.ids for encoded in tokenizer.encode_batch(texts, add_special_tokens=False)]

    return encode


def _read(path: Path) -> Any:
    try:
        tokenizers: Any = import_module("tokenizers")
    except ImportError as error:
        raise BadInput(
            f"{path}: the library that reads it is not installed", "pip install 'headrace[tokenizers]'"
        ) from error
    with _Unreadable(path):
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    tokenizer.no_truncation()  # some files cut at the length that the model was trained with
    tokenizer.no_padding()
    return tokenizer


@dataclass(frozen=True, slots=True)
class _Unreadable:
    """The library raises plain `Exception`s; they become ours."""

    path: Path

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            raise ModelUnusable(
                f"{self.path} is no tokenizer: {last_line(error)}", "is the file whole? Download it again"
            ) from error


def _template_beside(path: Path) -> ChatTemplate:
    config, template = path.with_name(CONFIG), path.with_name(TEMPLATE)
    try:
        known = msgspec.json.decode(config.read_bytes(), type=_Config) if config.is_file() else _Config()
        source = template.read_text(encoding="utf-8") if template.is_file() else _source(known)
    except (msgspec.DecodeError, UnicodeDecodeError, OSError) as error:
        raise ModelUnusable(f"beside {path}: {error}", "is it whole? Download it again") from error
    if not source:
        raise BadInput(
            f"{path}: nothing beside it says what a server puts around a message, which counts as well",
            f"put the model's {TEMPLATE} or {CONFIG} into its folder",
        )
    return ChatTemplate(source, _text(known.bos_token), _text(known.eos_token))


def _source(config: _Config) -> str:
    if isinstance(config.chat_template, list):
        return next((each.template for each in config.chat_template if each.name == "default"), "")
    return config.chat_template or ""


def _text(token: str | _Added | None) -> str:
    return token.content if isinstance(token, _Added) else token or ""
