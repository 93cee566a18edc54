"""Which requests of a workload are in the KV cache together, and what that makes of their blocks.

    lives in their order + how many at once --Together--> what they share, how the mean of them drifts

Who is there follows from the lives, on the premise that all decode equally fast: if one comes every E[d] / n
tokens, n are there on average, and request i is until d_i tokens after it came.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import pvariance

from headrace.capacity.kv_groups import KvLayout, Sizing

_INSTANTS = 64
"""Of the workload, at which it is looked."""


@dataclass(frozen=True, slots=True)
class Life:
    """What one request of a workload takes: its lengths, and names for what its prompt shares."""

    prompt_tokens: int
    output_tokens: int
    prefix_ids: tuple[int, ...] = ()
    prefix_block_tokens: int = 0

    @property
    def stays(self) -> int:
        """Steps that it is there."""
        return max(1, self.output_tokens)


class Together:
    """A workload, looked at instant by instant. Its lives are at least one."""

    def __init__(self, lives: Sequence[Life]) -> None:
        self._lives = lives
        self._stays = [life.stays for life in lives]
        self._mean_stay = sum(self._stays) / len(lives)
        prompts = sum(life.prompt_tokens * life.stays for life in lives)
        whole = sum((life.prompt_tokens + life.output_tokens / 2) * life.stays for life in lives)
        self.prompt_share = prompts / whole if whole else 0.0
        """Of the tokens that are held, those of prompts."""
        self._shares = any(life.prefix_ids for life in lives)

    def shared(self, at_once: float) -> float:
        """The share of their prompts' tokens that so many need not hold each for itself, on average."""
        if not self._shares or at_once < 2:
            return 0.0
        shares = [_shared([life for life, _ in there]) for there in self._instants(at_once)]
        return sum(shares) / len(shares)

    def drift(self, at_once: float, deviation: float, layout: KvLayout, sizing: Sizing) -> float:
        """Blocks by which the mean of so many wanders from instant to instant, beyond what chance gives.

        As a deviation. `deviation`: of the blocks of one; by chance the mean of n has that by root n. More is
        there where long requests come together.
        """
        means, counts = list[float](), list[int]()
        for there in self._instants(at_once):
            held = (layout.blocks_per_request(life.prompt_tokens + got, sizing) for life, got in there)
            means.append(sum(held) / len(there))
            counts.append(len(there))
        by_chance = deviation**2 * sum(1 / count for count in counts) / len(counts)
        return max(0.0, pvariance(means) - by_chance) ** 0.5

    def _instants(self, at_once: float) -> list[list[tuple[Life, int]]]:
        """Who is there as another one comes, and tokens that each has got."""
        places = range(0, len(self._lives), max(1, len(self._lives) // _INSTANTS))
        return [self._there(place, at_once) for place in places]

    def _there(self, last: int, at_once: float) -> list[tuple[Life, int]]:
        """Who has not left when `last` comes, which is one of them. Before the first there was the end."""
        stays, between = self._stays, self._mean_stay / at_once
        back = min(len(stays), int(max(stays) / between) + 1)
        return [
            (self._lives[last - ago], int(ago * between))
            for ago in range(back)
            if stays[last - ago] > ago * between
        ]


def _shared(there: Sequence[Life]) -> float:
    prompts = sum(life.prompt_tokens for life in there)
    seen: set[int] = set()
    saved = 0
    for life in there:
        for prefix_id in life.prefix_ids:
            if prefix_id in seen:
                saved += life.prefix_block_tokens
            seen.add(prefix_id)
    return min(saved, prompts) / prompts if prompts else 0.0
