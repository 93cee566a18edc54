"""Requests in the engine, seen as text.

    Stream of token ids --detokenize, stop strings--> Piece, Piece, ...     one Generation a choice
    Generation, ... --> Answer                                              all choices of one HTTP request

Stop strings are found here, in text; the engine knows only tokens.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import TypeVar

from headrace.core.output import Output
from headrace.core.ports import Tokenizer
from headrace.core.request import FinishReason, Request
from headrace.executor.detokenize import IncrementalDetokenizer
from headrace.net.engine_client import EngineClient, Stream
from headrace.net.logprobs import Names, prompt_logprobs
from headrace.net.metrics.of_requests import Siblings
from headrace.net.replies import Piece, ToldPrompt, Usage
from headrace.net.stops import StopFinder
from headrace.net.wire import Delivery

Pieces = list[tuple[int, Piece]]
"""What came at once: choices and the new text of each."""


MOST_NAMED_AT_ONCE = 200
"""Tokens, each perhaps with 20 others beside it: some 5 ms. For a prompt of 4,000 it was 280 ms."""

_Result = TypeVar("_Result")


class ClientGone(Exception):
    """Nobody waits for this answer any more."""


async def unhurried(tokens: int, work: Callable[[], _Result]) -> _Result:
    """`work` on the names of so many tokens: in a thread where everybody else would wait for it."""
    return work() if tokens <= MOST_NAMED_AT_ONCE else await asyncio.to_thread(work)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a generation needs besides its request."""

    delivery: Delivery
    tokenizer: Tokenizer
    echoed: str = ""
    """Text before the first of the answer."""
    prompt_text: str | None = None
    """For who asked to see it."""
    siblings: Siblings = field(default_factory=Siblings)
    """The same object for all answers to one prompt."""


def _tokens_at_once(request: Request, delivery: Delivery) -> int | None:
    """None: nobody looks at them before the end."""
    if delivery.stream:
        return delivery.stream_interval
    return None if request.sampling.num_logprobs is None else 1  # naming thousands at once takes long


class Generation:
    """One choice."""

    def __init__(self, engine: EngineClient, request: Request, reading: Reading) -> None:
        delivery = reading.delivery
        self._engine = engine
        self._reading = reading
        self._names = Names(reading.tokenizer.token_bytes, as_ids=delivery.tokens_as_ids)
        self._request = request
        self._detokenizer = IncrementalDetokenizer(
            reading.tokenizer, request.prompt_token_ids, skip_special_tokens=delivery.skip_special_tokens
        )
        self._stops = (
            StopFinder(delivery.stop, delivers_stop=delivery.include_stop_str_in_output)
            if delivery.stop
            else None
        )
        self.usage = Usage(prompt_tokens=len(request.prompt_token_ids))
        self._tokens_at_once = at_once = _tokens_at_once(request, delivery)
        # Stop strings are looked for after every token.
        self._stream: Stream = engine.submit(request, reading.siblings, 1 if delivery.stop else at_once)

    async def next_piece(self) -> Piece:
        """The text of what is told at once; the last one has a finish reason. Raises what went wrong."""
        told = self.usage.completion_tokens
        piece = await self._next_output()
        while not self._is_due(piece, self.usage.completion_tokens - told):
            piece.add(await self._next_output())
        return piece

    def _is_due(self, piece: Piece, tokens: int) -> bool:
        is_edge = piece.prompt is not None or piece.finish_reason is not None
        return is_edge or (self._tokens_at_once is not None and tokens >= self._tokens_at_once)

    async def _next_output(self) -> Piece:
        output = await self._stream.get()
        is_first = not self.usage.completion_tokens
        self.usage.completion_tokens += len(output.token_ids)
        if output.first is not None:
            self.usage.cached_tokens = output.first.num_cached_tokens
            self.usage.bill = output.first.bill
        piece = self._piece(output)
        if output.logprobs is not None:
            piece.logprobs = [self._names.name(each) for each in output.logprobs]
        if self._reading.delivery.returns_token_ids:
            piece.token_ids = output.token_ids
        if is_first:
            told = output.prompt_logprobs
            await unhurried(0 if told is None else len(told), lambda: self._begin(piece, output))
        return piece

    def abandon(self) -> None:
        """Nobody listens: the engine gets its blocks back. Does nothing once the answer has ended."""
        self._engine.end(self._stream, "abort")
        self._stream.fail(ClientGone())

    def _begin(self, piece: Piece, output: Output) -> None:
        """Put the prompt before the first text and beside it, each as far as it was asked for."""
        delivery, prompt = self._reading.delivery, self._request.prompt_token_ids
        piece.text = self._reading.echoed + ("" if delivery.echo_only else piece.text)
        if delivery.echoes_logprobs and output.prompt_logprobs is not None:
            most = self._request.sampling.num_logprobs or 0
            echoed = self._names.name_prompt(prompt[0], output.prompt_logprobs, most)
            piece.logprobs = echoed if delivery.echo_only else echoed + (piece.logprobs or [])
        ids = list(prompt) if delivery.returns_token_ids else None
        told = None
        if output.prompt_logprobs is not None and not delivery.stream:
            told = prompt_logprobs(output.prompt_logprobs, self._names.token_bytes)
        piece.prompt = ToldPrompt(ids, told, self._reading.prompt_text)

    def _piece(self, output: Output) -> Piece:
        text = self._detokenizer.push(self._visible(output))
        if output.finish_reason is not None:
            text += self._detokenizer.finish()
        if self._stops is not None and self.usage.completion_tokens > self._request.sampling.min_tokens:
            text = self._stops.push(text)
            if self._stops.found is not None:
                self._engine.end(self._stream, "stop")
                return Piece(text, "stop", self._stops.found)
            if output.finish_reason is not None:
                text += self._stops.rest()
        if output.finish_reason is None:
            return Piece(text)
        return Piece(text, output.finish_reason.value, output.stop_token_id)

    def _visible(self, output: Output) -> list[int]:
        """The token that ends an answer, the model's own end included, is text only on demand."""
        if (
            output.finish_reason is FinishReason.STOP
            and not self._reading.delivery.include_stop_str_in_output
        ):
            return output.token_ids[:-1]
        return output.token_ids


