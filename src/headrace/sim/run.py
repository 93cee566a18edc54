"""Runs a trace through one or more replicas in virtual time.

    trace + settings + cost model --one heap of instants--> lives --> Measurement, budgets over time

Deterministic to the byte: arrivals come before steps that end at the same instant, replicas in
their order, requests in the trace's. Nothing is random and no clock is read.

A turn of a session that says how long it thinks waits for the answer before it, as `measure` sends it; its
instant in the trace is then not looked at. All others come when they are due, whatever became of the rest.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headrace.core.cost import CostModel, FrontEnd
from headrace.core.errors import BadInput
from headrace.core.request import Request, SamplingParams
from headrace.core.settings import Settings
from headrace.gateway.router import Asked, LeastRequests, Router
from headrace.sim.budgets import BudgetSample, BudgetSeries
from headrace.sim.lost import Seen
from headrace.sim.replica import Life, Replica
from headrace.workload.trace import TraceRequest, turns_before

OnProgress = Callable[[int, float], None]
"""Told now and then how many requests have arrived, and the virtual time in seconds."""

PROGRESS_EVERY = 2048
"""Events between two calls: well under a second's work."""

IsEnough = Callable[[Seen], bool]
"""Asked now and then whether the rest of a run would tell nothing new."""

LOOKS = 24
"""Of them at a run, evenly over the comings and goings of its requests."""


@dataclass(frozen=True, slots=True)
class Watch:
    """How a run is looked at. Changes nothing in it."""

    bin_s: float = 1.0
    """Of the budgets over time."""
    on_progress: OnProgress | None = None


@dataclass(frozen=True, slots=True)
class Fleet:
    """What stands behind one address. Every replica has the same settings, cost and front end."""

    replicas: int = 1
    make_router: Callable[[], Router] = LeastRequests
    front_end: FrontEnd | None = None
    """None: what lies between client and engine takes no time."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """What came out: every request of the trace once, in its order."""

    lives: tuple[Life, ...]
    replica_of: tuple[int, ...]
    step_ends_ns: tuple[Sequence[int], ...]
    """Of each replica: when its steps ended."""
    budgets: tuple[tuple[BudgetSample, ...], ...]
    """Of each replica, in bins of `bin_s` seconds."""
    bin_s: float
    preemptions: int
    steps: int
    answer_ns: int = 0
    """From the end of a step to the client's having its token."""


ALONE = Fleet()
WATCH = Watch()


@dataclass(slots=True)
class _Run:
    trace: Sequence[TraceRequest]
    replicas: list[Replica]
    router: Router
    on_progress: OnProgress | None
    answer_ns: int
    is_enough: IsEnough | None = None
    lives: dict[int, Life] = field(default_factory=dict[int, Life])
    replica_of: dict[int, int] = field(default_factory=dict[int, int])
    due: list[tuple[int, int]] = field(
        default_factory=list[tuple[int, int]]
    )  # heap: (ns, place in the trace)
    turns: dict[int, list[int]] = field(default_factory=dict[int, list[int]])  # by whose answer they wait for
    wakes: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])  # heap: (ns, replica)
    sleeping: set[int] = field(default_factory=set[int])
    ended: int = 0
    look_at: int = 0  # so many have come and gone, at the next look


def simulate(
    trace: Sequence[TraceRequest],
    settings: Settings,
    cost: CostModel,
    *,
    fleet: Fleet = ALONE,
    watch: Watch = WATCH,
) -> Simulated:
    """Raises `BadInput` for a trace out of order or without requests, or fewer than one replica."""
    simulated = simulate_unless(None, trace, settings, cost, fleet=fleet, watch=watch)
    assert simulated is not None, "a run that nobody stops comes to its end"
    return simulated


def simulate_unless(
    is_enough: IsEnough | None,
    trace: Sequence[TraceRequest],
    settings: Settings,
    cost: CostModel,
    *,
    fleet: Fleet = ALONE,
    watch: Watch = WATCH,
) -> Simulated | None:
    """None where it was enough before the end."""
    _refuse_nonsense(trace, fleet.replicas)
    series = [BudgetSeries(watch.bin_s) for _ in range(fleet.replicas)]
    replicas = [Replica(settings, cost, each, fleet.front_end) for each in series]
    answer_ns = 0 if fleet.front_end is None else fleet.front_end.answer_ns
    run = _Run(trace, replicas, fleet.make_router(), watch.on_progress, answer_ns, is_enough)
    run.sleeping.update(range(fleet.replicas))
    if not _play(run):
        return None
    stats = [replica.engine.stats() for replica in run.replicas]
    return Simulated(
        lives=tuple(run.lives[place] for place in range(len(trace))),
        replica_of=tuple(run.replica_of[place] for place in range(len(trace))),
        step_ends_ns=tuple(replica.step_ends_ns for replica in run.replicas),
        budgets=tuple(each.samples() for each in series),
        bin_s=watch.bin_s,
        preemptions=sum(each.preemptions for each in stats),
        steps=sum(each.steps for each in stats),
        answer_ns=answer_ns,
    )


