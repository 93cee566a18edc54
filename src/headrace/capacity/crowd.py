"""How many requests of a workload are in the KV cache at once: by what they really take, not by the longest.

    requests, over their lives + pool --crowd--> Crowd

A request holds blocks for its prompt from the start and one more each time its answer has filled one. Seen
at a random instant it is somewhere on that way, and long answers are seen more often, as they stay longer:
length-biased sampling. On the premise that all decode equally fast, of requests with prompts p and answers of
d tokens one holds on average

    mean = sum of the blocks for p to p + d - 1 tokens / sum of d                   over all requests

Where more ask than fit, vLLM admits the queue's head once all blocks of its prompt are free, and nobody
passes it (`scheduler_reserve_full_isl`). So some blocks lie idle before a head that needs more. Prompts laid
end to end along all that was ever freed are a renewal process, and what is freed so far ends inside one of
them, a long one more likely than a short one. Of prompts of P whole blocks, so many are there already on
average (the inspection paradox: Feller, An Introduction to Probability Theory and Its Applications, vol. 2,
chapter XI):

    idle = E[P (P - 1)] / (2 E[P])                  typical * mean + idle = usable blocks

With no more than n at once, by `max_num_seqs`, nothing waits for blocks until they run out. Of n drawn by
chance the blocks deviate by sqrt(n) * s; where long requests come together, the mean of those there wanders
by w besides (`together.Together.drift`):

    n * mean + 1.645 * sqrt(n s^2 + n^2 w^2) = usable blocks                        one instant in 20

Prefixes that requests there at the same time share are counted once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from headrace.capacity.kv_groups import KvLayout, Sizing
from headrace.capacity.together import Life, Together

ONE_IN_20 = 1.645
_STEPS = 8
"""Instants of a request's life that are looked at."""
_ROUNDS = 12
_CLOSE = 0.002


@dataclass(frozen=True, slots=True)
class Crowd:
    """Requests at once."""

    typical: float
    """That run where more ask than fit, on average over time."""
    safe: float
    """Until the pool is full at one instant in 20; beyond it waits for blocks and preemptions are common."""
    all_longest: float
    """If each were as long as the longest of them."""
    mean_blocks: float
    """Of a request at a random instant, what it shares counted as its own."""
    shared: float
    """The share of the prompts' tokens that a neighbour at the same time has too."""
    too_long: int
    """Requests of the workload that exceed the pool or `max_model_len`; left out."""


def crowd(
    lives: Sequence[Life], layout: KvLayout, num_blocks: int, max_model_len: int, sizing: Sizing
) -> Crowd:
    """The order of `lives` is that of the workload. With no request that fits all is 0."""
    usable = num_blocks - 1
    fitting = [
        life
        for life in lives
        if life.prompt_tokens + life.output_tokens <= max_model_len
        and layout.blocks_per_request(life.prompt_tokens + life.output_tokens, sizing) <= usable
    ]
    too_long = len(lives) - len(fitting)
    if not fitting:
        return Crowd(0.0, 0.0, 0.0, 0.0, 0.0, too_long)
    mean, deviation = _held(fitting, layout, sizing)
    longest = max(life.prompt_tokens + life.output_tokens for life in fitting)
    idle = _idle(fitting, layout, sizing)
    shared, together = 0.0, Together(fitting)
    typical = _typical(usable, mean, idle)
    for _ in range(_ROUNDS):  # more at once share more, which makes room for more
        shared = together.shared(typical)
        before, typical = typical, _typical(usable, mean * _own(shared, together), idle * (1 - shared))
        if abs(typical - before) <= _CLOSE * before:
            break
    own = _own(shared, together)
    drift = together.drift(typical, deviation, layout, sizing)
    return Crowd(
        typical,
        _until(usable, mean * own, deviation * own, drift * own),
        usable / layout.blocks_per_request(longest, sizing),
        mean,
        shared,
        too_long,
    )


def _typical(usable: int, mean: float, idle: float) -> float:
    """At least one, which runs whatever waits behind it."""
    return max(1.0, (usable - idle) / mean)


def _own(shared: float, together: Together) -> float:
    """The share of what is held that nobody else holds too."""
    return 1 - shared * together.prompt_share


def _idle(lives: Sequence[Life], layout: KvLayout, sizing: Sizing) -> float:
    """Blocks that are free on average because the head of the queue needs more."""
    blocks = [layout.blocks_per_request(life.prompt_tokens, sizing) for life in lives]
    return sum(each * (each - 1) for each in blocks) / (2 * sum(blocks))


def _held(lives: Sequence[Life], layout: KvLayout, sizing: Sizing) -> tuple[float, float]:
    """Mean and deviation of the blocks of a request that is there at a random instant."""
    weights, total, squares = 0.0, 0.0, 0.0
    for life in lives:
        weight = life.stays / _STEPS
        for step in range(_STEPS):
            tokens = life.prompt_tokens + int((step + 0.5) / _STEPS * life.output_tokens)
            blocks = layout.blocks_per_request(tokens, sizing)
            weights, total, squares = weights + weight, total + weight * blocks, squares + weight * blocks**2
    mean = total / weights
    return mean, sqrt(max(0.0, squares / weights - mean**2))


def _until(usable: int, mean: float, deviation: float, drift: float) -> float:
    """The smaller n of n mean + z sqrt(n deviation^2 + n^2 drift^2) = usable, z for one instant in 20."""
    square = mean**2 - (ONE_IN_20 * drift) ** 2
    half = mean * usable + (ONE_IN_20 * deviation) ** 2 / 2
    return usable**2 / (half + sqrt(max(0.0, half**2 - square * usable**2)))
