"""Requests of a trace as a client can send them: texts of about so many tokens, shared as the trace says.

    TraceRequest, ... --arrivals_of--> Arrival, ...

A block of a prompt that the trace names by an id becomes the same words wherever that id stands, so a prefix
cache finds what it found when the trace was taken, to a block. What has no id is words of its own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from numpy.random import RandomState

from headrace.core.errors import BadInput
from headrace.core.exchange import Arrival, Ask
from headrace.workload.chance import stream
from headrace.workload.trace import TraceRequest
from headrace.workload.words import WORDS

MOST_PROMPT_WORDS = 100_000_000
"""In all prompts of a run: some 700 MB of text."""


def arrivals_of(requests: Sequence[TraceRequest], seed: int) -> tuple[Arrival, ...]:
    words = sum(traced.prompt_tokens for traced in requests)
    if words > MOST_PROMPT_WORDS:
        raise BadInput(
            f"its prompts have {words:,} tokens in all; at most {MOST_PROMPT_WORDS:,} can be sent",
            "take the first of them with --first",
        )
    asks = [_ask(traced, seed, number) for number, traced in enumerate(requests)]
    arrivals = [Arrival(traced.due_at, ask) for traced, ask in zip(requests, asks, strict=True)]
    return tuple(linked(requests, arrivals))


def linked(requests: Sequence[TraceRequest], arrivals: Sequence[Arrival]) -> Iterator[Arrival]:
    """The same arrivals, turns of a session waiting for the turn before them where the trace says so."""
    before: dict[str, str] = {}
    for traced, arrival in zip(requests, arrivals, strict=True):
        waits_for = before.get(traced.session) if traced.think_s is not None else None
        if waits_for is None:
            yield arrival
        else:
            yield replace(arrival, after=waits_for, think_s=traced.think_s or 0.0)
        if traced.session:
            before[traced.session] = arrival.ask.request_id


def _ask(traced: TraceRequest, seed: int, number: int) -> Ask:
    return Ask(
        f"{traced.request_class}-{number}",
        traced.request_class,
        _prompt(traced, seed, number),
        max(1, traced.output_tokens),
        priority=traced.priority,
    )


def _prompt(traced: TraceRequest, seed: int, number: int) -> str:
    shared: list[str] = []
    for prefix_id in traced.prefix_ids:
        shared += _block(seed, prefix_id, traced.prefix_block_tokens)
    left = traced.prompt_tokens - len(shared)
    own = _words(stream(seed, "own", number), max(0, left))
    return " ".join([*shared[: traced.prompt_tokens], *own]) or WORDS[0]


@lru_cache(maxsize=4096)
def _block(seed: int, prefix_id: int, words: int) -> list[str]:
    return _words(stream(seed, "id", prefix_id), words)


def _words(chance: RandomState, count: int) -> list[str]:
    return [WORDS[int(place)] for place in chance.random_sample(count) * len(WORDS)]
