"""What serving adds to steps: asked of a running server by a client beside it.

    apart(...)   requests one after another, of several lengths  -> FrontEnd: the way in and back
    crowds(...)  n requests at once, for several n               -> nanoseconds by step, by request in it

The process that speaks HTTP and the client take turns with the engine on the same cores, so every
token that is sent makes the steps a little longer. That is part of what a step costs here.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from headrace.core.bill import Cause
from headrace.core.cost import FrontEnd, StepShape
from headrace.core.errors import TargetFailed
from headrace.core.exchange import Arrival, Ask
from headrace.core.timeline import Failure, Timeline
from headrace.executor.cost import FittedCost, nnls
from headrace.workload.words import WORDS

Results = Sequence[Timeline | Failure]
Send = Callable[[Sequence[Arrival]], Results]
"""Carries out one run against the server."""

APART_WORDS = (8, 60, 250, 700)
APART_TOKENS = 4
APART_EVERY_S = 0.9
COMPANY, COMPANY_TOKENS = 2, 300
"""Who decodes meanwhile: a machine at rest brings requests in and tokens back in half the time."""
_COMPANY = "company"
CROWDS = (1, 4, 8, 16, 32)
CROWD_WORDS = 12
CROWD_TOKENS = 40
_EDGE = 3
"""Tokens at both ends of a crowd's common time that are left out: a step may have started with fewer."""


@dataclass(frozen=True, slots=True)
class Added:
    """What serving adds to a step that decodes, in nanoseconds."""

    step_ns: float
    seq_ns: float


def apart(repeats: int, seed: int) -> tuple[Arrival, ...]:
    """Each length `repeats` times, beside a few that decode. Prompts differ from the first word."""
    company = tuple(
        Arrival(0.0, _ask(f"company-{number}", CROWD_WORDS, COMPANY_TOKENS, seed + 500 + number, _COMPANY))
        for number in range(COMPANY)
    )
    lengths = [words for _ in range(repeats) for words in APART_WORDS]
    return company + tuple(
        Arrival((number + 1) * APART_EVERY_S, _ask(f"apart-{number}", words, APART_TOKENS, seed + number))
        for number, words in enumerate(lengths)
    )


def crowd(
    count: int, seed: int, *, words: int = CROWD_WORDS, tokens: int = CROWD_TOKENS
) -> tuple[Arrival, ...]:
    """So many at once."""
    return tuple(
        Arrival(0.0, _ask(f"crowd-{number}", words, tokens, seed + number)) for number in range(count)
    )


def front_end_of(results: Results) -> FrontEnd:
    """From requests that came apart. Raises `TargetFailed` where one failed or the server keeps no bill."""
    timelines = [timeline for timeline in whole(results) if timeline.request_class != _COMPANY]
    bills = [timeline.bill_s for timeline in timelines if timeline.bill_s is not None]
    if len(bills) < len(timelines):
        raise TargetFailed("the server keeps no bills, so what it does outside its engine is not known")
    tokens = np.array([timeline.prompt_tokens for timeline in timelines], dtype=np.float64)
    inward_s = np.array([bill[Cause.FRONT_END] for bill in bills])
    fixed_s, by_token_s = nnls(np.column_stack([np.ones_like(tokens), tokens]), inward_s)
    outside_s = [
        timeline.ttft_s - sum(bill.values()) for timeline, bill in zip(timelines, bills, strict=True)
    ]
    return FrontEnd(int(fixed_s * 1e9), float(by_token_s) * 1e9, max(0, int(median(outside_s) * 1e9)))


def step_ns_of(results: Results) -> tuple[StepShape, float]:
    """Of a crowd: the mean step while all of them decoded, and its shape."""
    timelines = whole(results)
    begin_at = max(timeline.token_at[0] for timeline in timelines)
    end_at = min(timeline.token_at[-1] for timeline in timelines)
    steps = [
        [at for at in timeline.token_at if begin_at <= at <= end_at][_EDGE:-_EDGE] for timeline in timelines
    ]
    means = [(ats[-1] - ats[0]) / (len(ats) - 1) for ats in steps if len(ats) > 1]
    if not means:
        raise TargetFailed(
            f"{len(timelines)} requests never decoded together", "give the server more slots and KV blocks"
        )
    # Halfway through that time each attends to its prompt and the tokens it has by then.
    context = sum(
        timeline.prompt_tokens
        + (bisect_left(timeline.token_at, begin_at) + bisect_right(timeline.token_at, end_at)) // 2
        for timeline in timelines
    )
    count = len(timelines)
    return StepShape(count, context, sampled_seqs=count), 1e9 * median(means)


def added_by_serving(cost: FittedCost, steps: Sequence[tuple[StepShape, float]]) -> Added:
    """What of the served steps' time `cost`, made of bare steps, does not explain; nothing below 0."""
    beyond = np.array([ns - cost.step_ns(shape) for shape, ns in steps])
    weights = 1.0 / np.array([ns for _, ns in steps])
    table = np.array([[1.0, shape.decode_seqs] for shape, _ in steps])
    step_ns, seq_ns = nnls(table * weights[:, None], beyond * weights)
    return Added(float(step_ns), float(seq_ns))


def served(cost: FittedCost, added: Added, front_end: FrontEnd) -> FittedCost:
    """`cost` with what serving adds. A token costs its sending whether it ends a prompt or not."""
    extra: Mapping[str, float] = {"step": added.step_ns, "sampled_seqs": added.seq_ns}
    ns = dict(cost.ns) | {name: cost.ns.get(name, 0.0) + more for name, more in extra.items()}
    return replace(cost, ns={name: rate for name, rate in ns.items() if rate > 0}, front_end=front_end)


def whole(results: Results) -> list[Timeline]:
    """All of them, or `TargetFailed` with the first failure's reason."""
    for result in results:
        if isinstance(result, Failure):
            raise TargetFailed(f"a request of the calibration failed: {result.reason}")
    return [result for result in results if isinstance(result, Timeline)]


def _ask(name: str, words: int, tokens: int, seed: int, request_class: str = "calibration") -> Ask:
    drawn = np.random.default_rng(seed).integers(0, len(WORDS), words)
    return Ask(name, request_class, " ".join(WORDS[index] for index in drawn), tokens)
