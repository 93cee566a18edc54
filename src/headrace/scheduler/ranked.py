"""Fill a step in the order of a policy: decodes, then prompts by rank, running and waiting alike.

    running decodes        |  running prompts and the head of the queue, whoever ranks first
    a token each, always   |  as long as the policy's share of the tokens lasts

vLLM serves every running request before it looks at the queue, so a short prompt waits behind the chunks
of a long one that has begun. Here the long one pauses. It keeps its blocks, and gives them up only
to who ranks before it. The rest (blocks, the full-prompt gate, one head that nobody overtakes for want of
blocks or slots, the long-prefill cap, async scheduling) is the identical scheduler's.

Who gives way when blocks run out is the last of: overdue prompts by rank, answers by admission, young
prompts by rank. The first of this order can take from everybody, so every step computes something; and
whoever waits becomes overdue, so in the end it is first. An answer that lost its blocks and computes them
again counts as an answer: if it took from the decodes, they would take from it in turn, for a token each.
"""

from collections import deque
from collections.abc import Sequence

from headrace.core.bill import Cause
from headrace.core.plan import Plan, Status, Work
from headrace.core.settings import SchedulingPolicy, Settings
from headrace.scheduler.aged_queue import AgedQueue
from headrace.scheduler.hashes import PrefixHashes
from headrace.scheduler.policy import OVERDUE, Policy, has_begun_to_answer
from headrace.scheduler.scheduler import Scheduler, name_the_starved
from headrace.scheduler.shortest import Shortest
from headrace.scheduler.slo import LeastSlack


def make_scheduler(settings: Settings, hashes: PrefixHashes | None = None) -> Scheduler:
    """The scheduler of `settings.scheduling_policy`. `hashes` say which blocks are the same."""
    match settings.scheduling_policy:
        case SchedulingPolicy.FCFS | SchedulingPolicy.PRIORITY:
            return Scheduler(settings, hashes)
        case SchedulingPolicy.SHORTEST:
            return RankedScheduler(settings, Shortest(), hashes)
        case SchedulingPolicy.SLO:
            return RankedScheduler(settings, LeastSlack(settings), hashes)


