"""Outcomes of searches to tell: one of each verdict, and of what goes with it."""

from dataclasses import replace
from math import inf

from headrace.core.conclusion import (
    Bracket,
    Conclusion,
    LeverFound,
    Pool,
    Pools,
)
from headrace.core.cost import Pace
from headrace.core.goal import Aim, Goal
from headrace.core.grade import Attained, Grade
from headrace.core.objective import parse_objectives
from headrace.core.trial import Gain, NoResult, Purpose, Run, Verdict
from headrace.report.tuning.tuning import Advice, PoolAdvice, RunDetail, Server, Traffic, Tuning
from tests.report.tuning.formula import (
    BEST,
    CAP,
    CAPACITY,
    COST,
    LATENCY,
    NOISE,
    OUT_OF_MEMORY,
    START,
    TOKENS,
    explained,
    features,
    graded,
    measured,
    predicted,
    runs_of,
)

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
        "at 0.95 times the load its repeats meet every objective on average, the baseline misses at 0.2",
        BEST,
        0.95,
        GAIN,
        Bracket(0.1, 0.2),
        Bracket(0.95, 1.05),
        predictions=predicted(runs),
        simulated=1204,
        spread=1.04,
    )
    return replace(told(runs, conclusion, goal), explanation=explained(), pools=pools_found())


def at_its_limits() -> Tuning:
    """Two of the winner's four repeats are beyond a limit; their mean is not."""
    tuning = carries_more()
    repeats = tuple(
        Run(BEST, 0.95, _P, graded(BEST, 0.95, noise), 61.5) for noise in (0.070, 0.076, 0.028, 0.038)
    )
    runs = (*(run for run in tuning.runs if run.overrides != BEST or run.purpose is not _P), *repeats)
    assert tuning.conclusion
    conclusion = replace(tuning.conclusion, predictions=predicted(runs))
    return replace(told(runs, conclusion, tuning.goal), explanation=tuning.explanation, pools=tuning.pools)


def pools_found() -> PoolAdvice:
    apart = (Pool("short", {TOKENS: 512}, 3.1), Pool("long", {}, 1.9))
    found = Pools(Pool("all", BEST, 0.95), apart, 0.81, 6, "0.81 of the servers for the same load")
    return PoolAdvice(found, 90, 0.88, ("vllm serve M --max-num-batched-tokens 512", "vllm serve M"))


def already_best() -> Tuning:
    """The start is what wins elsewhere."""
    at_best = tuple(
        graded({**BEST, **run.overrides}, 1, NOISE[number]) for number, run in enumerate(_CHECKED)
    )
    runs = tuple(replace(run, outcome=outcome) for run, outcome in zip(_CHECKED, at_best, strict=True))
    conclusion = Conclusion(
        Verdict.NOTHING_BETTER,
        "no setting was 5 % better in 578 simulations, nor in 1 run of candidates",
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
        "the budget ended before there were enough runs in turns to tell a gain from noise",
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
        "long: p95 ttft came to 8.2 s, 1.02 times the limit, at best; in the twin an idle server meets it: "
        "more replicas would be needed",
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
    at_its_limits,
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
