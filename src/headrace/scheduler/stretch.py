"""Many steps at once, where each would only decode one token for the same requests.

    quiet_steps(scheduler) -> how many such steps lie ahead      skip(scheduler, steps) -> as if taken

For simulation: between two arrivals or endings a scheduler does the same thing again and again.
The state after `skip` equals the state after as many calls of `schedule` and `update`, block ids
and free-queue order included (a property test holds it to that). The caller promises that no
token of the stretch ends a request; tokens themselves are not drawn.
"""

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
    """Take `steps` quiet steps at once; at most what `quiet_steps` has just said.

        a request's tokens     ...x x x x|x x x x|x x ...      step `full` fills its last block,
                                         ^full               the next one takes a new block

    New blocks are handed out in the order of steps, and within a step in that of admission, in one go:
    what is registered meanwhile does not change who stands where in the free queue.
    """
    size = scheduler.settings.block_size
    known_late = scheduler.settings.steps_in_flight - 1  # steps until a computed token is known
    takes: list[tuple[int, int]] = []
    fills: list[tuple[int, int, int]] = []
    for place, work in enumerate(scheduler.running):
        computed = work.num_computed_tokens
        for full in range(work.capacity_tokens - computed, steps + 1, size):
            if full < steps:
                takes.append((full + 1, place))
            if 1 <= full + known_late <= steps:
                fills.append((full + known_late, place, computed + full))
        work.token_ids += [UNDRAWN_TOKEN] * steps
        work.num_computed_tokens = computed + steps
        work.num_tokens = computed + steps + 1 - known_late
        work.expected_tokens += steps
    running = scheduler.running
    scheduler.ledger.hand_out([running[place] for _, place in sorted(takes)])
    for _, place, tokens in sorted(fills):
        scheduler.ledger.register(running[place], tokens)
    scheduler.shift(steps)
