"""Between text and tokens: everything that is done for a request outside the engine.

    Asked --tokenize--> token ids --begin--> Request, ... --submit--> Answer

Long prompts are tokenized off the event loop, so that one long document does not hold up
everybody else's tokens.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from headrace.core.errors import BadInput, UnknownModel
from headrace.core.ports import Chat, Tokenizer
from headrace.core.request import Request, SamplingParams
from headrace.core.settings import SchedulingPolicy
from headrace.net.bodies import LARGEST_INT
from headrace.net.engine_client import EngineClient
from headrace.net.fields import BadField, shown, within_vocabulary
from headrace.net.generation import Answer, Generation, Reading
from headrace.net.metrics.of_requests import Siblings
from headrace.net.prompt_fields import Prompt
from headrace.net.tool_fields import ToolChoice
from headrace.net.wire import Asked, Truncation

INLINE_CHARACTERS = 2000
"""Prompts up to this long are tokenized at once: handing them to a thread would cost as much."""
MOST_LISTED_IDS = 1 << 20
"""Of all answers to a request together: 40,000 biases with 1,024 answers were 530 MB on their way to the
engine, which did nothing else for 8 s."""
TOKENIZING_THREADS = 2
"""One long prompt must not keep the next one waiting; more would take the engine's cores."""

_Result = TypeVar("_Result")