class RankedScheduler(Scheduler):
    """vLLM's rules, but for the order in which prompts get tokens."""

    def __init__(self, settings: Settings, policy: Policy, hashes: PrefixHashes | None = None) -> None:
        super().__init__(settings, hashes, AgedQueue(policy, self._prompt_tokens))
        self._policy = policy
        self._planned_ns: deque[int] = deque()  # of each step in flight
        self._finished_ns = 0  # of the step that came back last
        self._lacks_blocks = False  # somebody did not get what it needed in this step
        self._out_of = Cause.TOKENS  # what prompts of this step run out of

    def schedule(self) -> Plan:
        self._policy.begin_step(self.now_ns)
        plan = super().schedule()
        if plan.chunks:
            self._planned_ns.append(self.now_ns)
        if plan.queue_stopped_by is Cause.KV:
            self.queue_stands = False  # another one, who needs less, may come to the head by age alone
        return plan

    def shift(self, steps: int) -> None:
        super().shift(steps)
        self._finished_ns = self.now_ns

    def _take_back(self, plan: Plan) -> None:
        super()._take_back(plan)
        began_ns = max(self._planned_ns.popleft(), self._finished_ns)
        self._finished_ns = self.now_ns
        self._policy.finished(plan, self.now_ns - began_ns)

    def _fill(self, plan: Plan, cap: int) -> int:
        self._lacks_blocks, self._out_of = False, Cause.TOKENS
        prefills = self._serve_decodes(plan)
        if prefills or self.waiting:
            self._serve_prefills(plan, prefills, cap)
        if len(plan.chunks) < len(self.running):
            name_the_starved(plan, self.running, Cause.KV if self._lacks_blocks else self._out_of)
        return self.settings.max_num_batched_tokens - sum(chunk.tokens for chunk in plan.chunks)

    def _serve_decodes(self, plan: Plan) -> list[Work]:
        """A token for each request that has one left to compute. Returns the others."""
        prefills: list[Work] = []
        for work in tuple(self.running):
            start = work.num_computed_tokens
            if plan.preempted and work.status is not Status.RUNNING:
                continue
            if work.expected_tokens - start > 1:
                prefills.append(work)
            elif start + 1 < work.token_limit and self._fits(work, start + 1, plan):
                self._compute(work, start, 1, plan)  # else the step in flight brings its last token
        return prefills

    def _serve_prefills(self, plan: Plan, prefills: Sequence[Work], cap: int) -> None:
        """Chunks and admissions in the order of rank, until the share of this step is spent."""
        line = sorted((self._policy.rank(work), work) for work in prefills if work.status is Status.RUNNING)
        place = 0
        owed: list[Work] = []
        share = tokens = self.settings.max_num_batched_tokens - len(plan.chunks)
        # A prompt that must fit into one step gets the step.
        if self.settings.enable_chunked_prefill and (line or self._next_to_admit(plan, owed)):
            share = self._policy.prefill_share(plan.chunks, tokens)
        if share < tokens:
            self._out_of = Cause.DECODE_PACE
        left = share
        while left:
            head = self._next_to_admit(plan, owed)
            if place < len(line) and (head is None or line[place][0] <= self._policy.rank(head)):
                left -= self._serve_prefill(line[place][1], plan, left, cap)
                place += 1
            elif head is not None:
                left -= self._admit_head(plan, left, cap)
            else:
                break
        for work in owed:
            self.waiting.push_back(work)
        self._policy.planned(share - left)
        if self.waiting and plan.queue_stopped_by is None:
            plan.queue_stopped_by = self._why_nobody_passes(plan, left)

    def _why_nobody_passes(self, plan: Plan, left: int) -> Cause:
        if plan.preempted:
            return Cause.KV  # what a victim gave up is not for newcomers
        return Cause.STEP_IN_FLIGHT if left else self._out_of

    def _serve_prefill(self, work: Work, plan: Plan, budget: int, cap: int) -> int:
        """One chunk. Returns its tokens: none if it was preempted before its turn, or lacks blocks."""
        if work.status is not Status.RUNNING:
            return 0
        start = work.num_computed_tokens
        tokens = work.expected_tokens - start
        if 0 < cap < tokens:
            tokens = cap
            plan.capped.add(work.arrival)
        tokens = min(tokens, budget)
        if not self._fits(work, start + tokens, plan):
            return 0
        self._compute(work, start, tokens, plan)
        return tokens

    def _next_to_admit(self, plan: Plan, owed: list[Work]) -> Work | None:
        """The head of the queue, if anybody may be admitted."""
        if plan.preempted or plan.queue_stopped_by is not None:
            return None
        oldest_in_flight = self._in_flight[0].number if self._in_flight else plan.number
        while self.waiting:
            if len(self.running) >= self.settings.max_num_seqs:
                plan.queue_stopped_by = Cause.SLOTS
                return None
            head = self.waiting.peek()
            if head.owed_by_step < oldest_in_flight:
                return head
            # Resumed now, it could sample a position that the step in flight is about to bring.
            owed.append(self.waiting.pop())
        return None

    def _fits(self, work: Work, end: int, plan: Plan) -> bool:
        """Have blocks for `work` up to `end`, from those who rank after it if need be.

        False when nobody does: it keeps what it has and goes on when others have ended. Nor does it
        take in a step that has admitted somebody: that one would have come in vain.
        """
        if end < work.capacity_tokens:
            return True
        while not self.ledger.extend(work, end):
            victim = self._victim()
            if victim is work or plan.admitted:
                self._lacks_blocks = True
                return False
            self._preempt(victim, plan)
        return True

    def _victim(self) -> Work:
        return max(enumerate(self.running), key=self._yields)[1]

    def _yields(self, place_and_work: tuple[int, Work]) -> tuple[int, int, int]:
        """Who gives way first has most of it."""
        place, work = place_and_work
        if has_begun_to_answer(work) or work.expected_tokens - work.num_computed_tokens <= 1:
            return 1, place, 0
        tier, value, arrival = self._policy.rank(work)
        return (0 if tier == OVERDUE else 2), value, arrival

    def _end(self, work: Work) -> None:
        super()._end(work)
        self._policy.leave(work)

    def _prompt_tokens(self, work: Work) -> int:
        """What an admission would compute, by the prefixes known now."""
        return work.num_tokens - len(self.ledger.find_prefix(work)) * self.settings.block_size
