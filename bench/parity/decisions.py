"""What is compared: everything a scheduler decides in one step, and ours saying it.

Trace -> [Decisions] -> [digest]       (the other scheduler says the same in vllm_side.py)
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import blake2b

from headrace.core.output import Output
from headrace.core.plan import Plan
from headrace.core.settings import Settings
from headrace.scheduler.scheduler import Scheduler
from tests.traces import Trace

MOST_STEPS = 3_000


@dataclass(frozen=True, slots=True)
class Decisions:
    """One step. Requests by id, in the scheduler's own order."""

    scheduled: list[tuple[str, int]]
    admitted: list[tuple[str, int]]  # with the tokens found in the prefix cache
    preempted: list[str]
    running: list[str]
    waiting: list[str]  # next first; the order of victims shows here
    block_ids: list[list[int]]  # of `running`
    free_blocks: list[int]  # next first
    finished: list[tuple[str, str]]
    free_blocks_after: list[int]  # once the sampled tokens are booked

    def digest(self) -> str:
        return blake2b(repr(self).encode(), digest_size=8).hexdigest()


class OurScheduler:
    """Plays traces on our scheduler, or on what stands in its place."""

    def __init__(self, make: Callable[[Settings], Scheduler] = Scheduler) -> None:
        self._make = make

    def play(self, trace: Trace) -> list[str]:
        """A digest for every step."""
        return [step.digest() for step in our_decisions(trace, self._make)]


def our_decisions(trace: Trace, make: Callable[[Settings], Scheduler] = Scheduler) -> list[Decisions]:
    """Play `trace`, recounting the scheduler's books after every step."""
    scheduler = make(trace.settings)
    in_flight: deque[Plan] = deque()
    steps: list[Decisions] = []
    while len(steps) < MOST_STEPS and (len(steps) <= trace.last_step or scheduler.works):
        number = len(steps)
        for request in trace.arrivals(number):
            scheduler.add(request)
        for request_id in trace.cancels(number):
            scheduler.abort(request_id)
        steps.append(_one_step(scheduler, trace, in_flight, trace.cancels_while_it_runs(number)))
    return steps


def _one_step(
    scheduler: Scheduler, trace: Trace, in_flight: deque[Plan], cancels: Iterable[str]
) -> Decisions:
    plan = scheduler.schedule()
    scheduler.check()
    in_flight.append(plan)
    running = [work.request.request_id for work in scheduler.running]
    waiting = [work.request.request_id for work in scheduler.waiting]
    block_ids = [list(work.block_ids) for work in scheduler.running]
    free_blocks = scheduler.ledger.pool.free_order()
    for request_id in cancels:
        scheduler.abort(request_id)
    outputs: list[Output] = []
    if len(in_flight) == trace.settings.steps_in_flight or not plan.chunks:
        oldest = in_flight.popleft()
        outputs = scheduler.update(oldest, trace.answers(oldest))
        scheduler.check()
    return Decisions(
        scheduled=[(chunk.work.request.request_id, chunk.tokens) for chunk in plan.chunks],
        admitted=[
            (chunk.work.request.request_id, chunk.start)
            for chunk in plan.chunks
            if chunk.work in plan.admitted
        ],
        preempted=sorted(work.request.request_id for work in plan.preempted),
        running=running,
        waiting=waiting,
        block_ids=block_ids,
        free_blocks=free_blocks,
        finished=[(o.request_id, o.finish_reason.value) for o in outputs if o.finish_reason],
        free_blocks_after=scheduler.ledger.pool.free_order(),
    )