class FrontEnd:
    """Takes requests in for one engine. Owns the tokenizing threads."""

    def __init__(
        self,
        engine: EngineClient,
        tokenizer: Tokenizer,
        model_names: Sequence[str],
        stream_interval: int = 1,
    ) -> None:
        """`stream_interval`: tokens of an event; a request may ask for more, as with vLLM."""
        self.engine = engine
        self.model_names = tuple(model_names)
        self.tokenizer = tokenizer
        self._stream_interval = stream_interval
        self._threads = ThreadPoolExecutor(TOKENIZING_THREADS, "tokenize")

    async def tokenize(self, asked: Asked) -> list[tuple[int, ...]]:
        """The prompts in tokens. Raises `BadInput` for what the model cannot read or the engine not do,
        `Busy` when there is no room.
        """
        self.check_model(asked.model)
        self._check(asked)  # who could never be served is not told to come again
        self._check_room(asked)  # before the work of grammars and tokens, and again after it
        if asked.sampling.grammar is not None:
            await self._in_thread(
                lambda grammar=asked.sampling.grammar: self.tokenizer.check_grammar(grammar)
            )
        special = asked.add_special_tokens
        return [await self.token_ids(prompt, add_special_tokens=special) for prompt in asked.prompts]

    async def token_ids(self, prompt: Prompt, *, add_special_tokens: bool) -> tuple[int, ...]:
        """One prompt in tokens. Raises `BadInput`."""
        if _characters(prompt) <= INLINE_CHARACTERS:
            return self._token_ids(prompt, add_special_tokens)
        return await self._in_thread(lambda: self._token_ids(prompt, add_special_tokens))

    async def text_of(self, token_ids: Sequence[int]) -> str:
        """With special tokens."""
        if len(token_ids) <= INLINE_CHARACTERS:
            return self.tokenizer.decode(token_ids, skip_special_tokens=False)
        return await self._in_thread(lambda: self.tokenizer.decode(token_ids, skip_special_tokens=False))

    def check_model(self, model: str | None) -> None:
        """Raises `UnknownModel`. No name means the one that is served."""
        if model is not None and model not in self.model_names:
            raise UnknownModel(
                f"the model {shown(model)} is not served here", f"ask for {self.model_names[0]!r}"
            )

    def begin(self, asked: Asked, prompts: Sequence[tuple[int, ...]], arrived_ns: int) -> Answer:
        """Put tokenized prompts before the engine. Raises `BadInput`, with numbers, for what cannot fit."""
        self._check_room(asked)
        begun: list[Generation] = []
        requests = self._requests(asked, prompts, arrived_ns)
        siblings = [Siblings(asked.n) for _ in prompts]
        shown = self._shown(asked)
        interval = max(self._stream_interval, asked.delivery.stream_interval)
        delivery = replace(asked.delivery, stream_interval=interval)
        try:
            for place, request in enumerate(requests):
                prompt = asked.prompts[place // asked.n]
                echoed = self._echoed(asked, prompt, request.prompt_token_ids)
                reading = Reading(delivery, self.tokenizer, echoed, shown, siblings[place // asked.n])
                begun.append(Generation(self.engine, request, reading))
        except BaseException:
            for generation in begun:
                generation.abandon()
            raise
        return Answer(begun, asked.n)

    def _check_room(self, asked: Asked) -> None:
        self.engine.admission.check(asked.n * len(asked.prompts))

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, work: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _check(self, asked: Asked) -> None:
        """What the model's vocabulary and template, and the engine's settings, say about the fields."""
        sampling, size = asked.sampling, self.tokenizer.vocab_size
        within_vocabulary("logit_bias", (token_id for token_id, _ in sampling.logit_bias), size)
        within_vocabulary("allowed_token_ids", sampling.allowed_token_ids or (), size)
        within_vocabulary("stop_token_ids", sampling.stop_token_ids, size)
        within_vocabulary("logprob_token_ids", sampling.logprob_token_ids, size)
        use = asked.delivery.tools
        if use is not None and use.choice is ToolChoice.AUTO and not self.tokenizer.takes_tools:
            raise BadField(
                "tools",
                "this model's chat template has no place for tools: the model would not hear of them",
                "set tool_choice to required or to a named function, which force a call, or to none",
            )
        if asked.priority and self.engine.settings.scheduling_policy is SchedulingPolicy.FCFS:
            raise BadField(
                "priority",
                f"priority is {asked.priority}, and this server runs requests in the order of arrival",
                "leave priority out, or start the server with --scheduling-policy priority",
            )

    def _requests(self, asked: Asked, prompts: Sequence[tuple[int, ...]], arrived_ns: int) -> list[Request]:
        """One for each choice; all of them are checked before the first is submitted."""
        max_model_len = self.engine.settings.max_model_len
        bad_words = self._bad_words(asked.bad_words)
        _refuse_excess(asked, sum(map(len, bad_words)))
        requests: list[Request] = []
        for prompt in prompts:
            token_ids = _truncated(prompt, asked.truncation, max_model_len)
            room = _room(asked, len(token_ids), max_model_len)
            requests += (
                Request(
                    request_id=secrets.token_hex(16),
                    prompt_token_ids=token_ids,
                    sampling=self._sampling(asked, room, choice, bad_words),
                    arrived_ns=arrived_ns,
                    handed_ns=time.monotonic_ns(),
                    priority=asked.priority,
                    cache_salt=asked.cache_salt,
                    request_class=_request_class(asked),
                )
                for choice in range(asked.n)
            )
        return requests

    def _sampling(
        self, asked: Asked, max_tokens: int, choice: int, bad_words: tuple[tuple[int, ...], ...]
    ) -> SamplingParams:
        """As vLLM has it, the answers of one seed have seeds that count up. Generators want them unsigned."""
        seed = secrets.randbits(63) if asked.seed is None else (asked.seed + choice) & LARGEST_INT
        return replace(
            asked.sampling,
            max_tokens=max_tokens,
            seed=seed,
            eos_token_id=None if asked.ignore_eos else self.tokenizer.eos_token_id,
            bad_words=bad_words,
        )

    def _bad_words(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """In tokens; as in vLLM also with a space before, where that gives another first token."""
        found: list[tuple[int, ...]] = []
        for word in words:
            plain = tuple(self.tokenizer.encode(word.lstrip()))
            if not plain:
                raise BadField("bad_words", f"the bad word {shown(word)} is nothing but spaces")
            spaced = tuple(self.tokenizer.encode(" " + word.lstrip()))
            found.append(plain)
            if len(spaced) == len(plain) and spaced[0] != plain[0]:
                found.append(spaced)
        return tuple(found)

    def _echoed(self, asked: Asked, prompt: Prompt, token_ids: tuple[int, ...]) -> str:
        if not asked.delivery.echo:
            return ""
        if isinstance(prompt, Chat):
            last = prompt.messages[-1]
            return last.content if last.role == asked.delivery.role else ""
        if asked.delivery.returns_token_ids:
            return ""  # vLLM's: who has the tokens has the text
        if isinstance(prompt, str) and asked.truncation is None:
            return prompt
        return self.tokenizer.decode(token_ids, skip_special_tokens=False)

    def _shown(self, asked: Asked) -> str | None:
        """A chat as the model sees it, for who asked to see it."""
        chat = asked.prompts[0]
        if asked.delivery.returns_prompt_text and isinstance(chat, Chat):
            return self.tokenizer.apply_chat_template(chat)
        return None

    def _token_ids(self, prompt: Prompt, add_special_tokens: bool) -> tuple[int, ...]:
        """Text to tokens; token ids are only looked at."""
        if not isinstance(prompt, tuple):
            text = self.tokenizer.apply_chat_template(prompt) if isinstance(prompt, Chat) else prompt
            return tuple(self.tokenizer.encode(text, add_special_tokens=add_special_tokens))
        within_vocabulary("prompt", prompt, self.tokenizer.vocab_size)
        return prompt


def _refuse_excess(asked: Asked, bad_word_ids: int) -> None:
    """Every answer carries its lists of tokens to the engine, and one large list may have 1,024 answers."""
    answers = asked.n * len(asked.prompts)
    ids = bad_word_ids + len(asked.sampling.logit_bias) + len(asked.sampling.allowed_token_ids or ())
    if answers > 1 and answers * ids > MOST_LISTED_IDS:
        raise BadField(
            "n",
            f"{answers} answers, each with {ids:,} tokens in logit_bias, allowed_token_ids and bad_words, "
            f"are {answers * ids:,} tokens; at most {MOST_LISTED_IDS:,} are taken",
            "ask for fewer answers at once, or list fewer tokens",
        )


def _request_class(asked: Asked) -> str:
    """Whose goals (`--slo`) hold: OpenAI's field for it, or else the name that the model was asked by."""
    tier = asked.service_tier
    return (asked.model or "") if tier is None or tier in {"auto", "default"} else tier


def _characters(prompt: Prompt) -> int:
    """How much work it is to tokenize `prompt`, in characters; a message has its frame around it."""
    if isinstance(prompt, Chat):
        return sum(len(turn.content) + 20 for turn in prompt.messages) + INLINE_CHARACTERS * bool(
            prompt.tools
        )
    return len(prompt)


def _truncated(
    token_ids: tuple[int, ...], truncation: Truncation | None, max_model_len: int
) -> tuple[int, ...]:
    if truncation is None:
        return token_ids
    keep = max_model_len - 1 if truncation.keep_tokens is None else truncation.keep_tokens
    if keep > max_model_len:
        raise BadField(
            "truncate_prompt_tokens",
            f"truncate_prompt_tokens is {keep}, more than the maximum context length of {max_model_len}",
        )
    return token_ids[-keep:] if truncation.keeps_end else token_ids[:keep]


def _room(asked: Asked, prompt_tokens: int, max_model_len: int) -> int:
    """How many tokens the answer may have."""
    if not prompt_tokens:
        raise BadInput("the prompt is empty", "send at least one token")
    room = max_model_len - prompt_tokens
    if room < 1:
        raise BadField(
            "input_tokens",
            f"this model's maximum context length is {max_model_len} tokens; the prompt has {prompt_tokens}",
            f"shorten the prompt to at most {max_model_len - 1} tokens",
        )
    limit = asked.limit
    if limit.tokens is not None and limit.tokens > max_model_len:
        raise BadField(
            limit.field,
            f"{limit.field} is {limit.tokens}, more than the maximum context length of {max_model_len}",
            "lower it, or leave it out",
        )
    most = room if limit.tokens is None else min(room, limit.tokens)
    if asked.sampling.min_tokens > most:
        raise BadField(
            "min_tokens",
            f"min_tokens is {asked.sampling.min_tokens}, and the answer can have {most} tokens",
            "lower it",
        )
    return most
