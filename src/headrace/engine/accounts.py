"""Keeps each request's bill until its first token.

    submitted --next plan--> queued --admitted--> in steps --first token--> Bill
                               ^----preempted--------'

All time between two instants that the engine is told is charged to whatever the plan in force
says. The queue is not walked for that: everyone in it waits for the same budget, so one clock
per cause runs for the whole queue, and a request takes the difference between joining and leaving.
Whole nanoseconds throughout, so nothing is lost to rounding.
"""

from headrace.core.bill import CAUSES, Bill, Cause
from headrace.core.output import FirstToken
from headrace.core.plan import Chunk, Plan, Status, Work
from headrace.core.request import Request

_PLACE = {cause: place for place, cause in enumerate(CAUSES)}
_FRONT_END = _PLACE[Cause.FRONT_END]
_STEP_IN_FLIGHT = _PLACE[Cause.STEP_IN_FLIGHT]
_CAPPED = _PLACE[Cause.LONG_PREFILL_CAP]
_RECOMPUTE = _PLACE[Cause.RECOMPUTE]
_SHARED = _PLACE[Cause.SHARED_STEPS]
_OWN = _PLACE[Cause.OWN_PREFILL]


class _Account:
    """One request without a first token. Changed every step, so plain and slotted."""

    __slots__ = (
        "cached_tokens",
        "computed_tokens",
        "others_place",
        "own_tokens",
        "parts_ns",
        "queue_clock_ns",
        "reached_tokens",
        "recomputed_tokens",
        "request",
        "scheduled_ns",
    )

    def __init__(self, request: Request) -> None:
        self.request = request
        self.parts_ns = [0] * len(CAUSES)
        self.parts_ns[_FRONT_END] = request.handed_ns - request.arrived_ns
        self.queue_clock_ns: list[int] = []  # the queue's clocks when it joined
        self.scheduled_ns: int | None = None
        self.cached_tokens = 0  # found in the prefix cache at first admission
        self.computed_tokens = 0
        self.reached_tokens = 0  # the furthest it had got before a preemption
        # What the plan in force does for it:
        self.own_tokens = 0
        self.recomputed_tokens = 0
        self.others_place = _SHARED  # where the others' share of the step goes


