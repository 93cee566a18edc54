"""The built-in workload: short chats and long documents, mixed, each arriving at its own rate.

    MixedWorkload(rates, lengths, duration, seed) -> arrivals() -> (Arrival(due_at, Ask), ...)

Open loop: arrivals are Poisson and do not wait for answers, as people do not. Every class draws
from random streams of its own, one each for gaps, lengths and text, so changing one class (its
rate, its lengths, or leaving it out) leaves the others' requests as they were, to the byte. A
higher rate squeezes the same requests closer together; a longer duration appends.

No two prompts of one timetable share their first two words, so a prefix cache finds nothing in
them but the chat template that a server puts before them. Run twice against the same server with
the same seed, though, every prompt is known already: take another seed, or restart the server.

Knows nothing of tokenizers: a prompt of n words is about n tokens (workload.words).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from random import Random

from headrace.core.errors import BadInput
from headrace.core.exchange import Arrival, Ask
from headrace.workload.words import WORDS

SHORT, LONG = "short", "long"
CLASSES = (SHORT, LONG)

MOST_REQUESTS = 1_000_000
"""More than this in one timetable is a slip of the hand, and would fill the memory with prompts."""


@dataclass(frozen=True, slots=True)
class MixedWorkload:
    """Rates in requests a second, lengths as (fewest, most) tokens. Raises `BadInput`."""

    short_rps: float = 1.2
    long_rps: float = 0.07
    short_prompt_tokens: tuple[int, int] = (30, 90)
    short_output_tokens: tuple[int, int] = (24, 48)
    long_prompt_tokens: tuple[int, int] = (3000, 5000)
    long_output_tokens: tuple[int, int] = (24, 48)
    duration_s: float = 60.0
    """Requests are due in [0, duration_s)."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("short_rps", "long_rps", "duration_s"):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0:
                raise BadInput(f"{name} is {value}; it must be a number that is not negative")
        for field in fields(self):
            if field.name.endswith("_tokens"):
                _require_range(field.name, getattr(self, field.name))
        expected = (self.short_rps + self.long_rps) * self.duration_s
        if expected == 0:
            raise BadInput(
                f"nothing would be sent: {self.short_rps:g} short and {self.long_rps:g} long requests "
                f"a second for {self.duration_s:g} s",
                "give at least one class a rate, and the run a duration",
            )
        if expected > MOST_REQUESTS:
            raise BadInput(f"about {expected:.3g} requests would be due; {MOST_REQUESTS} are the limit")

    def arrivals(self) -> tuple[Arrival, ...]:
        """The timetable, by due time; at the same instant short before long."""
        short = _ClassOfRequests(SHORT, self.short_rps, self.short_prompt_tokens, self.short_output_tokens)
        long = _ClassOfRequests(LONG, self.long_rps, self.long_prompt_tokens, self.long_output_tokens)
        both = [*short.arrivals(self.duration_s, self.seed), *long.arrivals(self.duration_s, self.seed)]
        return tuple(sorted(both, key=lambda arrival: arrival.due_at))

    def describe(self) -> str:
        """One line for a record: what was sent."""
        parts = [
            f"{rps:g}/s {name} ({prompt[0]}-{prompt[1]} prompt, {output[0]}-{output[1]} output tokens)"
            for name, rps, prompt, output in (
                (SHORT, self.short_rps, self.short_prompt_tokens, self.short_output_tokens),
                (LONG, self.long_rps, self.long_prompt_tokens, self.long_output_tokens),
            )
            if rps > 0
        ]
        return f"Poisson, {' + '.join(parts)}, for {self.duration_s:g} s, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class _ClassOfRequests:
    name: str
    rps: float
    prompt_tokens: tuple[int, int]
    output_tokens: tuple[int, int]

    def arrivals(self, duration_s: float, seed: int) -> Iterator[Arrival]:
        lengths = _stream(seed, self.name, "lengths")
        for number, due_at in enumerate(self._due_times(duration_s, seed)):
            prompt_tokens = _draw(lengths, self.prompt_tokens)
            yield Arrival(
                due_at,
                Ask(
                    request_id=f"{self.name}-{number}",
                    request_class=self.name,
                    prompt=_prompt(self.name, number, prompt_tokens, seed),
                    max_tokens=_draw(lengths, self.output_tokens),
                ),
            )

    def _due_times(self, duration_s: float, seed: int) -> Iterator[float]:
        if self.rps == 0:
            return
        gaps = _stream(seed, self.name, "gaps")
        due_at = 0.0
        while (due_at := due_at - math.log1p(-gaps.random()) / self.rps) < duration_s:
            yield due_at


def _prompt(name: str, number: int, words: int, seed: int) -> str:
    text = _stream(seed, name, "text", number)
    drawn = [WORDS[int(text.random() * len(WORDS))] for _ in range(words)]
    return " ".join([*_opening(name, number, seed), *drawn][:words])


def _opening(name: str, number: int, seed: int) -> tuple[str, str]:
    """Two words that no other prompt of the timetable opens with.

    The words are shared out among the classes; within a class the first word steps with every
    request and the second one with every round of the first: no chance, hence no collision.
    Past len(openers) * len(WORDS), some 55 000 requests a class, the pairs come round again.
    """
    openers = WORDS[CLASSES.index(name) :: len(CLASSES)]
    start = int(_stream(seed, name, "opening").random() * len(openers))
    rounds, place = divmod(start + number, len(openers))
    return openers[place], WORDS[rounds % len(WORDS)]


def _stream(seed: int, *path: str | int) -> Random:
    """A random stream of its own for `path`. Take numbers from it by `random()` alone: no other
    method is promised to give the same ones in every version of Python.
    """
    return Random("/".join(map(str, (seed, *path))))  # noqa: S311 - traffic, not secrets


def _draw(chance: Random, bounds: tuple[int, int]) -> int:
    fewest, most = bounds
    return fewest + int(chance.random() * (most - fewest + 1))


def _require_range(name: str, bounds: tuple[int, int]) -> None:
    fewest, most = bounds
    least = 2 if "prompt" in name else 1  # two words open a prompt that differs from all others
    if not least <= fewest <= most:
        raise BadInput(f"{name} is {fewest} to {most}; write the smaller first, and at least {least}")