class Answer:
    """All choices of one HTTP request: `n` to each prompt, prompt by prompt."""

    def __init__(self, choices: Sequence[Generation], n: int) -> None:
        self._choices = tuple(choices)
        self._n = n
        self._open = set(range(len(self._choices)))
        self._idle = set(self._open)
        """Choices whose next piece nobody waits for yet."""
        self._came: list[tuple[int, asyncio.Task[Piece]]] = []
        self._news = asyncio.Event()

    @property
    def is_over(self) -> bool:
        return not self._open

    @property
    def size(self) -> int:
        return len(self._choices)

    def usage_of(self, choice: int) -> Usage:
        return self._choices[choice].usage

    @property
    def usage(self) -> Usage:
        """Of all choices together; a prompt counts once, whatever its answers. The bill: of the first."""
        first_of_prompt = [choice.usage for choice in self._choices[:: self._n]]
        return Usage(
            prompt_tokens=sum(usage.prompt_tokens for usage in first_of_prompt),
            completion_tokens=sum(choice.usage.completion_tokens for choice in self._choices),
            cached_tokens=sum(usage.cached_tokens for usage in first_of_prompt),
            bill=first_of_prompt[0].bill,
        )

    async def news(self) -> Pieces:
        """What is new, from at least one choice, in their order. Raises what went wrong with any."""
        if self.size == 1:
            came = [(0, await self._choices[0].next_piece())]
        else:
            came = await self._news_of_many()
        self._open -= {choice for choice, piece in came if piece.finish_reason is not None}
        return came

    def abandon(self) -> None:
        """Nobody listens any more, or it went wrong: end what has not ended."""
        for choice in self._choices:
            choice.abandon()

    async def _news_of_many(self) -> Pieces:
        """Takes as long as what came is, however many there are: `asyncio.wait` looks at all of them."""
        for choice in self._idle & self._open:
            task = asyncio.create_task(self._choices[choice].next_piece())
            task.add_done_callback(partial(self._take_note, choice))
        await self._news.wait()
        came, self._came = self._came, []
        self._news.clear()
        self._idle = {choice for choice, _ in came}
        return [(choice, task.result()) for choice, task in sorted(came, key=itemgetter(0))]

    def _take_note(self, choice: int, task: asyncio.Task[Piece]) -> None:
        """The first error ends the answer; those of its other choices are then no news to anybody."""
        if not task.cancelled():
            task.exception()
        self._came.append((choice, task))
        self._news.set()
