"""A goal for who set none: from what kind of traffic it is, and how the server does today.

    Features --kind_of--> Kind, why            Kind + baseline --propose_goal--> Goal, why
    Features + Goal + baseline's Grade --warnings_of, highest_load--> what such a workload cannot tell

Limits are then the baseline's own values, so a proposal promises nothing; it says in which direction
better lies, and how much worse anything else may become for it.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from math import inf
from statistics import median

from headrace.core.errors import BadInput
from headrace.core.goal import Aim, Goal
from headrace.core.grade import Grade
from headrace.core.measurement import Measurement
from headrace.core.objective import Metric, Objective, Objectives, of_class
from headrace.tune.grade import percentile_s
from headrace.workload.features import ClassMix, Features

FEW_INSTANTS = 0.05
"""Instants by requests below which they are handed over in batches, not sent by people."""
LONG_PROMPTS = 4096
"""Tokens of the median prompt from which prompts, not answers, decide what a server does."""
FEWEST_TENANTS = 3
LARGEST_TENANT = 0.9
"""Share of the requests from which one tenant is all there is."""
MAY_DOUBLE = 2.0
"""How much longer others may wait for one class's sake."""
ENOUGH_BEYOND = 5
"""Requests beyond a percentile, fewer than which make it a matter of single requests."""
UNSEEN, MOST_UNSEEN = 1.1, 1.5
"""Times what a server carries that a workload may bring unseen: more is warned of, or not tried at all."""


class Kind(StrEnum):
    """What sort of traffic it is."""

    INTERACTIVE = "interactive"
    HIGH_THROUGHPUT = "high-throughput"
    LONG_CONTEXT = "long-context"
    MULTI_TENANT = "multi-tenant"


def kind_of(features: Features) -> tuple[Kind, str]:
    """With the reason, in one clause with its numbers."""
    timing, tenants = features.timing, features.tenants
    if timing.rate == 0 or timing.instants <= FEW_INSTANTS * features.requests:
        why = f"{features.requests:,} requests come at {timing.instants:,} instants, as batches do"
        return Kind.HIGH_THROUGHPUT, why
    if tenants is not None and tenants.count >= FEWEST_TENANTS and tenants.top_share < LARGEST_TENANT:
        why = f"{tenants.count:,} tenants share it, the largest with {tenants.top_share:.0%} of the requests"
        return Kind.MULTI_TENANT, why
    if features.prompt.p50 >= LONG_PROMPTS:
        return Kind.LONG_CONTEXT, f"half of the prompts have {features.prompt.p50:,.0f} tokens or more"
    pace = f"requests come one by one, {timing.rate:.3g} a second"
    return Kind.INTERACTIVE, f"{pace}, half of their prompts below {features.prompt.p50:,.0f} tokens"


def propose_goal(
    features: Features, baseline: Sequence[Measurement], aim: Aim | None = None
) -> tuple[Goal, str]:
    """`aim`: what a person has asked for already. Raises `BadInput` where no class got an answer."""
    kind, why = kind_of(features)
    first = _most_urgent(features)
    match kind:
        case Kind.HIGH_THROUGHPUT:
            objectives = _as_before(features, baseline, Metric.E2E, MAY_DOUBLE)
            meant, usual = "more of them done by the time that each takes at most twice as long", Aim.CAPACITY
        case Kind.LONG_CONTEXT:
            objectives = _as_before(features, baseline, Metric.TTFT, 1.0)
            meant, usual = "more of them with first tokens as soon as now", Aim.CAPACITY
        case Kind.MULTI_TENANT:
            objectives = _as_before(features, baseline, Metric.TTFT, 1.0)
            meant, usual = "shorter waits for the class that gains least", Aim.LATENCY
        case Kind.INTERACTIVE:
            objectives = _first_of_all(features, baseline, first)
            meant, usual = (
                f"a shorter wait for the first token of {first!r}, the shortest prompts",
                Aim.LATENCY,
            )
    return Goal(aim or usual, objectives, is_relative=True), f"{kind}: {why}; so {meant}"