def _play(run: _Run) -> bool:
    """Whether it came to its end."""
    _expect(run)
    events = 0
    while run.due or run.wakes:
        if run.due and (not run.wakes or run.due[0][0] <= run.wakes[0][0]):
            due_ns, place = heapq.heappop(run.due)
            index, handed_ns = _arrive(run, place, due_ns)
            if index in run.sleeping:
                run.sleeping.discard(index)
                heapq.heappush(run.wakes, (handed_ns, index))
            continue
        now_ns, index = heapq.heappop(run.wakes)
        events += 1
        if run.on_progress is not None and events % PROGRESS_EVERY == 0:
            run.on_progress(len(run.lives), now_ns / 1e9)
        for life in run.replicas[index].settle(now_ns):
            run.ended += 1
            _follow(run, life, now_ns)
        if run.is_enough is not None and _is_time_to_look(run) and run.is_enough(_seen(run, now_ns)):
            return False
        woken_ns = run.replicas[index].go_on(now_ns, _next_arrival_ns(run))
        if woken_ns is None:
            run.sleeping.add(index)
        else:
            heapq.heappush(run.wakes, (woken_ns, index))
    return True


def _is_time_to_look(run: _Run) -> bool:
    if len(run.lives) + run.ended < run.look_at:
        return False
    run.look_at += max(1, 2 * len(run.trace) // LOOKS)
    return True


def _seen(run: _Run, now_ns: int) -> Seen:
    return Seen(run.lives, run.replica_of, [replica.step_ends_ns for replica in run.replicas], now_ns)


def _expect(run: _Run) -> None:
    for place, before in enumerate(turns_before(run.trace)):
        if before is None:
            run.due.append((round(run.trace[place].due_at * 1e9), place))  # in order, so a heap
        else:
            run.turns.setdefault(before, []).append(place)


def _follow(run: _Run, life: Life, now_ns: int) -> None:
    """The turns that waited for this answer, well or not, come when its client has thought about it."""
    for place in run.turns.pop(int(life.request.request_id), ()):
        think_ns = round((run.trace[place].think_s or 0.0) * 1e9)
        heapq.heappush(run.due, (now_ns + run.answer_ns + think_ns, place))


def _next_arrival_ns(run: _Run) -> int | None:
    """The earliest that may come, for a replica that takes its steps up to there at once: where turns wait,
    another replica's next event may let one come.
    """
    nexts = [run.due[0][0]] if run.due else []
    if run.turns and run.wakes:
        nexts.append(run.wakes[0][0])
    return min(nexts, default=None)


def _arrive(run: _Run, number: int, at_ns: int) -> tuple[int, int]:
    """Which replica gets it, and when that replica's engine has it."""
    traced = run.trace[number]
    asked = Asked(traced.prompt_tokens, _beginning(traced))
    index = run.router.choose(asked, [replica.outstanding for replica in run.replicas])
    replica = run.replicas[index]
    request = Request(
        request_id=str(number),
        prompt_token_ids=_some_tokens(traced.prompt_tokens),
        sampling=SamplingParams(max_tokens=traced.output_tokens),
        arrived_ns=at_ns,
        handed_ns=replica.way_in.handed_ns(traced.prompt_tokens, at_ns),
        priority=traced.priority,
        request_class=traced.request_class,
    )
    life = Life(request, traced, asked, [])
    run.lives[number] = life
    run.replica_of[number] = index
    replica.submit(life)
    return index, request.handed_ns


BEGINNING_TOKENS = 1024
"""Prompts that agree so far count as beginning alike. Less is often a system prompt that all share."""


def _beginning(traced: TraceRequest) -> bytes:
    if not traced.prefix_ids:
        return b""
    ids = traced.prefix_ids[: -(-BEGINNING_TOKENS // traced.prefix_block_tokens)]
    return ",".join(map(str, ids)).encode()


_ZEROS = (0,) * 4096


def _some_tokens(count: int) -> tuple[int, ...]:
    """Nobody looks at the tokens of a simulated prompt, only at how many there are."""
    return _ZEROS[:count] if count <= len(_ZEROS) else (0,) * count


def _refuse_nonsense(trace: Sequence[TraceRequest], replicas: int) -> None:
    if replicas < 1:
        raise BadInput(f"{replicas} replicas; at least one is needed")
    if not trace:
        raise BadInput("the workload has no requests")
    before = 0.0
    for number, traced in enumerate(trace):
        if not traced.due_at >= before:
            raise BadInput(
                f"request {number} is due at {traced.due_at} s, after one due at {before} s",
                "sort the trace by time",
            )
        if traced.prompt_tokens < 1 or traced.output_tokens < 1:
            raise BadInput(
                f"request {number} has {traced.prompt_tokens} prompt tokens and {traced.output_tokens} "
                "output tokens; each must be at least 1"
            )
        before = traced.due_at
