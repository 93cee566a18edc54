"""One engine on a virtual clock.

    submit(life) --way in, inbox-->  settle(now): finish the step that ended, let the inbox in --> who left
                                     go_on(now): skip what is quiet, plan, run --> when to settle next

A request that comes while a step runs is seen when it ends, as in vLLM. With `async_scheduling` the
next step is planned while one runs, so it is seen one step later still.
"""

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.core.bill import Bill
from headrace.core.cost import CostModel, FrontEnd, shape_of
from headrace.core.errors import HeadraceError
from headrace.core.plan import Plan, Work
from headrace.core.request import Request
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.gateway.router import Asked, Outstanding
from headrace.sim.budgets import BudgetSeries
from headrace.sim.front_end import WayIn
from headrace.sim.prefixes import TracePrefixes
from headrace.workload.trace import TraceRequest

WORTH_SKIPPING = 2


@dataclass(slots=True)
class Life:
    """What became of one request. Its tokens came at the ends of runs of steps: [first step, how many]."""

    request: Request
    traced: TraceRequest
    asked: Asked
    token_steps: list[list[int]]
    bill: Bill | None = None
    cached_tokens: int = 0
    refused: str = ""
    finished: bool = False


class Replica:
    """Drives one engine; `settle` it at the instants it names, then let it `go_on`."""

    def __init__(
        self, settings: Settings, cost: CostModel, series: BudgetSeries, front_end: FrontEnd | None
    ) -> None:
        self._prefixes = TracePrefixes(settings.block_size)
        self.engine = Engine(settings, self._prefixes)
        self.step_ends_ns = array("q")
        self.outstanding = Outstanding()
        self.way_in = WayIn(front_end)
        self._cost = cost
        self._series = series
        self._depth = settings.steps_in_flight
        self._inbox: deque[Life] = deque()  # in the order of `handed_ns`
        self._lives: dict[str, Life] = {}
        self._runs: dict[int, list[int]] = {}  # by `Work.arrival`: the run of steps that it is in
        self._planned: deque[Plan] = deque()
        self._step_is_running = False
        self._tokens_before = 0  # of the last step
        self._left: list[Life] = []

    def submit(self, life: Life) -> None:
        """Taken in at the first `settle` after it was handed to the engine."""
        self._inbox.append(life)
        self.outstanding.add(life.asked)

    def settle(self, now_ns: int) -> Sequence[Life]:
        """Who has been answered or refused. Arrivals up to `now_ns` were submitted."""
        self._left = []
        if self._step_is_running:
            self._finish(now_ns)
        self._take_out()
        self._take_in(now_ns)
        return self._left

    def go_on(self, now_ns: int, next_arrival_ns: int | None) -> int | None:
        """The instant at which to settle next; None when idle."""
        if self._inbox and (next_arrival_ns is None or self._inbox[0].request.handed_ns < next_arrival_ns):
            next_arrival_ns = self._inbox[0].request.handed_ns
        woken_ns = self._skip(now_ns, next_arrival_ns)
        if woken_ns is not None:
            return woken_ns
        while len(self._planned) < self._depth and (plan := self.engine.plan(now_ns)) is not None:
            self._planned.append(plan)
        return self._run(now_ns)

    def _run(self, now_ns: int) -> int | None:
        self._step_is_running = bool(self._planned)
        if not self._planned:
            return self._inbox[0].request.handed_ns if self._inbox else None
        plan = self._planned[0]
        shape = shape_of(plan)
        shape.resized = plan.num_scheduled_tokens != self._tokens_before
        self._tokens_before = plan.num_scheduled_tokens
        end_ns = now_ns + self._cost.step_ns(shape)
        self._series.add(now_ns, end_ns, plan.num_scheduled_tokens, self.engine.occupancy())
        return end_ns

    def _finish(self, now_ns: int) -> None:
        self._step_is_running = False
        step = len(self.step_ends_ns)
        self.step_ends_ns.append(now_ns)
        answered = self.engine.finish_undrawn(self._planned.popleft(), now_ns)
        for work, first in answered.firsts:
            life = self._lives[work.request.request_id]
            life.bill = first.bill
            life.cached_tokens = first.num_cached_tokens
        self._note(answered.works, step, 1)

    def _note(self, works: Sequence[Work], step: int, steps: int) -> None:
        """Each of `works` got a token in each of `steps` steps, the first of which is `step`."""
        runs = self._runs
        for work in works:
            run = runs.get(work.arrival)
            if run is not None and run[0] + run[1] == step:
                run[1] += steps
            else:
                runs[work.arrival] = run = [step, steps]
                self._lives[work.request.request_id].token_steps.append(run)

    def _take_out(self) -> None:
        """At the instant at which they end: a router counts on it, and a stretch is skipped before."""
        for work in self.engine.take_ended():
            request_id = work.request.request_id
            self._lives[request_id].finished = True
            del self._runs[work.arrival]
            self._leave(request_id)

    def _leave(self, request_id: str) -> None:
        life = self._lives.pop(request_id)
        self._prefixes.forget(request_id)
        self.outstanding.remove(life.asked)
        self._left.append(life)

    def _take_in(self, now_ns: int) -> None:
        inbox = self._inbox
        while inbox and inbox[0].request.handed_ns <= now_ns:
            life = inbox.popleft()
            request_id = life.request.request_id
            self._lives[request_id] = life
            self._prefixes.know(request_id, life.traced)
            try:
                self.engine.submit(life.request, now_ns)
            except HeadraceError as error:
                life.refused = str(error)
                self._leave(request_id)

    def _skip(self, now_ns: int, next_arrival_ns: int | None) -> int | None:
        """Take the quiet steps that begin before the next arrival; None if there are hardly any."""
        steps = self.engine.quiet_steps()
        if steps < WORTH_SKIPPING:
            return None
        shape = self.engine.decode_shape()
        if self._planned:  # the step in flight runs first; those planned behind it have one more token each
            shape.decode_context_tokens -= shape.decode_seqs
        shape.resized = shape.decode_seqs != self._tokens_before
        ends = self.step_ends_ns
        first = len(ends)
        at_ns = now_ns
        while len(ends) - first < steps and (next_arrival_ns is None or at_ns < next_arrival_ns):
            at_ns += self._cost.step_ns(shape)
            ends.append(at_ns)
            shape.decode_context_tokens += shape.decode_seqs
            shape.resized = False
        taken = len(ends) - first
        if not taken:
            return None
        self._tokens_before = shape.decode_seqs
        self._series.add(now_ns, at_ns, taken * shape.decode_seqs, self.engine.occupancy())
        self._note(self.engine.running, first, taken)
        self.engine.skip(taken, at_ns)
        return at_ns
