"""Between text and tokens: everything that is done for a request outside the engine.

    Asked --tokenize--> Request --submit--> Stream of token ids --detokenize--> Pieces of text

Long prompts are tokenized off the event loop, so that one long document does not hold up
everybody else's tokens. Stop strings are found here, in text; the engine knows only tokens.
"""

import asyncio
import secrets
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from headrace.core.errors import BadInput, NeverFits, UnknownModel
from headrace.core.output import Output
from headrace.core.ports import Chat, ChatMessage, Tokenizer
from headrace.core.request import Request
from headrace.executor.detokenize import IncrementalDetokenizer
from headrace.net.engine_client import EngineClient, Stream
from headrace.net.replies import Piece, Usage
from headrace.net.stops import StopFinder
from headrace.net.wire import Asked, BadField, Prompt

INLINE_CHARACTERS = 2000
"""Prompts up to this long are tokenized at once: handing them to a thread would cost as much."""
TOKENIZING_THREADS = 2
"""One long prompt must not keep the next one waiting; more would take the engine's cores."""


class ClientGone(Exception):
    """Nobody waits for this answer any more."""


class Generation:
    """One request in the engine, seen as text."""

    def __init__(self, engine: EngineClient, request: Request, asked: Asked, tokenizer: Tokenizer) -> None:
        self._engine = engine
        self._detokenizer = IncrementalDetokenizer(tokenizer, request.prompt_token_ids)
        self._stops = StopFinder(asked.stop) if asked.stop else None
        self._min_tokens = asked.min_tokens
        self.usage = Usage(prompt_tokens=len(request.prompt_token_ids))
        self._stream: Stream = engine.submit(request)

    async def next_piece(self) -> Piece:
        """The text of the next output; the last one has a finish reason. Raises what went wrong."""
        output = await self._stream.get()
        self.usage.completion_tokens += len(output.token_ids)
        if output.first is not None:
            self.usage.cached_tokens = output.first.num_cached_tokens
            self.usage.bill = output.first.bill
        return self._piece(output)

    def abandon(self) -> None:
        """The client has left: the engine gets its blocks back."""
        self._engine.end(self._stream, "abort")
        self._stream.fail(ClientGone())

    def _piece(self, output: Output) -> Piece:
        text = self._detokenizer.push(_visible(output))
        if output.finish_reason is not None:
            text += self._detokenizer.finish()
        if self._stops is not None and self.usage.completion_tokens > self._min_tokens:
            text = self._stops.push(text)
            if self._stops.found is not None:
                self._engine.end(self._stream, "stop")
                return Piece(text, "stop", self._stops.found)
            if output.finish_reason is not None:
                text += self._stops.rest()
        if output.finish_reason is None:
            return Piece(text)
        return Piece(text, output.finish_reason.value, output.stop_token_id)


class FrontEnd:
    """Takes requests in for one engine. Owns the tokenizing threads."""

    def __init__(self, engine: EngineClient, tokenizer: Tokenizer, model_names: Sequence[str]) -> None:
        self.engine = engine
        self.model_names = tuple(model_names)
        self._tokenizer = tokenizer
        self._threads = ThreadPoolExecutor(TOKENIZING_THREADS, "tokenize")

    async def tokenize(self, asked: Asked) -> tuple[int, ...]:
        """The prompt in tokens. Raises `BadInput` for what the model cannot read."""
        if asked.model is not None and asked.model not in self.model_names:
            raise UnknownModel(
                f"the model {asked.model!r:.200} is not served here", f"ask for {self.model_names[0]!r}"
            )
        if _characters(asked.prompt) <= INLINE_CHARACTERS:
            return self._token_ids(asked.prompt)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._token_ids, asked.prompt)

    def begin(self, asked: Asked, prompt_token_ids: tuple[int, ...], arrived_ns: int) -> Generation:
        """Put a tokenized request before the engine. Raises `NeverFits` with the numbers."""
        max_tokens = _room(asked, len(prompt_token_ids), self.engine.settings.max_model_len)
        request = Request(
            request_id=secrets.token_hex(16),
            prompt_token_ids=prompt_token_ids,
            sampling=asked.sampling(max_tokens, secrets.randbits(63), self._tokenizer.eos_token_id),
            arrived_ns=arrived_ns,
            handed_ns=time.monotonic_ns(),
            priority=asked.priority,
            cache_salt=asked.cache_salt,
            request_class=_request_class(asked),
        )
        return Generation(self.engine, request, asked, self._tokenizer)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _token_ids(self, prompt: Prompt) -> tuple[int, ...]:
        """Text to tokens; token ids are only looked at."""
        if isinstance(prompt, str):
            return tuple(self._tokenizer.encode(prompt))
        messages = [item for item in prompt if isinstance(item, ChatMessage)]
        if messages:
            return tuple(self._tokenizer.encode(self._tokenizer.apply_chat_template(Chat(tuple(messages)))))
        token_ids = tuple(item for item in prompt if isinstance(item, int))
        size = self._tokenizer.vocab_size
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) < size:
            raise BadField("prompt", f"the prompt has token ids outside of the vocabulary of {size} tokens")
        return token_ids


def _request_class(asked: Asked) -> str:
    """Whose goals (`--slo`) hold: OpenAI's field for it, or else the name that the model was asked by."""
    tier = asked.service_tier
    return (asked.model or "") if tier is None or tier in {"auto", "default"} else tier


def _visible(output: Output) -> list[int]:
    """A stop token ends the answer and is no part of its text."""
    return output.token_ids if output.stop_token_id is None else output.token_ids[:-1]


def _characters(prompt: Prompt) -> int:
    """How much work it is to tokenize `prompt`, in characters; a message has its frame around it."""
    if isinstance(prompt, str):
        return len(prompt)
    return sum(len(item.content) + 20 if isinstance(item, ChatMessage) else 1 for item in prompt)


def _room(asked: Asked, prompt_tokens: int, max_model_len: int) -> int:
    """How many tokens the answer may have."""
    if not prompt_tokens:
        raise BadInput("the prompt is empty", "send at least one token")
    room = max_model_len - prompt_tokens
    if room < 1:
        raise NeverFits(
            f"this model's maximum context length is {max_model_len} tokens; the prompt has {prompt_tokens}",
            f"shorten the prompt to at most {max_model_len - 1} tokens",
        )
    if asked.max_tokens is None:
        return room
    if asked.max_tokens > room:
        raise NeverFits(
            f"max_tokens is {asked.max_tokens}, and the prompt of {prompt_tokens} tokens leaves {room} "
            f"of the maximum context length of {max_model_len}",
            f"lower max_tokens to at most {room}, or leave it out",
        )
    return asked.max_tokens
