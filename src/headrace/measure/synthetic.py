"""One class of requests of random lengths, without end, and instants at which they may be due.

    asks(Lengths, seed) -> Ask, Ask, ...          due_times(rate, regularity, seed) -> seconds, seconds, ...

A prompt of n words is about n tokens (workload.words), and no two of a seed open alike, so a prefix cache
finds nothing in them. Gaps are drawn as they come: nothing is rescaled to make a count or an end fit.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from numpy.random import RandomState

from headrace.core.errors import BadInput
from headrace.core.exchange import Ask
from headrace.workload.arrivals import Regularity, gaps_of
from headrace.workload.chance import stream
from headrace.workload.words import WORDS

OPENERS = 3
"""Words that number a prompt."""
CLASS = "load"


@dataclass(frozen=True, slots=True)
class Lengths:
    """Fewest and most, in tokens; evenly in between."""

    prompt_tokens: tuple[int, int]
    output_tokens: tuple[int, int]

    def __post_init__(self) -> None:
        for name, (fewest, most), least in (
            ("prompt", self.prompt_tokens, OPENERS),
            ("output", self.output_tokens, 1),
        ):
            if not least <= fewest <= most:
                raise BadInput(
                    f"{name} tokens are {fewest} to {most}; write the smaller first, and at least {least}"
                )


def asks(lengths: Lengths, seed: int, request_class: str = CLASS) -> Iterator[Ask]:
    chance = stream(seed, "lengths")
    number = 0
    while True:
        words = _drawn(chance, lengths.prompt_tokens)
        yield Ask(
            f"{request_class}-{number}",
            request_class,
            prompt_of(words, seed, number),
            _drawn(chance, lengths.output_tokens),
        )
        number += 1


def prompt_of(words: int, seed: int, number: int) -> str:
    place = number + int(stream(seed, "opening").random_sample() * len(WORDS) ** OPENERS)
    opening = [WORDS[place // len(WORDS) ** digit % len(WORDS)] for digit in range(OPENERS)]
    drawn = stream(seed, "text", number).random_sample(max(0, words - OPENERS)) * len(WORDS)
    return " ".join([*opening, *(WORDS[int(place)] for place in drawn)])


def due_times(rate: float, regularity: Regularity, burstiness: float, seed: int) -> Iterator[float]:
    """`burstiness` is the shape of the gamma distribution, as in vLLM: 1 is Poisson, less is burstier."""
    gaps = gaps_of(regularity, burstiness**-0.5, stream(seed, "gaps"))
    return (passed / rate for passed in accumulate(gaps))


def _drawn(chance: RandomState, bounds: tuple[int, int]) -> int:
    fewest, most = bounds
    return fewest + int(chance.random_sample() * (most - fewest + 1))
