"""What the engine says about a request after a step."""

from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.core.bill import Bill
from headrace.core.request import FinishReason


class TokenLogprobs(NamedTuple):
    """How likely a drawn token was, in natural logarithms of the model's own distribution."""

    token_id: int
    logprob: float
    rank: int
    """1 for the likeliest token."""
    top: tuple[tuple[int, float], ...]
    """(token id, logprob) of the likeliest tokens, the likeliest first: as many as were asked for.

    Or of those that were asked for by name.
    """


@dataclass(slots=True)
class Output:
    """News of one request: made once a token, so plain and slotted."""

    request_id: str
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None  # the stop token that ended it, if one did
    first: "FirstToken | None" = None  # only beside the first token
    logprobs: list[TokenLogprobs] | None = None  # one for each of token_ids, where they were asked for
    prompt_logprobs: list[TokenLogprobs] | None = None
    """Only beside the first token: one for each token of the prompt but the first."""
    num_preemptions: int = 0  # how often it gave up its blocks; only beside `finish_reason`
    error: str | None = None  # why it ended with `FinishReason.ERROR`; there is no token then


@dataclass(frozen=True, slots=True)
class FirstToken:
    """What is known once a request has its first token. Instants in ns on the run's clock."""

    bill: Bill
    queued_ns: int
    scheduled_ns: int
    first_token_ns: int
    num_prompt_tokens: int
    num_cached_tokens: int


@dataclass(slots=True)
class BlockNews:
    """What the sampled KV blocks went through since the last news, in nanoseconds."""

    lifetimes_ns: list[int] = field(default_factory=list[int])  # handed out to handed out anew
    idle_ns: list[int] = field(default_factory=list[int])  # of those: since somebody last asked for it
    reuse_gaps_ns: list[int] = field(default_factory=list[int])  # between two who asked for the same block


class Occupancy(NamedTuple):
    """What is in use between two steps. Asked for every step, so no more than that."""

    running: int
    waiting: int
    kv_cache_usage: float
    """Share of the pool that requests hold, 0 to 1."""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot between two steps. Counters run from the engine's start."""

    steps: int
    running: int
    waiting: int
    total_blocks: int  # without the null block
    free_blocks: int  # cached but unreferenced blocks count as free
    preemptions: int
    tokens_computed: int  # prompt and generated tokens put through a forward pass
    prefix_cache_queries: int  # tokens looked up at first admission
    prefix_cache_hits: int  # tokens found
    waited_ns: tuple[int, ...]
    """Request-nanoseconds in the queue, or running without a token, in the order of `CAUSES`."""

    @property
    def kv_cache_usage(self) -> float:
        """Share of the pool that requests hold, 0 to 1."""
        return 1.0 - self.free_blocks / self.total_blocks
