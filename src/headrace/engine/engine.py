"""One replica's state machine. It is told the time and what was computed; it decides the rest.

    submit(request)                                     cancel(id)
        '--> plan(now) -> Plan --executor.run--> finish(plan, tokens, now) -> [Output]

The same object serves under the real clock and is simulated under a virtual one.
"""

from collections.abc import Sequence
from typing import NamedTuple

from headrace.core.cost import StepShape
from headrace.core.errors import BadInput, NeverFits
from headrace.core.output import BlockNews, EngineStats, FirstToken, Occupancy, Output
from headrace.core.plan import Plan, Status, Work
from headrace.core.ports import StepResult
from headrace.core.request import FinishReason, Request
from headrace.core.settings import Settings
from headrace.engine.accounts import Accounts
from headrace.scheduler.block_lives import BlockLives
from headrace.scheduler.hashes import PrefixHashes
from headrace.scheduler.ranked import make_scheduler
from headrace.scheduler.stretch import quiet_steps, skip


class Answered(NamedTuple):
    """Who got a token in a step, and for whom it was the first. One a step."""

    works: list[Work]
    firsts: list[tuple[Work, FirstToken]]


class Engine:
    """Admission at the door, the scheduler behind it, and every request's bill."""

    def __init__(self, settings: Settings, hashes: PrefixHashes | None = None) -> None:
        """`hashes` say which KV blocks are the same; by default the tokens do."""
        self.settings = settings
        self._scheduler = make_scheduler(settings, hashes)
        self._accounts = Accounts()
        self._lives: BlockLives | None = None
        self._steps = 0
        self._tokens_computed = 0

    def watch_blocks(self, share: float) -> None:
        """From now on look at this share of the KV blocks (`take_block_news`)."""
        self._lives = self._scheduler.ledger.pool.lives = BlockLives(share)

    @property
    def has_unfinished(self) -> bool:
        return bool(self._scheduler.works)

    def submit(self, request: Request, now_ns: int) -> None:
        """Take a request in. Raises `NeverFits` for what could not run even alone.

        `arrived_ns <= handed_ns <= now_ns`; `BadInput` for an empty prompt or an id in use.
        """
        if request.request_id in self._scheduler.works:
            raise BadInput(f"a request with the id {request.request_id} is running", "send another id")
        assert request.arrived_ns <= request.handed_ns <= now_ns, f"{request} comes from the future"
        _refuse_what_never_fits(request, self.settings)
        self._scheduler.add(request)
        self._accounts.open(request)

    def cancel(self, request_id: str) -> bool:
        """Drop a request; its blocks are free at once. False if it is not here (any more)."""
        self._accounts.drop(request_id)
        return self._scheduler.abort(request_id)

    def cancel_waiting(self, request_id: str) -> bool:
        """Drop a request that no step has taken in yet. False if one has, or it is not here."""
        work = self._scheduler.works.get(request_id)
        return work is not None and work.status is Status.WAITING and self.cancel(request_id)

    def plan(self, now_ns: int) -> Plan | None:
        """The next step, with its blocks booked; None when there is nothing to do.

        With `async_scheduling` a step may be planned while the one before still runs; None then
        means that nothing can advance before that one ends.
        """
        if not self._scheduler.works:
            return None
        self._settle(now_ns)
        if self._lives is not None:
            self._lives.now_ns = now_ns
        plan = self._schedule_chunks(now_ns)
        if plan is not None:
            self._steps += 1
        return plan

    def finish(self, plan: Plan, result: StepResult, now_ns: int) -> list[Output]:
        """Book what the step computed. Works that were cancelled in between are passed over."""
        self._settle(now_ns)
        outputs = self._scheduler.update(plan, result.token_ids)
        if self._accounts.await_tokens:
            for output in outputs:
                output.first = self._accounts.close(output.request_id, now_ns)
        self._tokens_computed += plan.num_scheduled_tokens
        if result.logprobs or result.prompt_logprobs:
            _add_logprobs(outputs, plan, result)
        if result.failed:
            outputs += self._end_failed(plan, result.failed)
        return outputs

    def finish_undrawn(self, plan: Plan, now_ns: int) -> Answered:
        """As `finish`, for simulation: no token is drawn, so only its limit ends a request."""
        self._settle(now_ns)
        works = self._scheduler.update_undrawn(plan)
        self._tokens_computed += plan.num_scheduled_tokens
        firsts: list[tuple[Work, FirstToken]] = []
        if self._accounts.await_tokens:
            for work in works:
                if work.num_tokens == work.num_prompt_tokens + 1:
                    first = self._accounts.close(work.request.request_id, now_ns)
                    assert first is not None, f"{work} had its first token before"
                    firsts.append((work, first))
        return Answered(works, firsts)

    def quiet_steps(self) -> int:
        """Steps ahead that would each decode one token for the requests now running, and nothing else.

        For simulation. In the last of them requests may end. 0 where that is not certain.
        """
        return 0 if self._accounts.are_open else quiet_steps(self._scheduler)

    def decode_shape(self) -> StepShape:
        """The shape of the next quiet step to be planned."""
        running = self._scheduler.running
        context_tokens = sum(work.num_computed_tokens for work in running) + len(running)
        return StepShape(len(running), context_tokens, sampled_seqs=len(running))

    @property
    def running(self) -> Sequence[Work]:
        """Who runs, in the order of admission."""
        return self._scheduler.running

    def skip(self, steps: int, now_ns: int) -> None:
        """Take `steps` quiet steps at once, the last of which ends at `now_ns`.

        The state is what as many calls of `plan` and `finish` would have left; no outputs are made.
        """
        self._accounts.planned_quiet()
        self._settle(now_ns)
        self._steps += steps
        self._tokens_computed += steps * len(self._scheduler.running)
        skip(self._scheduler, steps)

    def take_ended(self) -> list[Work]:
        """Works that ended since the last call, so that the executor can forget them."""
        return self._scheduler.take_ended()

    def take_block_news(self) -> BlockNews | None:
        """Of the blocks that are looked at, since the last call. None: nothing, or none are."""
        return None if self._lives is None else self._lives.take_news()

    def occupancy(self) -> Occupancy:
        """Of `stats`, what a picture over time needs."""
        scheduler, blocks = self._scheduler, self.settings.usable_blocks
        usage = 1.0 - scheduler.ledger.pool.num_free / blocks
        return Occupancy(len(scheduler.running), len(scheduler.waiting), usage)

    def stats(self) -> EngineStats:
        """A snapshot; cheap enough for every step."""
        scheduler = self._scheduler
        return EngineStats(
            steps=self._steps,
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            total_blocks=self.settings.usable_blocks,
            free_blocks=scheduler.ledger.pool.num_free,
            preemptions=scheduler.num_preemptions,
            tokens_computed=self._tokens_computed,
            prefix_cache_queries=scheduler.prefix_cache_queries,
            prefix_cache_hits=scheduler.prefix_cache_hits,
            waited_ns=self._accounts.waited_ns,
        )

    def check(self) -> None:
        """Recount every block and queue. Raises `AssertionError` where they disagree."""
        self._scheduler.check()

    def _settle(self, now_ns: int) -> None:
        self._accounts.settle(now_ns, len(self._scheduler.waiting))
        self._scheduler.now_ns = now_ns

    def _end_failed(self, plan: Plan, failed: dict[int, str]) -> list[Output]:
        outputs: list[Output] = []
        for place, why in failed.items():
            work = plan.chunks[place].work
            if work.status is not Status.FINISHED:
                request_id = work.request.request_id
                self.cancel(request_id)
                outputs.append(Output(request_id, [], FinishReason.ERROR, error=why))
        return outputs

    def _schedule_chunks(self, now_ns: int) -> Plan | None:
        """Schedule until there is something to compute.

        A step is empty when a request of lowest priority preempted itself to make room; what it
        gave up serves the next one, so this ends within as many rounds as requests run.
        """
        for _ in range(len(self._scheduler.running) + 1):
            plan = self._scheduler.schedule()
            self._accounts.planned(plan, now_ns)
            if plan.chunks:
                return plan
            if not plan.preempted and self._scheduler.in_flight:
                return None
        raise AssertionError(f"nothing can advance: {self.stats()}; admission let in what does not fit")


