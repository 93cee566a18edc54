"""What the engines are asked: bursts of equal requests, and the built-in mix of short and long ones.

    Point -> timetables(seed) -> one or more tuples of Arrival, run one after the other

Every seed has prompts of its own, so that no prefix cache finds one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from headrace.core.exchange import Arrival, Ask
from headrace.workload.mixed import MixedWorkload
from headrace.workload.words import WORDS

OUTPUT_TOKENS = 64
MIXED = "mixed"
MIXED_S = 30.0
QUICK_MIXED_S = 10.0

Timetable = Sequence[Arrival]


@dataclass(frozen=True, slots=True)
class Point:
    """One load: so many requests at once, several times over, or the mix."""

    name: str
    at_once: int | None
    bursts: int = 1
    """How often in one visit over HTTP."""

    def timetables(self, seed: int, prompt_words: int, mixed_s: float) -> list[Timetable]:
        if self.at_once is None:
            return [mix(seed, mixed_s).arrivals()]
        return [burst(self.at_once, prompt_words, Random(f"{seed}/{n}")) for n in range(self.bursts)]


POINTS = {
    point.name: point for point in (Point("1", 1, 4), Point("8", 8, 2), Point("32", 32), Point(MIXED, None))
}


def mix(seed: int, duration_s: float) -> MixedWorkload:
    """Twice as many documents of half the length as by default, so that a short run has some."""
    return MixedWorkload(long_rps=0.14, long_prompt_tokens=(1500, 2500), duration_s=duration_s, seed=seed)


def burst(at_once: int, prompt_words: int, chance: Random) -> Timetable:
    """All due at the same instant."""
    return [
        Arrival(
            0.0, Ask(f"r{number}", "burst", " ".join(chance.choices(WORDS, k=prompt_words)), OUTPUT_TOKENS)
        )
        for number in range(at_once)
    ]