def relative_to(baseline: Sequence[Measurement], request_class: str, others: Sequence[str] = ()) -> Goal:
    """P95 TTFT of one class, against its own now; of `others` it may double. Raises `BadInput`."""
    objectives = [_objective(baseline, request_class, Metric.TTFT, 1.0)]
    objectives += [_objective(baseline, each, Metric.TTFT, MAY_DOUBLE) for each in others]
    return Goal(Aim.LATENCY, tuple(objectives), is_relative=True)


def warnings_of(features: Features, goal: Goal, baseline: Grade) -> tuple[str, ...]:
    """Where a percentile rests on fewer requests than make one, and where the workload ends too soon."""
    few = _warnings(features.classes, goal.objectives, features.requests)
    return (*few, *_brevity(features, goal, baseline))


def highest_load(features: Features, baseline: Grade) -> float:
    """Beyond it a server could be given half as much again as it carries, and keep every limit till the end:
    under `f` times what it carries, waits have grown by 1 - 1/f of the workload's time. Never below 1.
    """
    spare_s = _spare_s(baseline)
    return inf if spare_s == 0 else max(1.0, features.timing.duration_s * (1 - 1 / MOST_UNSEEN) / spare_s)


def _brevity(features: Features, goal: Goal, baseline: Grade) -> Iterator[str]:
    lasts_s, spare_s = features.timing.duration_s, _spare_s(baseline)
    unseen = inf if spare_s >= lasts_s else 1 / (1 - spare_s / lasts_s)
    if unseen <= UNSEEN or (goal.is_relative and not goal.seeks_capacity):
        return
    times = "any load" if unseen == inf else f"{unseen:.1f} times what the server carries"
    wanted_s = spare_s / (1 - 1 / UNSEEN)
    yield (
        f"the workload lasts {lasts_s:.0f} s and a wait may grow by {spare_s:.1f} s before it misses its "
        f"limit, so {times} would pass unseen; {wanted_s:.0f} s of it (--duration) would show it"
    )


def _spare_s(baseline: Grade) -> float:
    """The longest that a wait may still grow until it misses its limit: under some settings the queue is only
    of those who may wait longest. Gaps between tokens do not grow with a queue.
    """
    waits = (each for each in baseline.attained if each.objective.metric in (Metric.TTFT, Metric.E2E))
    return max((each.objective.limit_s - each.value_s for each in waits if each.ratio < 1), default=0.0)


def _warnings(classes: Sequence[ClassMix], objectives: Objectives, requests: int) -> Iterator[str]:
    for mix in classes:
        count = round(mix.share * requests)
        for objective in of_class(objectives, mix.name):
            beyond = count * (1 - objective.percentile / 100)
            if objective.metric is not Metric.ITL and beyond < ENOUGH_BEYOND:
                wanted = round(ENOUGH_BEYOND / (1 - objective.percentile / 100))
                yield (
                    f"p{objective.percentile:g} {objective.metric} of {mix.name!r} rests on {count:,} "
                    f"requests, {beyond:.1f} of them beyond it; {wanted:,} would make it a percentile"
                )


def _most_urgent(features: Features) -> str:
    """The class with the shortest prompts: a wait is longest beside what it asks for."""
    return min(features.classes, key=lambda mix: mix.prompt.p50).name


def _first_of_all(features: Features, baseline: Sequence[Measurement], first: str) -> Objectives:
    others = [mix.name for mix in features.classes if mix.name != first]
    return relative_to(baseline, first, others).objectives


def _as_before(
    features: Features, baseline: Sequence[Measurement], metric: Metric, times: float
) -> Objectives:
    return tuple(_objective(baseline, mix.name, metric, times) for mix in features.classes)


def _objective(
    baseline: Sequence[Measurement], request_class: str, metric: Metric, times: float
) -> Objective:
    asked = Objective(request_class, metric, 95.0, 1.0)
    values = [
        percentile_s(asked, results)
        for run in baseline
        if (results := [each for each in run.measured if each.request_class == request_class])
    ]
    finite = [value for value in values if 0 < value < inf]
    if not finite:
        raise BadInput(
            f"no run of the baseline tells the p95 {metric} of {request_class!r}",
            "set a limit with --slo, or send more requests of that class",
        )
    return Objective(request_class, metric, 95.0, times * median(finite))
