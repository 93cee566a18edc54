"""Many steps at once, where each would only decode one token for the same requests.

    quiet_steps(scheduler) -> how many such steps lie ahead      skip(scheduler, steps) -> as if taken

For simulation: between two arrivals or endings a scheduler does the same thing again and again.
The state after `skip` equals the state after as many calls of `schedule` and `update`, block ids
and free-queue order included (a property test holds it to that). The caller promises that no
token of the stretch ends a request; tokens themselves are not drawn.
"""

from headrace.core.plan import Work
from headrace.scheduler.scheduler import Scheduler

UNDRAWN_TOKEN = 0


def quiet_steps(scheduler: Scheduler) -> int:
    """Steps from here in which nobody is admitted, ends, is preempted or passed over; 0 if unsure.

    Blocks are counted from above: near a full pool the answer is 0 although a few steps may be quiet.
    """
    running, settings = scheduler.running, scheduler.settings
    if not running or len(running) > settings.max_num_batched_tokens:
        return 0
    if scheduler.waiting and not scheduler.queue_stands:
        return 0
    owed_tokens = settings.steps_in_flight - 1  # to each request, by steps in flight
    if [len(plan.chunks) for plan in scheduler.in_flight] != [len(running)] * owed_tokens:
        return 0
    to_the_first_end = settings.max_model_len
    for work in running:
        expected, known = work.expected_tokens, work.num_tokens
        if expected - work.num_computed_tokens != 1 or expected - known != owed_tokens:
            return 0
        left = work.token_limit - known - 1
        if left < to_the_first_end:
            to_the_first_end = left
    blocks_each = scheduler.ledger.pool.num_free // len(running)
    return max(0, min(to_the_first_end, (blocks_each - 1) * settings.block_size))


def skip(scheduler: Scheduler, steps: int) -> None:
    """Take `steps` quiet steps at once; at most what `quiet_steps` has just said."""
    known_ahead = 0 if scheduler.settings.async_scheduling else 1
    for work in scheduler.running:  # before any block of them is hashed
        work.token_ids += [UNDRAWN_TOKEN] * steps
    for step, works in sorted(_block_events(scheduler, steps).items()):
        for work in works:  # in running order, as `schedule` would come to them
            end = work.num_computed_tokens + step
            work.num_tokens = end - 1 + known_ahead
            fits = scheduler.ledger.extend(work, end)
            assert fits, f"{work}: a quiet step has blocks for all"
    for work in scheduler.running:
        work.num_computed_tokens += steps
        work.num_tokens = work.num_computed_tokens + known_ahead
        work.expected_tokens += steps
    scheduler.shift(steps)


def _block_events(scheduler: Scheduler, steps: int) -> dict[int, list[Work]]:
    """The steps in which a request's last block becomes full, and those in which it takes the next one."""
    size = scheduler.settings.block_size
    events: dict[int, list[Work]] = {}
    for work in scheduler.running:
        first_full = work.capacity_tokens - work.num_computed_tokens
        if first_full > steps:
            continue  # most stretches are shorter than a block
        at = {step for full in range(first_full, steps + 1, size) for step in (full, full + 1)}
        for step in at:
            if 1 <= step <= steps:
                events.setdefault(step, []).append(work)
    return events
