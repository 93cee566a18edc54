"""Which replica gets a request.

    Asked{prompt_tokens, beginning} + Outstanding of each replica --choose--> index

A router knows what a gateway knows: what it has sent and what has come back. How long an answer
will be it does not know. Equals go to the first; nothing is random, and hashes are the same in
every process.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

LOAD_BOUND = 1.25
"""A replica gets no more than this times its share of the requests for the sake of its prefixes.

Consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam 2016) calls it c = 1 + epsilon.
"""


@dataclass(frozen=True, slots=True)
class Asked:
    """Of a request, what a router looks at."""

    prompt_tokens: int
    beginning: bytes = b""
    """Equal for prompts that begin alike; empty where that is not known."""


@dataclass(slots=True)
class Outstanding:
    """What one replica was sent and has not finished. Changed at every request, so plain."""

    requests: int = 0
    prompt_tokens: int = 0

    def add(self, asked: Asked) -> None:
        self.requests += 1
        self.prompt_tokens += asked.prompt_tokens

    def remove(self, asked: Asked) -> None:
        self.requests -= 1
        self.prompt_tokens -= asked.prompt_tokens


class Router(Protocol):
    """Chooses among at least one replica. May remember what it chose, so each run needs its own."""

    def choose(self, asked: Asked, outstanding: Sequence[Outstanding]) -> int: ...


class RoundRobin:
    """Each in its turn, whatever they do."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, asked: Asked, outstanding: Sequence[Outstanding]) -> int:
        del asked
        chosen = self._next % len(outstanding)
        self._next = chosen + 1
        return chosen


class LeastRequests:
    """The fewest unfinished requests."""

    def choose(self, asked: Asked, outstanding: Sequence[Outstanding]) -> int:
        del asked
        return min(range(len(outstanding)), key=lambda index: outstanding[index].requests)


class LeastTokens:
    """The fewest prompt tokens of unfinished requests: a long document counts as what it is."""

    def choose(self, asked: Asked, outstanding: Sequence[Outstanding]) -> int:
        del asked
        return min(range(len(outstanding)), key=lambda index: outstanding[index].prompt_tokens)


class PrefixAffine:
    """Prompts that begin alike go where their KV blocks are, as long as that replica is not overrun.

    Rendezvous hashing: each prefix has an order of its own over the replicas, and one more replica
    moves only what it takes. The first in that order within `LOAD_BOUND` gets the request.
    """

    def choose(self, asked: Asked, outstanding: Sequence[Outstanding]) -> int:
        if not asked.beginning:
            return LeastRequests().choose(asked, outstanding)
        total = 1 + sum(each.requests for each in outstanding)
        bound = LOAD_BOUND * total / len(outstanding)
        within = [index for index, each in enumerate(outstanding) if each.requests < bound]
        return max(within, key=lambda index: _score(asked.beginning, index))


def _score(beginning: bytes, index: int) -> bytes:
    return blake2b(beginning + index.to_bytes(4, "big"), digest_size=8).digest()
