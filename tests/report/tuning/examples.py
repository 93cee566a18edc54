"""Outcomes of searches to tell: one of each verdict, of a server that is a formula.

Steps of `max_num_batched_tokens` tokens take their time; a short request waits for the step that runs and for
the long prompts before it, unless `long_prefill_token_threshold` leaves it room. So smaller steps help until
their fixed cost eats the throughput.
"""

from dataclasses import replace
from itertools import pairwise
from math import exp, inf

import numpy as np

from headrace.core.bill import CAUSES, Cause
from headrace.core.conclusion import (
    Bracket,
    Conclusion,
    Curve,
    CurvePoint,
    Explanation,
    FrontierPoint,
    LeverFound,
    ObviousMove,
    Predicted,
    Value,
)
from headrace.core.cost import Pace
from headrace.core.goal import Aim, Goal
from headrace.core.grade import Attained, ClassGrade, Grade
from headrace.core.measurement import Measurement
from headrace.core.objective import parse_objectives
from headrace.core.ports import Overrides
from headrace.core.trial import Gain, NoResult, Purpose, Run, Verdict
from headrace.report.tuning.tuning import Advice, RunDetail, Server, Traffic, Tuning
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
        (
            curve(TOKENS, tokens, 512, answer),
            curve(CAP, (0, 64, 128, 256), 256, answer),
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
            ObviousMove(
                "more tokens a step",
                more,
                graded(more),
                "P95 TTFT of short x 2.1: the step that runs lasts longer",
            ),
            ObviousMove(
                "more memory",
                {"kv_cache_memory_bytes": 2**31},
                graded({}),
                "nothing waits for KV blocks here",
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


SERVER = Server(
    name="vLLM in .vllm",
    model="meta-llama/Llama-3.1-8B-Instruct",
    start=START,
    command="vllm serve meta-llama/Llama-3.1-8B-Instruct",
    recommended=(
        "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-num-batched-tokens 512 "
        "--long-prefill-token-threshold 256"
    ),
    headroom_bytes=3 * 2**30,
    cores=2,
)
TRAFFIC = Traffic(
    "mix.jsonl: 102 requests in 41 s, 88 % short, 12 % long, seed 3",
    kind="interactive",
    kind_why="short answers, with 12 % of long prompts between them",
    rate_rps=2.5,
    warnings=("12 long requests a run are few for a P95: it is nearly the slowest one",),
)
GAIN = Gain(ratio=0.31, ratio_at_most=0.37, spread=1.06, baseline_runs=4, contender_runs=2)
_B, _C, _P = Purpose.BASELINE, Purpose.CHECK, Purpose.PROOF


_CHECKED = runs_of(({}, 1, _B), ({}, 1, _B), ({TOKENS: 1024}, 1, _C))


def told(
    runs: tuple[Run, ...], conclusion: Conclusion | None, goal: Goal = LATENCY, server: Server = SERVER
) -> Tuning:
    details = tuple(
        RunDetail(command=f"vllm serve {number % 2}", at=f"2026-11-30 14:{number:02}:00 UTC", busy_cores=1.7)
        for number in range(len(runs))
    )
    return Tuning(
        goal=goal,
        server=server,
        traffic=TRAFFIC,
        runs=runs,
        conclusion=conclusion,
        details=details,
        twin="fitted to 1,204 steps of this server",
        twin_s=23.0,
        resume="headrace tune --target vllm --workload mix.jsonl",
        journal="~/.local/state/headrace/tune/4f3a",
        versions={"headrace": "0.1.0", "vllm": "0.32.0"},
        seed=3,
    )


def improved() -> Tuning:
    runs = runs_of(
        ({}, 1, _B),
        ({}, 1, _B),
        ({TOKENS: 256}, 1, _C),
        (BEST, 1, _C),
        ({}, 1, _P),
        (BEST, 1, _P),
        ({}, 1, _P),
        (BEST, 1, _P),
    )
    conclusion = Conclusion(
        Verdict.IMPROVED,
        "with 95 % confidence at most 0.37 times as near to the limits",
        contender=BEST,
        load=1.0,
        gain=GAIN,
        baseline_bracket=Bracket(None, 1.0),
        contender_bracket=Bracket(1.0, None),
        levers=(
            LeverFound(
                "no prefix caching",
                {"enable_prefix_caching": False},
                "1 % of the prompt tokens repeat",
                None,
                is_kept=False,
                why="1.02 times the ratio without it",
            ),
        ),
        predictions=predicted(runs),
        pace=Pace(1.13, 0.96),
        simulated=578,
        spread=1.06,
        notes=("the twin was corrected by the runs: steps with prompts take 1.13 times as long",),
    )
    tuning = replace(told(runs, conclusion), explanation=explained())
    first = replace(tuning.details[0], measurement=measured())
    return replace(
        tuning, details=(first, *tuning.details[1:]), traffic=replace(TRAFFIC, features=features())
    )


def without_bills() -> Tuning:
    """Measured on a server that keeps none: the twin's are told."""
    tuning = improved()
    runs = tuple(
        replace(run, outcome=graded(run.overrides, run.load, keeps_bills=False)) for run in tuning.runs
    )
    return replace(tuning, runs=runs)


def without_a_goal() -> Tuning:
    """The limits are the start's own: shorter waits for short requests, twice as long at most for others."""
    slo = parse_objectives("short: p95 ttft < 1834ms; long: p95 ttft < 12.5s")
    goal = Goal(Aim.LATENCY, slo, is_relative=True)
    tuning = improved()
    runs = tuple(replace(run, outcome=_judged(run.outcome, goal)) for run in tuning.runs)
    return replace(
        tuning,
        goal=goal,
        goal_why="interactive: requests come one by one; so a shorter wait for 'short'",
        runs=runs,
    )


def _judged(outcome: Grade | NoResult, goal: Goal) -> Grade:
    assert isinstance(outcome, Grade)
    own = {each.request_class: each for each in outcome.classes}
    return replace(
        outcome,
        attained=tuple(
            Attained(each, each.request_class, own[each.request_class].ttft_p95_s or 0.0)
            for each in goal.objectives
        ),
    )


def carries_more(goal: Goal = CAPACITY) -> Tuning:
    runs = runs_of(
        ({}, 0.1, _B),
        ({}, 0.1, _B),
        ({}, 0.2, _B),
        (BEST, 0.95, _C),
        (BEST, 1.05, _C),
        ({}, 0.95, _P),
        (BEST, 0.95, _P),
        ({}, 0.95, _P),
        (BEST, 0.95, _P),
    )
    conclusion = Conclusion(
        Verdict.IMPROVED,
        "it meets every objective at 0.95 times the load, the baseline misses at 0.2",
        BEST,
        0.95,
        GAIN,
        Bracket(0.1, 0.2),
        Bracket(0.95, 1.05),
        predictions=predicted(runs),
        simulated=1204,
        spread=1.04,
    )
    return replace(told(runs, conclusion, goal), explanation=explained())


def already_best() -> Tuning:
    """The start is what wins elsewhere."""
    at_best = tuple(
        graded({**BEST, **run.overrides}, 1, NOISE[number]) for number, run in enumerate(_CHECKED)
    )
    runs = tuple(replace(run, outcome=outcome) for run, outcome in zip(_CHECKED, at_best, strict=True))
    conclusion = Conclusion(
        Verdict.NOTHING_BETTER,
        "no setting was 5 % better in 578 simulations, nor in 1 runs of candidates",
        None,
        1.0,
        None,
        Bracket(1.0, None),
        Bracket(None, None),
        predictions=tuple(
            replace(each, measured=now) for each, now in zip(predicted(runs), at_best, strict=True)
        ),
        simulated=578,
        spread=1.05,
    )
    server = replace(SERVER, start={**START, **BEST}, recommended=SERVER.command)
    return replace(told(runs, conclusion, server=server), explanation=explained())


def inconclusive() -> Tuning:
    runs = runs_of(({}, 1, _B), ({}, 1, _B), (BEST, 1, _C))
    conclusion = Conclusion(
        Verdict.INCONCLUSIVE,
        "the budget ended before runs in turns could show the noise",
        BEST,
        1.0,
        None,
        Bracket(None, 1.0),
        Bracket(1.0, None),
        predictions=predicted(runs),
        simulated=410,
        spread=1.05,
    )
    return told(runs, conclusion)


def interrupted() -> Tuning:
    tuning = inconclusive()
    runs = tuning.runs[:1]
    assert tuning.conclusion
    conclusion = replace(
        tuning.conclusion,
        contender=None,
        predictions=tuning.conclusion.predictions[:1],
        spread=None,
        why="the budget ended when 0 candidates had run, none of them better",
    )
    return replace(tuning, runs=runs, conclusion=conclusion, is_interrupted=True)


def nothing_measured() -> Tuning:
    return replace(told((), None), is_interrupted=True)


def out_of_reach() -> Tuning:
    runs = runs_of(({}, 1, _B), ({}, 1, _B), (BEST, 1, _C), ({TOKENS: 256, CAP: 64}, 1, _C))
    nearest = runs[2].outcome
    assert isinstance(nearest, Grade)
    conclusion = Conclusion(
        Verdict.UNREACHABLE,
        "long: p95 ttft came to 8.2 s, 1.02 times the limit, at best; 4.3 s of the slow ones' TTFT are "
        "waited for tokens; in the twin an idle server meets it: more replicas would be needed",
        None,
        1.0,
        None,
        Bracket(None, 1.0),
        Bracket(None, None),
        predictions=predicted(runs),
        simulated=700,
        spread=1.05,
        nearest=nearest,
    )
    return replace(told(runs, conclusion), explanation=explained())


def drifted() -> Tuning:
    runs = runs_of(({}, 1, _B), ({}, 1, _B), (BEST, 1, _C), ({}, 1, _P), (BEST, 1, _P), ({}, 1, _P))
    slower = tuple(
        replace(run, outcome=graded(run.overrides, 1, 0.12 * number)) for number, run in enumerate(runs)
    )
    conclusion = Conclusion(
        Verdict.DRIFTED,
        "late runs of the baseline took 1.43 times as long as early ones, at equal settings",
        BEST,
        1.0,
        replace(GAIN, ratio_at_most=1.2),
        Bracket(None, 1.0),
        Bracket(None, None),
        predictions=predicted(slower),
        simulated=578,
        spread=1.4,
        notes=("the machine drifted: the baseline's late runs took 1.43 times as long as its early ones",),
    )
    return told(slower, conclusion)


def crashing() -> Tuning:
    """Every candidate takes the server down."""
    runs = runs_of(({}, 1, _B), ({}, 1, _B), (BEST, 1, _C), ({TOKENS: 1024}, 1, _C))
    fallen = tuple(replace(run, outcome=NoResult(OUT_OF_MEMORY)) if run.overrides else run for run in runs)
    conclusion = Conclusion(
        Verdict.NOTHING_BETTER,
        "no setting was 5 % better in 578 simulations, nor in 2 runs of candidates",
        None,
        1.0,
        None,
        Bracket(None, 1.0),
        Bracket(None, None),
        predictions=predicted(fallen),
        simulated=578,
        spread=1.05,
        notes=(f"2 of 4 runs gave no result: {OUT_OF_MEMORY}",),
    )
    return told(fallen, conclusion)


def attached() -> Tuning:
    """Somebody else's server: measured, never restarted, advised."""
    runs = runs_of(({}, 1, _B), ({}, 1, _B), keeps_bills=False)
    conclusion = Conclusion(
        Verdict.INCONCLUSIVE,
        "the budget ended when 0 candidates had run, none of them better",
        None,
        1.0,
        None,
        Bracket(None, 1.0),
        Bracket(None, None),
        predictions=predicted(runs),
        simulated=578,
        spread=1.05,
    )
    advice = Advice(BEST, graded({}), graded(BEST), 1.0, SERVER.recommended)
    server = replace(SERVER, name="http://prod:8000", restarts=False)
    return replace(told(runs, conclusion, server=server), advice=advice, explanation=explained())


def hopeless_percentile() -> Tuning:
    """More requests failed than a P95 leaves room for."""
    tuning = improved()
    grade = graded({})
    lost = replace(
        grade,
        failed=30,
        is_steady=False,
        attained=tuple(replace(each, value_s=inf) for each in grade.attained),
    )
    runs = tuple(run if run.overrides else replace(run, outcome=lost) for run in tuning.runs)
    return replace(tuning, runs=runs)


def at_a_cost() -> Tuning:
    return carries_more(COST)


EVERY = (
    improved,
    without_bills,
    without_a_goal,
    carries_more,
    at_a_cost,
    already_best,
    inconclusive,
    interrupted,
    nothing_measured,
    out_of_reach,
    drifted,
    crashing,
    attached,
    hopeless_percentile,
)