class Accounts:
    """The bills of all requests that have no token yet."""

    def __init__(self) -> None:
        self._new: dict[str, _Account] = {}  # came since the last plan
        self._queued: dict[str, _Account] = {}
        self._recalled: dict[str, _Account] = {}  # queued again: a step in flight may bring its first token
        self._in_steps: dict[str, _Account] = {}
        self._queue_clock_ns = [0] * len(CAUSES)
        self._queue_place: int | None = None
        self._starved: list[Work] = []
        self._starved_place = _SHARED
        self._waited_ns = [0] * len(CAUSES)
        self._step_tokens = 0
        self._settled_ns = 0

    def open(self, request: Request) -> None:
        self._new[request.request_id] = _Account(request)

    def drop(self, request_id: str) -> None:
        """The request was cancelled. Nothing happens if its bill was closed before."""
        for accounts in (self._new, self._queued, self._recalled, self._in_steps):
            accounts.pop(request_id, None)

    @property
    def waited_ns(self) -> tuple[int, ...]:
        """What all requests together have waited, by cause, those that wait now included."""
        return tuple(self._waited_ns)

    def settle(self, now_ns: int, num_waiting: int) -> None:
        """Charge the time since the last call to what the plan in force says.

        `num_waiting` are in the queue, newcomers included: what those wait is no plan's doing yet.
        """
        elapsed = now_ns - self._settled_ns
        self._settled_ns = now_ns
        if self._queue_place is not None:
            self._queue_clock_ns[self._queue_place] += elapsed
            self._waited_ns[self._queue_place] += elapsed * (num_waiting - len(self._new))
        if self._starved:
            still = sum(work.status is Status.RUNNING for work in self._starved)
            self._waited_ns[self._starved_place] += elapsed * still
        for account in self._in_steps.values():
            parts = account.parts_ns
            own = elapsed * account.own_tokens // self._step_tokens if account.own_tokens else 0
            again = own * account.recomputed_tokens // account.own_tokens if own else 0
            parts[_OWN] += own - again
            parts[_RECOMPUTE] += again
            parts[account.others_place] += elapsed - own

    def planned(self, plan: Plan, now_ns: int) -> None:
        """From `now_ns` on `plan` is in force. Time up to `now_ns` must be settled."""
        self._queue_newcomers(now_ns)
        for work in plan.preempted:
            self._preempted(work.request.request_id)
        for work in plan.admitted:
            self._admitted(work, now_ns)
        self._queue_place = None if plan.queue_stopped_by is None else _PLACE[plan.queue_stopped_by]
        self._starved = plan.starved
        if plan.starved_by is not None:
            self._starved_place = _PLACE[plan.starved_by]
        self._step_tokens = plan.num_scheduled_tokens
        if self._in_steps:
            for account in self._in_steps.values():
                account.own_tokens = account.recomputed_tokens = 0
                account.others_place = _SHARED if plan.starved_by is None else _PLACE[plan.starved_by]
            for chunk in plan.chunks:
                work = chunk.work
                if work.num_tokens > work.num_prompt_tokens:
                    continue  # it has its first token: most chunks, so the bills are not asked
                if account := self._in_steps.get(work.request.request_id):
                    _take_part(account, chunk, is_capped=work.arrival in plan.capped)

    def planned_quiet(self) -> None:
        """Until the next call of `planned` every plan is a quiet one: whoever runs gets its token.

        Why the queue stands does not change meanwhile.
        """
        self._starved = []

    def close(self, request_id: str, now_ns: int) -> FirstToken | None:
        """The bill at the first token, time up to `now_ns` settled; None if it was closed before."""
        account = self._in_steps.pop(request_id, None) or self._leave_queue(self._recalled, request_id)
        if account is None:
            return None
        assert account.scheduled_ns is not None, f"{request_id} has a token without having been scheduled"
        return FirstToken(
            bill=Bill(tuple(account.parts_ns)),
            queued_ns=account.request.handed_ns,
            scheduled_ns=account.scheduled_ns,
            first_token_ns=now_ns,
            num_prompt_tokens=len(account.request.prompt_token_ids),
            num_cached_tokens=account.cached_tokens,
        )

    @property
    def await_tokens(self) -> bool:
        """Some bill may close with the next step that comes back."""
        return bool(self._in_steps or self._recalled)

    @property
    def are_open(self) -> bool:
        """Some bill changes with the next plan; those of the queue only run on."""
        return bool(self._in_steps or self._new)

    def _queue_newcomers(self, now_ns: int) -> None:
        for request_id, account in self._new.items():
            account.parts_ns[_STEP_IN_FLIGHT] = now_ns - account.request.handed_ns
            account.queue_clock_ns = self._queue_clock_ns.copy()
            self._queued[request_id] = account
        self._new.clear()

    def _preempted(self, request_id: str) -> None:
        if account := self._in_steps.pop(request_id, None):
            account.reached_tokens = max(account.reached_tokens, account.computed_tokens)
            account.queue_clock_ns = self._queue_clock_ns.copy()
            self._recalled[request_id] = account

    def _admitted(self, work: Work, now_ns: int) -> None:
        request_id = work.request.request_id
        account = self._leave_queue(self._queued, request_id) or self._leave_queue(self._recalled, request_id)
        if account is not None:
            if account.scheduled_ns is None:
                account.scheduled_ns = now_ns
                account.cached_tokens = work.num_cached_tokens
            self._in_steps[request_id] = account

    def _leave_queue(self, queue: dict[str, _Account], request_id: str) -> _Account | None:
        account = queue.pop(request_id, None)
        if account is not None:
            for place, joined in enumerate(account.queue_clock_ns):
                account.parts_ns[place] += self._queue_clock_ns[place] - joined
        return account


def _take_part(account: _Account, chunk: Chunk, *, is_capped: bool) -> None:
    end = chunk.start + chunk.tokens
    account.computed_tokens = end
    account.own_tokens = chunk.tokens
    account.recomputed_tokens = max(0, min(end, account.reached_tokens) - chunk.start)
    account.others_place = _CAPPED if is_capped else _SHARED
