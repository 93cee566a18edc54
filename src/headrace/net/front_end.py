"""Between text and tokens: everything that is done for a request outside the engine.

    body --take_in--> Asked --tokenize--> Tokenized --begin--> Request, ... --submit--> Answer

Large bodies are read, and long prompts tokenized, off the event loop, so that one long document does
not hold up everybody else's tokens.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
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
LARGE_BODY_BYTES = 1 << 16
"""Up to this a body is read at once, in 12 ms if it is made for it: 2 MB of tiny messages took 340 ms."""
TEXTS_IN_A_TURN = 8
"""Of one request, to be tokenized; then the event loop goes round. The shortest takes 0.5 ms."""
MOST_INLINE_MESSAGES = 100
ANSWERS_IN_A_TURN = 16
"""To be begun: 65 µs each, 0.5 ms with long prompts."""
MOST_LISTED_IDS = 1 << 20
"""Of all answers to a request together: 40,000 biases with 1,024 answers were 530 MB on their way to the
engine, which did nothing else for 8 s."""
TOKENIZING_THREADS = 2
"""One long prompt must not keep the next one waiting; more would take the engine's cores."""

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Tokenized:
    """What a request has to say to the engine in tokens."""

    prompts: list[tuple[int, ...]]
    bad_words: tuple[tuple[int, ...], ...]


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

    async def read(self, raw: bytes, read: Callable[[bytes], _Result]) -> _Result:
        """`read(raw)`, in a thread where that may take long. Raises what it raises."""
        if len(raw) <= LARGE_BODY_BYTES:
            return read(raw)
        return await self._in_thread(lambda: read(raw))

    async def take_in(self, raw: bytes, read: Callable[[bytes], Asked]) -> Asked:
        """Read a body. Raises `BadInput` for what the model cannot read or the engine not do."""
        return await self.read(raw, lambda raw: self._checked(read(raw)))

    async def tokenize(self, asked: Asked) -> Tokenized:
        """Raises `BadInput` for a prompt that is none, `Busy` when there is no room."""
        self._check_room(asked)  # before the work of grammars and tokens, and again after it
        if asked.sampling.grammar is not None:
            await self._in_thread(
                lambda grammar=asked.sampling.grammar: self.tokenizer.check_grammar(grammar)
            )
        prompts: list[tuple[int, ...]] = []
        for prompt in asked.prompts:
            if len(prompts) % TEXTS_IN_A_TURN == TEXTS_IN_A_TURN - 1:
                await asyncio.sleep(0)
            prompts.append(await self.token_ids(prompt, add_special_tokens=asked.add_special_tokens))
        words = asked.bad_words
        if len(words) <= TEXTS_IN_A_TURN:
            return Tokenized(prompts, self._bad_words(words))
        return Tokenized(prompts, await self._in_thread(lambda: self._bad_words(words)))

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

    async def begin(self, asked: Asked, told: Tokenized, arrived_ns: int) -> Answer:
        """Put tokenized prompts before the engine, in turns where they are many.

        Raises `BadInput`, with numbers, for what cannot fit, and `Busy` when there is no room.
        """
        left = asked.n * len(told.prompts)
        self.engine.admission.reserve(left)
        begun: list[Generation] = []
        try:
            for request, reading in self._requests(asked, told, arrived_ns):
                if len(begun) % ANSWERS_IN_A_TURN == ANSWERS_IN_A_TURN - 1:
                    await asyncio.sleep(0)
                self.engine.admission.release()
                left -= 1
                begun.append(Generation(self.engine, request, reading))
        except BaseException:
            for generation in begun:
                generation.abandon()
            raise
        finally:
            self.engine.admission.release(left)
        return Answer(begun, asked.n)

    def _reading(self, asked: Asked, prompt: Prompt, token_ids: tuple[int, ...]) -> Reading:
        """What all answers to one prompt share."""
        interval = max(self._stream_interval, asked.delivery.stream_interval)
        return Reading(
            replace(asked.delivery, stream_interval=interval),
            self.tokenizer,
            self._echoed(asked, prompt, token_ids),
            self._shown(asked),
            Siblings(asked.n),
        )

    def _check_room(self, asked: Asked) -> None:
        self.engine.admission.check(asked.n * len(asked.prompts))

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, work: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _checked(self, asked: Asked) -> Asked:
        """What the model's vocabulary and template, and the engine's settings, say about the fields."""
        self.check_model(asked.model)
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
        return asked

    def _requests(self, asked: Asked, told: Tokenized, arrived_ns: int) -> Iterator[tuple[Request, Reading]]:
        """One for each choice; all of them are checked before there is a first."""
        max_model_len = self.engine.settings.max_model_len
        _refuse_excess(asked, sum(map(len, told.bad_words)))
        fitting = [_truncated(prompt, asked.truncation, max_model_len) for prompt in told.prompts]
        rooms = [_room(asked, len(token_ids), max_model_len) for token_ids in fitting]
        for prompt, token_ids, room in zip(asked.prompts, fitting, rooms, strict=True):
            reading = self._reading(asked, prompt, token_ids)
            for choice in range(asked.n):
                request = Request(
                    request_id=secrets.token_hex(16),
                    prompt_token_ids=token_ids,
                    sampling=self._sampling(asked, room, choice, told.bad_words),
                    arrived_ns=arrived_ns,
                    handed_ns=time.monotonic_ns(),
                    priority=asked.priority,
                    cache_salt=asked.cache_salt,
                    request_class=_request_class(asked),
                )
                yield request, reading

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
    if not isinstance(prompt, Chat):
        return len(prompt)
    if prompt.tools or len(prompt.messages) > MOST_INLINE_MESSAGES or len(prompt.template_kwargs) > 10:
        return INLINE_CHARACTERS + 1
    return sum(len(turn.content) + 20 for turn in prompt.messages)


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
