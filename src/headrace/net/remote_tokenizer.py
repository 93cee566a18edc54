"""What a server makes of a message: the tokens of its prompt, by its own tokenizer and chat template.

    messages -> RemoteTokenizer.tokens_of -> POST /tokenize, some at once -> the tokens of each

vLLM and Headrace tokenize a conversation; llama.cpp renders it (/apply-template) and tokenizes a text.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.core.errors import TargetFailed
from headrace.net.client import base_url
from headrace.net.fetch import fetch
from headrace.net.transcript import StreamBroke

AT_ONCE = 16
TIMEOUT_S = 10.0


class _Tokens(msgspec.Struct):
    tokens: list[int]


class _Prompt(msgspec.Struct):
    prompt: str


@dataclass(frozen=True, slots=True)
class RemoteTokenizer:
    """Of a server that listens."""

    url: str
    model: str
    api_key: str | None = None

    async def tokens_of(self, messages: Sequence[str]) -> list[list[int]]:
        """Each message as the only one of a chat. Raises `TargetFailed` where the server does not tell."""
        places = asyncio.Semaphore(AT_ONCE)

        async def one(message: str) -> list[int]:
            async with places:
                return await self._of_chat(message) or await self._of_text(message)

        try:
            return await asyncio.gather(*(one(message) for message in messages))
        except StreamBroke as error:
            raise TargetFailed(f"its /tokenize: {error}") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise TargetFailed(f"its /tokenize gives no tokens: {error}") from error

    async def _of_chat(self, message: str) -> list[int]:
        """Empty where the server looks for a text alone, as llama.cpp does."""
        body = {"model": self.model, "messages": [{"role": "user", "content": message}]}
        return msgspec.json.decode(await self._post("/tokenize", body), type=_Tokens).tokens

    async def _of_text(self, message: str) -> list[int]:
        """As llama.cpp does before it answers a chat, special tokens around the text and in it."""
        chat = {"messages": [{"role": "user", "content": message}]}
        rendered = msgspec.json.decode(await self._post("/apply-template", chat), type=_Prompt).prompt
        body = {"content": rendered, "add_special": True, "parse_special": True}
        return msgspec.json.decode(await self._post("/tokenize", body), type=_Tokens).tokens

    async def _post(self, path: str, body: dict[str, Any]) -> bytes:
        return await fetch(
            f"{base_url(self.url)}{path}",
            timeout_s=TIMEOUT_S,
            api_key=self.api_key,
            body=msgspec.json.encode(body),
        )
