"""From a recipe to requests, one after another: the same seed gives the same bytes.

    Recipe --generate--> TraceRequest, TraceRequest, …      by due time, never all at once in memory

Each class draws from random streams of its own, one for each purpose, so changing one class, its rate
or its lengths, leaves the others' requests as they were, and a longer duration appends, unless the
rate's shape depends on it.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import repeat

from numpy.random import RandomState

from headrace.workload.amounts import draws, number_of, places, whole_draws
from headrace.workload.arrivals import arrivals, gaps_of
from headrace.workload.chance import stream
from headrace.workload.recipe import ClassRecipe, Recipe, Sessions
from headrace.workload.shapes import curve
from headrace.workload.trace import About, TraceRequest

_MOST_ID = (1 << 53) - 1
_STRIDE = 0x9E3779B97F4A7
"""Odd, so that no two blocks of one thing meet."""


def about(recipe: Recipe) -> About:
    classes = ", ".join(
        f"{name} {each.rate:g}/s {each.arrivals.value}" for name, each in recipe.classes.items()
    )
    said = f"recipe: {classes}, for {recipe.duration_s:g} s, seed {recipe.seed}"
    return About(said, recipe.seed, recipe.slo, recipe.prefix_block_tokens)


def generate(recipe: Recipe) -> Iterator[TraceRequest]:
    """By due time; at the same instant in the order of the recipe's classes."""
    makers = (_ClassMaker(name, each, recipe) for name, each in recipe.classes.items())
    return heapq.merge(*(maker.requests() for maker in makers), key=lambda request: request.due_at)


@dataclass(frozen=True, slots=True)
class _Start:
    """A request, or the first of a session."""

    number: int
    due_at: float
    tenant: str
    shared_ids: tuple[int, ...]


class _ClassMaker:
    def __init__(self, name: str, recipe: ClassRecipe, whole: Recipe) -> None:
        self._name = name
        self._recipe = recipe
        self._whole = whole
        self._prompts = whole_draws(recipe.prompt, self._chance("prompts"))
        self._outputs = whole_draws(recipe.output, self._chance("outputs"))

    def requests(self) -> Iterator[TraceRequest]:
        if self._recipe.sessions is None:
            return (self._single(start) for start in self._starts())
        return self._sessions(self._recipe.sessions)

    def _chance(self, purpose: str) -> RandomState:
        return stream(self._whole.seed, self._name, purpose)

    def _starts(self) -> Iterator[_Start]:
        recipe, duration_s = self._recipe, self._whole.duration_s
        gaps = gaps_of(recipe.arrivals, recipe.cv or 1.0, self._chance("gaps"))
        due = arrivals(curve(recipe.rate, duration_s, recipe.over_time), gaps)
        tenants, beginnings = self._tenants(), self._beginnings()
        for number, due_at in enumerate(due):
            yield _Start(number, due_at, next(tenants), next(beginnings))

    def _tenants(self) -> Iterator[str]:
        tenants = self._recipe.tenants
        if tenants is None:
            return repeat("")
        return (
            f"{self._name}-{place + 1}"
            for place in _zipf(tenants.count, tenants.skew, self._chance("tenants"))
        )

    def _beginnings(self) -> Iterator[tuple[int, ...]]:
        shared = self._recipe.shared_prefix
        if shared is None:
            return repeat(())
        blocks = shared.tokens // self._whole.prefix_block_tokens
        groups = _zipf(shared.groups, shared.skew, self._chance("shared prefixes"))
        return (self._ids("shared", group, blocks) for group in groups)

    def _ids(self, what: str, number: int, blocks: int, first: int = 0) -> tuple[int, ...]:
        """Of blocks `first` to `blocks` of something; nothing else has them."""
        path = f"{self._whole.seed}/{self._name}/{what}/{number}".encode()
        start = int.from_bytes(blake2b(path, digest_size=8).digest(), "little")
        return tuple((start + block * _STRIDE) & _MOST_ID for block in range(first, blocks))

    def _single(self, start: _Start) -> TraceRequest:
        own, block = next(self._prompts), self._whole.prefix_block_tokens
        return self._request(
            start, len(start.shared_ids) * block + own, next(self._outputs), start.shared_ids
        )

    def _request(
        self, start: _Start, prompt_tokens: int, output_tokens: int, ids: tuple[int, ...]
    ) -> TraceRequest:
        return TraceRequest(
            due_at=start.due_at,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            request_class=self._name,
            priority=self._recipe.priority,
            prefix_ids=ids,
            prefix_block_tokens=self._whole.prefix_block_tokens if ids else 0,
            tenant=start.tenant,
        )

    def _sessions(self, sessions: Sessions) -> Iterator[TraceRequest]:
        """All turns of a session are drawn when it begins, so when it meets others changes nothing in it."""
        turns = whole_draws(sessions.turns, self._chance("turns"))
        thinks = draws(sessions.think, self._chance("think"))
        coming: list[tuple[float, int, int, TraceRequest]] = []
        for start in self._starts():
            while coming and coming[0][0] < start.due_at:
                yield heapq.heappop(coming)[-1]
            for turn, request in enumerate(self._session(start, next(turns), thinks, sessions.most_context)):
                heapq.heappush(coming, (request.due_at, start.number, turn, request))
        while coming:
            yield heapq.heappop(coming)[-1]

    def _session(
        self, start: _Start, turns: int, thinks: Iterator[float], most_context: int
    ) -> Iterator[TraceRequest]:
        """What is said stays: a prompt is the one before, its answer, and something new."""
        block, token_s = self._whole.prefix_block_tokens, number_of(self._whole.token_time)
        context = len(start.shared_ids) * block
        due_at, think_s = start.due_at, None
        drawn = [(next(self._prompts), next(self._outputs), next(thinks)) for _ in range(turns)]
        for added, output, pause_s in drawn:
            context += added
            if context > most_context or due_at >= self._whole.duration_s:
                return
            ids = start.shared_ids + self._ids(
                "session", start.number, context // block, len(start.shared_ids)
            )
            request = self._request(replace(start, due_at=due_at), context, output, ids)
            yield replace(request, session=f"{self._name}-{start.number}", think_s=think_s)
            context += output
            think_s = pause_s
            due_at += output * token_s + pause_s


def _zipf(count: int, skew: float, chance: RandomState) -> Iterator[int]:
    return places([(place + 1) ** -skew for place in range(count)], chance)
