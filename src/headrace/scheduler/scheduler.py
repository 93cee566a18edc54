"""Choose what the next forward pass computes, as vLLM 0.32's V1 scheduler does.

    add -> waiting -> schedule() -> Plan -> (forward pass) -> update(plan, tokens) -> outputs
                         ^-- running, preempted --'

There are no phases: a request has tokens still to compute, one when it generates, many when it
is new. Running requests are served first, in the order of their admission; then the head of the
waiting queue is admitted as long as tokens, slots and blocks last. Nobody overtakes a blocked head.

With `async_scheduling` a step is planned while the one before still runs. A request's number of
tokens is then *expected*: known, plus one for each step in flight that samples for it. Without it
the two agree whenever a step is planned, so one code serves both.

`schedule` decides and books in one go. A plan that only read could not be right: whom a step
admits later depends on which prefix blocks it registered or evicted before, in the same step
(docs/decisions/0003).
"""

from collections import deque
from collections.abc import Sequence

from headrace.core.bill import Cause
from headrace.core.output import Output
from headrace.core.plan import Chunk, Plan, Status, Work
from headrace.core.request import FinishReason, Request
from headrace.core.settings import SchedulingPolicy, Settings
from headrace.scheduler.hashes import PrefixHashes, TokenHashes
from headrace.scheduler.ledger import KVLedger
from headrace.scheduler.queues import WaitingQueue, make_queue

UNDRAWN_TOKEN = 0


