"""Who is next: the waiting queue in two orders. Every operation is independent of its length.

`fcfs` keeps the order of submission; `priority` sorts by (priority, arrival, id). A preempted
request goes back to the front, or to where its priority puts it.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from typing import Protocol

from headrace.core.plan import Status, Work
from headrace.core.settings import SchedulingPolicy


class WaitingQueue(Protocol):
    """What the scheduler asks of a queue."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Work]:
        """Everyone waiting, the next first. For looking in, not for the step loop."""
        ...

    def push(self, work: Work) -> None: ...
    def push_back(self, work: Work) -> None:
        """`work` was preempted: it has a better claim than who came after it."""
        ...

    def peek(self) -> Work: ...
    def pop(self) -> Work: ...
    def remove(self, work: Work) -> None: ...


class FcfsQueue:
    """First come, first served."""

    def __init__(self) -> None:
        self._works: OrderedDict[int, Work] = OrderedDict()

    def __len__(self) -> int:
        return len(self._works)

    def __iter__(self) -> Iterator[Work]:
        return iter(self._works.values())

    def push(self, work: Work) -> None:
        self._works[work.arrival] = work

    def push_back(self, work: Work) -> None:
        self._works[work.arrival] = work
        self._works.move_to_end(work.arrival, last=False)

    def peek(self) -> Work:
        return next(iter(self._works.values()))

    def pop(self) -> Work:
        return self._works.popitem(last=False)[1]

    def remove(self, work: Work) -> None:
        del self._works[work.arrival]


class PriorityQueue:
    """Smallest (priority, arrival, id) first. A removed work stays in the heap until it surfaces."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, str, int, Work]] = []
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Work]:
        return (entry[-1] for entry in sorted(self._heap) if entry[-1].status is not Status.FINISHED)

    def push(self, work: Work) -> None:
        request = work.request
        heapq.heappush(
            self._heap, (request.priority, request.arrived_ns, request.request_id, work.arrival, work)
        )
        self._length += 1

    push_back = push

    def peek(self) -> Work:
        while self._heap[0][-1].status is Status.FINISHED:
            heapq.heappop(self._heap)
        return self._heap[0][-1]

    def pop(self) -> Work:
        work = self.peek()
        heapq.heappop(self._heap)
        self._length -= 1
        return work

    def remove(self, work: Work) -> None:
        """`work` must be FINISHED by now: that is how it is recognised when it surfaces."""
        assert work.status is Status.FINISHED, f"{work} would surface again"
        self._length -= 1
        if self._length * 2 < len(self._heap):  # mostly dead: an hour of cancels must not pile up
            self._heap = [entry for entry in self._heap if entry[-1].status is not Status.FINISHED]
            heapq.heapify(self._heap)


def make_queue(policy: SchedulingPolicy) -> WaitingQueue:
    """The queue of a policy of vLLM's."""
    assert policy in {SchedulingPolicy.FCFS, SchedulingPolicy.PRIORITY}, f"{policy}: use make_scheduler"
    return FcfsQueue() if policy is SchedulingPolicy.FCFS else PriorityQueue()
