"""How many requests of a workload are in the KV cache at once: by what they really take, not by the longest.

    shares of requests, over their lives + pool --crowd--> Crowd

A request holds blocks for its prompt from the start and one more each time its answer has filled one. Seen
at a random instant it is somewhere on that way, and long answers are seen more often, as they stay longer:
mean and variance are weighted by output tokens, on the premise that all decode equally fast. With n requests
at once the pool is full at

    n * mean + z * sqrt(n) * deviation = blocks          z: 0 for every other instant, 1.645 for one in 20

Prefixes that requests share are counted once: of each n neighbours in the workload, how many of their prompt
blocks are different ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, sqrt

from headrace.capacity.kv_groups import KvLayout, Sizing

ONE_IN_20 = 1.645
_STEPS = 8
"""Instants of a request's life that are looked at."""
_ROUNDS = 12
_MOST_WINDOWS = 64


@dataclass(frozen=True, slots=True)
class Life:
    """What one request of a workload takes: its lengths, and names for what its prompt shares."""

    prompt_tokens: int
    output_tokens: int
    prefix_ids: tuple[int, ...] = ()
    prefix_block_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Crowd:
    """Requests at once."""

    typical: float
    """Until the pool is full at every other instant."""
    safe: float
    """Until it is full at one instant in 20; beyond it preemptions are common."""
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
    shared, sharing = 0.0, _Sharing(fitting)
    typical = usable / mean
    for _ in range(_ROUNDS):  # more at once share more, which makes room for more
        shared = sharing.among(max(1, round(typical)))
        typical = usable / (mean - shared * sharing.prompt_share * mean)
    own = 1 - shared * sharing.prompt_share
    return Crowd(
        typical,
        _until(usable, mean * own, deviation * own, ONE_IN_20),
        usable / layout.blocks_per_request(longest, sizing),
        mean,
        shared,
        too_long,
    )


def _held(lives: Sequence[Life], layout: KvLayout, sizing: Sizing) -> tuple[float, float]:
    """Mean and deviation of the blocks of a request that is there at a random instant."""
    weights, total, squares = 0.0, 0.0, 0.0
    for life in lives:
        weight = max(1, life.output_tokens) / _STEPS
        for step in range(_STEPS):
            tokens = life.prompt_tokens + ceil((step + 0.5) / _STEPS * life.output_tokens)
            blocks = layout.blocks_per_request(tokens, sizing)
            weights, total, squares = weights + weight, total + weight * blocks, squares + weight * blocks**2
    mean = total / weights
    return mean, sqrt(max(0.0, squares / weights - mean**2))


def _until(usable: int, mean: float, deviation: float, z: float) -> float:
    """The n of n * mean + z * sqrt(n) * deviation = usable."""
    root = (-z * deviation + sqrt((z * deviation) ** 2 + 4 * mean * usable)) / (2 * mean)
    return root**2


class _Sharing:
    """How much of the prompts of neighbours is the same."""

    def __init__(self, lives: Sequence[Life]) -> None:
        self._lives = lives
        prompts = sum(life.prompt_tokens * max(1, life.output_tokens) for life in lives)
        whole = sum(
            (life.prompt_tokens + life.output_tokens / 2) * max(1, life.output_tokens) for life in lives
        )
        self.prompt_share = prompts / whole if whole else 0.0
        """Of the tokens that are held."""
        self._names = any(life.prefix_ids for life in lives)

    def among(self, neighbours: int) -> float:
        """The share of prompt tokens that so many requests in a row do not need of their own."""
        if not self._names or neighbours < 2:
            return 0.0
        size = min(neighbours, len(self._lives))
        last = len(self._lives) - size
        stride = max(1, last // _MOST_WINDOWS)
        shares = [self._of_window(start, size) for start in range(0, last + 1, stride)]
        return sum(shares) / len(shares)

    def _of_window(self, start: int, size: int) -> float:
        window = self._lives[start : start + size]
        prompts = sum(life.prompt_tokens for life in window)
        seen: set[int] = set()
        saved = 0
        for life in window:
            for prefix_id in life.prefix_ids:
                if prefix_id in seen:
                    saved += life.prefix_block_tokens
                seen.add(prefix_id)
        return min(saved, prompts) / prompts if prompts else 0.0