class Scheduler:
    """Queues, block tables and the rules. Knows no clock: whoever drives it says what happened."""

    def __init__(
        self,
        settings: Settings,
        hashes: PrefixHashes | None = None,
        waiting: WaitingQueue | None = None,
    ) -> None:
        """`hashes` say which blocks are the same; by default the tokens do.

        Without a queue of its own it decides as vLLM does (scheduler/ranked.py makes the others).
        """
        self.settings = settings
        self.ledger = KVLedger(settings, hashes or TokenHashes(settings.block_size))
        self.running: list[Work] = []
        self.waiting = make_queue(settings.scheduling_policy) if waiting is None else waiting
        self.now_ns = 0
        """Set by whoever drives it, before each call. vLLM's policies do not look at it."""
        self.works: dict[str, Work] = {}
        self.num_preemptions = 0
        self.prefix_cache_queries = 0  # tokens looked up at first admission
        self.prefix_cache_hits = 0
        self._arrivals = 0
        self._steps = 0
        self._in_flight: deque[Plan] = deque()
        self._ended: list[Work] = []
        self.queue_stands = False  # the head was blocked, and nothing has changed for it since
        self._most_uncapped = 1 if settings.rules.exempts_lone_request else 0

    def add(self, request: Request) -> Work:
        """Put a request at the end of the line. The caller has made sure that it can ever fit."""
        work = Work(request, self._arrivals, self.settings.max_model_len)
        work.sharable_blocks = self.ledger.sharable_blocks(work)
        self._arrivals += 1
        self.works[request.request_id] = work
        if not self.waiting or self.settings.scheduling_policy is not SchedulingPolicy.FCFS:
            self.queue_stands = False  # there may be a new head
        self.waiting.push(work)
        return work

    def schedule(self) -> Plan:
        """Plan one step and book its blocks. Empty if nothing can advance before a step in flight ends."""
        self._steps += 1
        plan = Plan(self._steps)
        cap = self.settings.long_prefill_token_threshold
        if len(self.running) + len(self.waiting) <= self._most_uncapped:
            cap = 0  # nobody to protect from a lone request
        budget = self._fill(plan, cap)
        # A head stopped by tokens or by a step in flight may pass in the next step; slots and blocks
        # come back only when a request ends or gives way.
        self.queue_stands = not plan.preempted and plan.queue_stopped_by in {Cause.SLOTS, Cause.KV}
        plan.num_scheduled_tokens = self.settings.max_num_batched_tokens - budget
        if plan.chunks:
            self._in_flight.append(plan)
        return plan

    def update(self, plan: Plan, token_ids: Sequence[int | None]) -> list[Output]:
        """Book the sampled tokens, `token_ids[i]` for `plan.chunks[i]`; end what has come to its end.

        Plans are updated in the order in which they were scheduled, one call each; an empty one needs none.
        """
        if not plan.chunks:
            return []
        self._take_back(plan)
        outputs: list[Output] = []
        ended: list[Work] = []
        for chunk, token_id in zip(plan.chunks, token_ids, strict=True):
            work = chunk.work
            if token_id is None or work.status is Status.FINISHED:
                continue  # mid-prefill, or ended while the step ran
            output = Output(work.request.request_id, [token_id])
            self._book(work, token_id, plan)
            # In vLLM's order. `min_tokens` is not tested: the sampler cannot draw a stop token before.
            if token_id in work.stop_ids or work.num_tokens >= work.token_limit:
                output.finish_reason = FinishReason.LENGTH
                if token_id in work.stop_ids:
                    output.finish_reason = FinishReason.STOP
                output.num_preemptions = work.num_preemptions
                if token_id in work.request.sampling.stop_token_ids:
                    output.stop_token_id = token_id
                ended.append(work)
            outputs.append(output)
        self.end(ended)
        return outputs

    def update_undrawn(self, plan: Plan) -> list[Work]:
        """As `update`, for simulation: no token is drawn, so only its limit ends a request. Who got one."""
        if not plan.chunks:
            return []
        self._take_back(plan)
        answered = [
            chunk.work for chunk in plan.chunks if chunk.samples and chunk.work.status is not Status.FINISHED
        ]
        for work in answered:
            self._book(work, UNDRAWN_TOKEN, plan)
        self.end([work for work in answered if work.num_tokens >= work.token_limit])
        return answered

    def end(self, works: Sequence[Work]) -> None:
        """These have all their tokens."""
        for work in works:
            self._end(work)
        if works:
            self.running = [work for work in self.running if work.status is Status.RUNNING]

    def abort(self, request_id: str) -> bool:
        """Drop a request wherever it is; its blocks are free at once. False if it is not here."""
        work = self.works.get(request_id)
        if work is None:
            return False
        if work.status is Status.RUNNING:
            self.running.remove(work)
        self._end(work)
        return True

    @property
    def in_flight(self) -> Sequence[Plan]:
        """Steps that were planned and not updated yet, the oldest first."""
        return self._in_flight

    def shift(self, steps: int) -> None:
        """Renumber for `steps` steps that were skipped (scheduler/stretch.py), without who has ended."""
        self._steps += steps
        for plan in self._in_flight:
            plan.number += steps
            plan.chunks = [chunk for chunk in plan.chunks if chunk.work.status is Status.RUNNING]
            plan.num_scheduled_tokens = len(plan.chunks)
            for chunk in plan.chunks:
                chunk.start += steps

    def take_ended(self) -> list[Work]:
        """Works that ended or were aborted since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def check(self) -> None:
        """Recount blocks, tables and queues. Raises `AssertionError` where they disagree."""
        size = self.settings.block_size
        self.ledger.pool.check(work.block_ids for work in self.works.values())
        assert len(self.works) == len(self.running) + len(self.waiting), "a request is lost or in two places"
        for work in self.works.values():
            runs = work.status is Status.RUNNING
            assert runs == bool(work.block_ids), f"{work}: only the running hold blocks"
            assert work.capacity_tokens == len(work.block_ids) * size, f"{work}: stale capacity"
            assert work.num_computed_tokens <= min(work.expected_tokens, work.capacity_tokens), (
                f"{work}: outgrown"
            )
            assert work.num_tokens == len(work.token_ids) < self.settings.max_model_len + 1, f"{work}: length"
        assert all(work.status is Status.RUNNING for work in self.running), "a stranger among the running"

    def _fill(self, plan: Plan, cap: int) -> int:
        """Give tokens to the running, then to newcomers. Returns the tokens left."""
        budget = self._serve_running(plan, cap)
        if plan.preempted:
            plan.queue_stopped_by = Cause.KV  # what a victim gave up is not for newcomers
            return budget
        return self._admit_waiting(plan, budget, cap)

    def _take_back(self, plan: Plan) -> None:
        oldest = self._in_flight.popleft()
        assert oldest is plan, f"step {plan.number} came back before step {oldest.number}"

    def _serve_running(self, plan: Plan, cap: int) -> int:
        """A chunk for each running request, oldest admission first. Returns the tokens left."""
        running, chunks = self.running, plan.chunks
        budget = self.settings.max_num_batched_tokens
        index, stopped_by = 0, Cause.TOKENS
        while index < len(running) and budget:
            work = running[index]
            start = work.num_computed_tokens
            if start + 1 >= work.token_limit:
                index += 1  # the step in flight brings its last token
                continue
            tokens = work.expected_tokens - start
            if 0 < cap < tokens:
                tokens = cap
                plan.capped.add(work.arrival)
            if tokens > budget:
                tokens = budget
            end = start + tokens
            # Below its capacity nothing happens to a request's blocks: the common case of a decode.
            if end >= work.capacity_tokens and not self.ledger.extend(work, end):
                fits = self._make_room(work, end, plan)
                # A victim may have stood before it, with a chunk of this step.
                budget = self.settings.max_num_batched_tokens - sum(chunk.tokens for chunk in chunks)
                if not fits:
                    stopped_by = Cause.KV
                    break
                index = running.index(work)
            self._compute(work, start, tokens, plan)
            budget -= tokens
            index += 1
        if index < len(running) or stopped_by is Cause.KV:  # victims before `index` have shifted the others
            name_the_starved(plan, running, stopped_by)
        return budget

    def _compute(self, work: Work, start: int, tokens: int, plan: Plan) -> None:
        work.num_computed_tokens = end = start + tokens
        samples = end == work.expected_tokens
        if samples:
            work.expected_tokens += 1
        plan.chunks.append(Chunk(work, start, tokens, samples))

    def _make_room(self, work: Work, end: int, plan: Plan) -> bool:
        """Preempt until `work` fits up to `end`; False when it became the victim itself."""
        fits = False
        while not fits:
            victim = self._victim()
            self._preempt(victim, plan)
            if victim is work:
                return False
            fits = self.ledger.extend(work, end)
        return True

    def _victim(self) -> Work:
        if self.settings.scheduling_policy is SchedulingPolicy.FCFS:
            return self.running[-1]
        # `max` keeps the first of equals, which may be the requester; vLLM does the same.
        return max(self.running, key=lambda work: (work.request.priority, work.request.arrived_ns))

    def _preempt(self, victim: Work, plan: Plan) -> None:
        """Throw away what `victim` has computed; it keeps its tokens and its claim to be next."""
        self.running.remove(victim)
        plan.chunks[:] = [chunk for chunk in plan.chunks if chunk.work is not victim]
        plan.preempted.append(victim)
        self.ledger.recall(victim)
        victim.num_computed_tokens = 0
        victim.expected_tokens = victim.num_tokens
        for earlier in self._in_flight:
            if any(chunk.work is victim for chunk in earlier.chunks):
                victim.owed_by_step = earlier.number
        victim.status = Status.PREEMPTED
        victim.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.push_back(victim)

    def _admit_waiting(self, plan: Plan, budget: int, cap: int) -> int:
        """Admit from the head of the queue until a budget stops it. Returns the tokens left."""
        waiting = self.waiting
        oldest_in_flight = self._in_flight[0].number if self._in_flight else plan.number
        owed: list[Work] = []
        while waiting and plan.queue_stopped_by is None:
            if not budget:
                plan.queue_stopped_by = Cause.TOKENS
            elif len(self.running) >= self.settings.max_num_seqs:
                plan.queue_stopped_by = Cause.SLOTS
            elif waiting.peek().owed_by_step >= oldest_in_flight:
                # Resumed now, it could sample a position that the step in flight is about to bring.
                owed.append(waiting.pop())
            else:
                budget -= self._admit_head(plan, budget, cap)
        for work in reversed(owed):
            waiting.push_back(work)
        if owed and plan.queue_stopped_by is None:
            plan.queue_stopped_by = Cause.STEP_IN_FLIGHT
        return budget

    def _admit_head(self, plan: Plan, budget: int, cap: int) -> int:
        """Admit the head of the queue, or say which budget stops it. Returns the tokens it was given."""
        work = self.waiting.peek()
        hits = self.ledger.find_prefix(work)
        start = len(hits) * self.settings.block_size
        tokens = work.num_tokens - start
        is_capped = 0 < cap < tokens
        if is_capped:
            tokens = cap
        if tokens > budget and not self.settings.enable_chunked_prefill:
            plan.queue_stopped_by = Cause.TOKENS
            return 0
        tokens = min(tokens, budget)
        if not self.ledger.admit(work, hits, start + tokens, others_run=bool(self.running)):
            plan.queue_stopped_by = Cause.KV
            return 0
        self.waiting.pop()
        if is_capped:
            plan.capped.add(work.arrival)
        self._start(work, start, tokens, plan)
        return tokens

    def _start(self, work: Work, start: int, tokens: int, plan: Plan) -> None:
        if work.status is Status.WAITING:  # a resumed request's look-up is not counted: vLLM's metric
            work.num_cached_tokens = start
            if work.request.sampling.num_prompt_logprobs is None:  # those do not look
                self.prefix_cache_queries += work.num_tokens
                self.prefix_cache_hits += start
        work.status = Status.RUNNING
        self.running.append(work)
        plan.admitted.append(work)
        self._compute(work, start, tokens, plan)

    def _book(self, work: Work, token_id: int, plan: Plan) -> None:
        work.token_ids.append(token_id)
        work.num_tokens += 1
        if work.owed_by_step >= plan.number:
            work.expected_tokens += 1  # preempted since: its expectation began anew
        elif self.settings.async_scheduling:
            known = work.num_computed_tokens - work.expected_tokens + work.num_tokens
            if known >= (work.num_cached_blocks + 1) * self.settings.block_size:
                self.ledger.register(work, known)

    def _end(self, work: Work) -> None:
        self.queue_stands = False
        self.ledger.release(work)
        was_waiting = work.status is not Status.RUNNING
        work.status = Status.FINISHED
        if was_waiting:
            self.waiting.remove(work)
        del self.works[work.request.request_id]
        self._ended.append(work)


def name_the_starved(plan: Plan, running: list[Work], stopped_by: Cause) -> None:
    """Write down which of the running got nothing although they could use a token, and why."""
    served = {chunk.work.arrival for chunk in plan.chunks}
    plan.starved = [
        work
        for work in running
        if work.arrival not in served and work.num_computed_tokens + 1 < work.token_limit
    ]
    if plan.starved:
        plan.starved_by = stopped_by
