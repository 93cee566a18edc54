"""A server that is a formula, for reports to tell of.

Steps of `max_num_batched_tokens` tokens take their time; a short request waits for the step that runs and for
the long prompts before it, unless `long_prefill_token_threshold` leaves it room. So smaller steps help until
their fixed cost eats the throughput.
"""

from itertools import pairwise
from math import exp

import numpy as np

from headrace.core.bill import CAUSES, Cause
from headrace.core.conclusion import (
    Curve,
    CurvePoint,
    Explanation,
    FrontierPoint,
    ObviousMove,
    Predicted,
    Value,
)
from headrace.core.goal import Aim, Goal
from headrace.core.grade import Attained, ClassGrade, Grade
from headrace.core.measurement import Measurement
from headrace.core.objective import parse_objectives
from headrace.core.ports import Overrides
from headrace.core.trial import Purpose, Run
from headrace.workload.columns import Columns
from headrace.workload.features import Features, describe
from tests.measure.samples import timeline

TOKENS, CAP, SEQS = "max_num_batched_tokens", "long_prefill_token_threshold", "max_num_seqs"
START: Overrides = {TOKENS: 2048, SEQS: 128, CAP: 0, "max_model_len": 8192, "kv_cache_memory_bytes": 2**30}
BEST: Overrides = {TOKENS: 512, CAP: 256}
SLO = parse_objectives("short: p95 ttft < 500ms, p95 itl < 120ms; long: p95 ttft < 8s")
LATENCY, CAPACITY = Goal(Aim.LATENCY, SLO), Goal(Aim.CAPACITY, SLO)
COST = Goal(Aim.COST, SLO, price_per_hour=2.5)
NOISE = (0.03, -0.02, 0.05, 0.01, -0.04, 0.02, 0.0, -0.01, 0.04, -0.03)
OUT_OF_MEMORY = "the server ended before it was ready: out of memory"


def graded(overrides: Overrides, load: float = 1.0, noise: float = 0.0, *, keeps_bills: bool = True) -> Grade:
    """What the formula gives, `exp(noise)` times as slow."""
    full = {**START, **overrides}
    tokens, cap = int(full[TOKENS]), int(full[CAP])
    step_s = 0.02 + 0.0001 * tokens
    is_capped = 0 < cap < tokens
    behind_s = (0.15 if is_capped else 1.1) * load * (1 + 64 / tokens)
    room_s = 0.3 * tokens / cap if is_capped else 0.0
    bill = dict.fromkeys(CAUSES, 0.0) | {
        Cause.FRONT_END: 0.002,
        Cause.STEP_IN_FLIGHT: step_s,
        Cause.SHARED_STEPS: behind_s,
        Cause.TOKENS: 0.4 * behind_s,
        Cause.OWN_PREFILL: 0.03,
    }
    slow = exp(noise)
    short_s, long_s = slow * sum(bill.values()), slow * (3.0 + 3.0 * load * (1 + 200 / tokens) + room_s)
    itl_s = slow * (step_s + 0.01)
    long_bill = dict.fromkeys(CAUSES, 0.0) | {
        Cause.OWN_PREFILL: 3.0,
        Cause.LONG_PREFILL_CAP: room_s,
        Cause.TOKENS: long_s - 3.0 - room_s,
    }
    classes = (
        ClassGrade(
            "long", 12, 0, long_s * 0.7, long_s, itl_s, 1.2 * itl_s, long_bill if keeps_bills else None
        ),
        ClassGrade("short", 90, 0, short_s / 3, short_s, itl_s, 1.2 * itl_s, bill if keeps_bills else None),
    )
    values = {("short", "ttft"): short_s, ("short", "itl"): 1.2 * itl_s, ("long", "ttft"): long_s}
    attained = tuple(
        Attained(each, each.request_class, values[each.request_class, each.metric.value]) for each in SLO
    )
    rate = 2.31 * load * (1 - 12 / tokens)
    return Grade(attained, classes, 102, 0, rate, rate * 41, short_s < 4, preemptions=0)


def runs_of(*wanted: tuple[Overrides, float, Purpose], keeps_bills: bool = True) -> tuple[Run, ...]:
    return tuple(
        Run(
            overrides,
            load,
            purpose,
            graded(overrides, load, NOISE[number % 10], keeps_bills=keeps_bills),
            61.5,
        )
        for number, (overrides, load, purpose) in enumerate(wanted)
    )


def predicted(runs: tuple[Run, ...]) -> tuple[Predicted, ...]:
    return tuple(
        Predicted(
            number,
            run.overrides,
            run.load,
            run.purpose,
            graded(run.overrides, run.load),
            run.outcome,
            number == 2,
        )
        for number, run in enumerate(runs)
    )


def curve(lever: str, values: tuple[Value, ...], knee: Value | None, answer: Overrides = BEST) -> Curve:
    points = tuple(
        CurvePoint(value, None, graded({**answer, lever: value}), "shorter steps: less to wait for the next")
        for value in values
    )
    steps = tuple(f"{a} -> {b}: +1 % throughput, P95 TTFT x 1.2" for a, b in pairwise(values))
    return Curve(lever, {**START, **answer}[lever], points, knee, steps)


def explained(answer: Overrides = BEST) -> Explanation:
    tokens = (128, 256, 512, 1024, 2048, 4096)
    settings: list[Overrides] = [{TOKENS: each, CAP: 256} for each in tokens]
    points = [
        FrontierPoint(each, 1.0, grade.output_tokens_per_s, grade.ratio)
        for each in settings
        for grade in (graded(each),)
    ]
    frontier = tuple(
        each
        for each in points
        if not any(
            other.ratio < each.ratio and other.output_tokens_per_s > each.output_tokens_per_s
            for other in points
        )
    )
    more: Overrides = {TOKENS: 8192}
    return Explanation(
        graded({}),
        graded(answer),
        (
            curve(TOKENS, tokens, 512, answer),
            curve(CAP, (64, 128, 256, 0), 256, answer),
            Curve(
                SEQS,
                128,
                (CurvePoint(64, None, graded(answer), ""), CurvePoint(128, None, graded(answer), "")),
                None,
                (),
            ),
        ),
        frontier,
        (
            ObviousMove("four times the tokens a step", more, graded(more), None),
            ObviousMove(
                "a quarter more KV cache", {"kv_cache_memory_bytes": 2**31}, graded({}), "3 GiB are to spare"
            ),
        ),
        simulated=62,
    )


def features() -> Features:
    count = 102
    is_long = np.arange(count) % 8 == 0
    nothing = np.zeros(count, dtype=np.int32)
    return describe(
        Columns(
            at_ns=np.arange(count, dtype=np.int64) * 400_000_000,
            prompt_tokens=np.where(is_long, 3000, 40).astype(np.int32),
            output_tokens=nothing + 20,
            shared_tokens=nothing,
            class_index=is_long.astype(np.uint8),
            session_index=nothing - 1,
            classes=("short", "long"),
            tenants={},
            sessions={},
            prefix_blocks=0,
            prefix_hits=0.0,
            waiting=0,
            left_out=0,
        )
    )


def measured(ttft_s: float = 0.3) -> Measurement:
    results = tuple(timeline(ttft_s + 0.001 * n, "short", (0.03, 0.04), 0.4 * n) for n in range(90))
    return Measurement("vllm serve", "llama", {}, "the mix", 3, 40.0, results)
