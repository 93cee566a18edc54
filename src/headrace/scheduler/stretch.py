"""Many steps at once, where each would only decode one token for the same requests.

    quiet_steps(scheduler) -> how many such steps lie ahead      skip(scheduler, steps) -> as if taken

For simulation: between two arrivals or endings a scheduler does the same thing again and again.
The state after `skip` equals the state after as many calls of `schedule` and `update`, block ids
and free-queue order included (a property test holds it to that). Tokens are not drawn; the caller
promises that none of the stretch would end its request before its limit. Who comes to that in the
last step ends with it.
"""

from headrace.core.plan import Work
from headrace.scheduler.scheduler import UNDRAWN_TOKEN, Scheduler


def quiet_steps(scheduler: Scheduler) -> int:
    """Steps from here in which nobody is admitted, preempted or passed over, nor ends before the last.

    0 if unsure. Blocks are counted from above: near a full pool the answer is 0 although a few steps
    may be quiet.
    """
    running, settings = scheduler.running, scheduler.settings
    if not running or len(running) > settings.max_num_batched_tokens:
        return 0
    if scheduler.waiting and not scheduler.queue_stands:
        return 0
    owed_tokens = settings.steps_in_flight - 1  # to each request, by steps in flight
    # As many tokens as requests run: every one decodes, and none was computed anew after a preemption.
    if [plan.num_scheduled_tokens for plan in scheduler.in_flight] != [len(running)] * owed_tokens:
        return 0
    nearest_end = settings.max_model_len
    furthest_end = 0
    for work in running:
        expected, known = work.expected_tokens, work.num_tokens
        if expected - work.num_computed_tokens != 1 or expected - known != owed_tokens:
            return 0
        left = work.token_limit - known
        if left < nearest_end:
            nearest_end = left
        if left > furthest_end:
            furthest_end = left
    if owed_tokens and nearest_end == furthest_end:
        nearest_end -= 1  # a step planned behind the end of everybody would be empty, hence none
    blocks_each = scheduler.ledger.pool.num_free // len(running)
    return max(0, min(nearest_end, (blocks_each - 1) * settings.block_size))


def skip(scheduler: Scheduler, steps: int) -> None:
    """Take `steps` quiet steps at once; at most what `quiet_steps` has just said.

        a request's tokens     ...x x x x|x x x x|x x ...      step `full` fills its last block,
                                         ^full               the next one takes a new block

    New blocks are handed out in the order of steps, and within a step in that of admission, in one go:
    what is registered meanwhile does not change who stands where in the free queue.
    """
    size = scheduler.settings.block_size
    known_late = scheduler.settings.steps_in_flight - 1  # steps until a computed token is known
    running = scheduler.running
    takes: list[tuple[int, int]] = []
    fills: list[tuple[int, int, int]] = []
    ended: list[Work] = []
    for place, work in enumerate(running):
        computed = work.num_computed_tokens
        # The last token is sampled and never computed, so nothing is planned for it behind a step in flight.
        planned = min(steps, work.token_limit - 1 - computed)
        for full in range(work.capacity_tokens - computed, steps + 1, size):
            if full < planned:
                takes.append((full + 1, place))
            if 1 <= full + known_late <= steps:
                fills.append((full + known_late, place, computed + full))
        work.token_ids += [UNDRAWN_TOKEN] * steps
        work.num_computed_tokens = computed + planned
        work.num_tokens = computed + steps + 1 - known_late
        work.expected_tokens += planned
        if work.num_tokens == work.token_limit:
            ended.append(work)
    scheduler.ledger.hand_out([running[place] for _, place in sorted(takes)])
    for _, place, tokens in sorted(fills):
        scheduler.ledger.register(running[place], tokens)
    scheduler.end(ended)
    scheduler.shift(steps)