def _add_logprobs(outputs: list[Output], plan: Plan, result: StepResult) -> None:
    by_request = {output.request_id: output for output in outputs}
    for place, logprobs in (result.logprobs or {}).items():
        if output := by_request.get(plan.chunks[place].work.request.request_id):
            output.logprobs = [logprobs]
    for place, of_prompt in (result.prompt_logprobs or {}).items():
        if output := by_request.get(plan.chunks[place].work.request.request_id):
            output.prompt_logprobs = of_prompt


def _refuse_what_never_fits(request: Request, settings: Settings) -> None:
    prompt = len(request.prompt_token_ids)
    if not prompt:
        raise BadInput("the prompt is empty", "send at least one token")
    if prompt >= settings.max_model_len:
        raise NeverFits(
            f"the prompt has {prompt} tokens, and max_model_len is {settings.max_model_len}, one of which "
            "must be left for the answer",
            "shorten the prompt, or serve with a larger --max-model-len",
        )
    # The last token of an answer is sampled and never computed, so it needs no room.
    most = min(prompt + request.sampling.max_tokens, settings.max_model_len) - 1
    blocks = -(-most // settings.block_size)
    if blocks > settings.usable_blocks:
        raise NeverFits(
            f"the request needs up to {blocks} KV blocks ({most} tokens), and the engine has "
            f"{settings.usable_blocks} ({settings.usable_blocks * settings.block_size} tokens)",
            "shorten the prompt, lower max_tokens, or serve with more --kv-cache-memory-bytes",
        )
