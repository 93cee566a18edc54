"""What the servers under a fault are asked. Every load has texts of its own, from its seed.

    chats(rate, ...) -> Source      open loop: whatever becomes of the others
    held(streams, ...) -> Source    closed loop: so many at any time

Lengths are in words, which are tokens for practically every tokenizer (workload.words).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random

from headrace.core.exchange import Arrival, Ask
from headrace.measure.sources import Closed, Source, Timetable
from headrace.workload.words import WORDS


@dataclass(frozen=True, slots=True)
class Prompts:
    """How long prompts and answers are, as (fewest, most), and the beginning that all have in common."""

    words: tuple[int, int]
    tokens: tuple[int, int]
    shared_words: int = 0

    def asks(self, name: str, seed: int) -> Iterator[Ask]:
        """Without an end."""
        chance = Random(f"{name}/{seed}")
        shared = chance.choices(WORDS, k=self.shared_words)
        for number in count():
            own = chance.choices(WORDS, k=chance.randint(*self.words))
            yield Ask(f"{name}{number}", name, " ".join([*shared, *own]), chance.randint(*self.tokens))


CHATS = Prompts((30, 90), (24, 40))


def chats(rps: float, prompts: Prompts, for_s: float, seed: int) -> list[Arrival]:
    """Poisson arrivals."""
    chance, asks = Random(f"gaps/{seed}"), prompts.asks("chat", seed)
    arrivals: list[Arrival] = []
    due_at = 0.0
    while (due_at := due_at + chance.expovariate(rps)) < for_s:
        arrivals.append(Arrival(due_at, next(asks)))
    return arrivals


def documents(every_s: float, words: int, for_s: float, seed: int, from_s: float = 0.0) -> list[Arrival]:
    """Long prompts with short answers, at even distances."""
    asks = Prompts((words, words), (16, 24)).asks("document", seed)
    return [Arrival(from_s + n * every_s, next(asks)) for n in range(int((for_s - from_s) / every_s) + 1)]


def open_loop(*parts: list[Arrival]) -> Source:
    return Timetable([arrival for part in parts for arrival in part])


def held(streams: int, prompts: Prompts, for_s: float, seed: int, ramp_s: float = 1.0) -> Source:
    return Closed(prompts.asks("stream", seed), streams, until_s=for_s, ramp_s=ramp_s)


class Both:
    """Two sources as one."""

    def __init__(self, first: Source, second: Source) -> None:
        self._sources = (first, second)
        self._whose: dict[str, Source] = {}

    def first(self) -> list[Arrival]:
        return [arrival for source in self._sources for arrival in self._note(source, source.first())]

    def ended(self, request_id: str, at: float, /) -> list[Arrival]:
        source = self._whose.pop(request_id)
        return self._note(source, source.ended(request_id, at))

    def _note(self, source: Source, arrivals: Sequence[Arrival]) -> list[Arrival]:
        self._whose |= {arrival.ask.request_id: source for arrival in arrivals}
        return list(arrivals)
