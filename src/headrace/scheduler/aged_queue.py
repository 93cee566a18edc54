"""A waiting queue in the order of a policy's ranks, which change as requests age.

    heap of ranks: who is next           heap of instants: whose rank changes next, by the policy's clock

A request whose instant has come is ranked anew, so each costs O(log n) as often as its rank changes
(twice at most), and a step costs nothing for those who only wait. What was overtaken by a new entry, or left
the queue, stays in the heaps until it surfaces or until half of a heap is dead.
"""

import heapq
from collections.abc import Callable, Iterator
from typing import TypeVar

from headrace.core.plan import Work
from headrace.scheduler.policy import Policy, Rank

Key = TypeVar("Key", Rank, int)


class AgedQueue:
    """Smallest rank first."""

    def __init__(self, policy: Policy, prompt_tokens: Callable[[Work], int]) -> None:
        """`prompt_tokens` says how many tokens an admission of a work would compute before it answers."""
        self._policy = policy
        self._prompt_tokens = prompt_tokens
        self._ranked: list[tuple[Rank, int, Work]] = []
        self._changes: list[tuple[int, int, Work]] = []
        self._entry_of: dict[int, int] = {}  # of each work in the queue by arrival: its valid entry
        self._entries = 0

    def __len__(self) -> int:
        return len(self._entry_of)

    def __iter__(self) -> Iterator[Work]:
        self._age()
        return (work for _, entry, work in sorted(self._ranked) if self._is_valid(entry, work))

    def push(self, work: Work) -> None:
        self._policy.join(work, self._prompt_tokens(work))
        self._enter(work)

    push_back = push

    def peek(self) -> Work:
        self._age()
        while not self._is_valid(*self._ranked[0][1:]):
            heapq.heappop(self._ranked)
        return self._ranked[0][-1]

    def pop(self) -> Work:
        work = self.peek()
        heapq.heappop(self._ranked)
        self.remove(work)
        return work

    def remove(self, work: Work) -> None:
        del self._entry_of[work.arrival]
        self._ranked = self._without_the_dead(self._ranked)
        self._changes = self._without_the_dead(self._changes)

    def _age(self) -> None:
        """Rank those anew whose instant has come."""
        changes, clock = self._changes, self._policy.clock
        while changes and changes[0][0] <= clock:
            _, entry, work = heapq.heappop(changes)
            if self._is_valid(entry, work):
                self._enter(work)

    def _enter(self, work: Work) -> None:
        self._entries += 1
        self._entry_of[work.arrival] = self._entries
        heapq.heappush(self._ranked, (self._policy.rank(work), self._entries, work))
        changes_at = self._policy.rank_changes_at(work)
        if changes_at is not None:
            heapq.heappush(self._changes, (changes_at, self._entries, work))

    def _is_valid(self, entry: int, work: Work) -> bool:
        return self._entry_of.get(work.arrival) == entry

    def _without_the_dead(self, heap: list[tuple[Key, int, Work]]) -> list[tuple[Key, int, Work]]:
        """The same heap, rebuilt when most of it is dead: an hour of cancels must not pile up."""
        if len(heap) <= 2 * len(self._entry_of):
            return heap
        alive = [entry for entry in heap if self._is_valid(*entry[1:])]
        heapq.heapify(alive)
        return alive
