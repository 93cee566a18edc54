"""A workload as what is sent: requests with texts, for whoever sends them.

TraceRequest, … + Texts --arrivals_of--> Arrival(due_at, Ask), …     turns waiting for the turn before them
Ask, …          + ExactTexts --reworded--> Ask, …              the same, with exact numbers of tokens
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from headrace.core.errors import BadInput
from headrace.core.exchange import Arrival, Ask
from headrace.workload.texts import ExactTexts
from headrace.workload.trace import TraceRequest, turns_before

MOST_PROMPT_TOKENS = 100_000_000
"""In all prompts of a run: some 700 MB of text."""


class Texts(Protocol):
    """Makes the texts of requests; the same request under the same number gets the same text."""

    @property
    def least_tokens(self) -> int:
        """Of a prompt; there is none with fewer."""
        ...

    def texts(self, requests: Sequence[TraceRequest], /) -> Iterator[str]: ...


@dataclass(frozen=True, slots=True)
class Sent:
    """What is sent of a workload."""

    arrivals: tuple[Arrival, ...]
    lengthened: int
    """Prompts shorter than any that the tokenizer can make, and sent with so many tokens instead."""


def arrivals_of(requests: Sequence[TraceRequest], texts: Texts, *, exact: bool) -> Sent:
    """With `exact`, each `Ask` says how many tokens its prompt has. Raises `BadInput` for too many."""
    tokens = sum(traced.prompt_tokens for traced in requests)
    if tokens > MOST_PROMPT_TOKENS:
        raise BadInput(
            f"its prompts have {tokens:,} tokens in all; at most {MOST_PROMPT_TOKENS:,} can be sent",
            "take the first of them with --first",
        )
    least = texts.least_tokens
    whole = [replace(each, prompt_tokens=max(least, each.prompt_tokens)) for each in requests]
    asks = [
        Ask(
            f"{traced.request_class}-{number}",
            traced.request_class,
            text,
            max(1, traced.output_tokens),
            priority=traced.priority,
            prompt_tokens=traced.prompt_tokens if exact else 0,
        )
        for number, (traced, text) in enumerate(zip(whole, texts.texts(whole), strict=True))
    ]
    arrivals = [Arrival(traced.due_at, ask) for traced, ask in zip(whole, asks, strict=True)]
    lengthened = sum(traced.prompt_tokens < least for traced in requests)
    return Sent(tuple(linked(whole, arrivals)), lengthened)


def linked(requests: Sequence[TraceRequest], arrivals: Sequence[Arrival]) -> Iterator[Arrival]:
    """The same arrivals, turns of a session waiting for the turn before them where the trace says so."""
    for traced, arrival, before in zip(requests, arrivals, turns_before(requests), strict=True):
        if before is None:
            yield arrival
        else:
            after = arrivals[before].ask.request_id
            yield replace(arrival, after=after, think_s=traced.think_s or 0.0)


def reworded(asks: Sequence[Ask], texts: ExactTexts) -> list[Ask]:
    """Each with as many tokens as it had words, or the least there can be; encoded for proof."""
    traced = [_traced(ask, texts) for ask in asks]
    return [_ask(*each) for each in zip(asks, traced, texts.texts(traced), strict=True)]


def rewording(asks: Iterable[Ask], texts: ExactTexts) -> Iterator[Ask]:
    """The same of asks without end, each made when it is asked for and not encoded for proof."""
    for number, ask in enumerate(asks):
        traced = _traced(ask, texts)
        yield _ask(ask, traced, texts.text(traced, number))


def _traced(ask: Ask, texts: ExactTexts) -> TraceRequest:
    return TraceRequest(0.0, max(texts.least_tokens, ask.num_prompt_words), ask.max_tokens)


def _ask(ask: Ask, traced: TraceRequest, text: str) -> Ask:
    return replace(ask, prompt=text, prompt_tokens=traced.prompt_tokens)
