"""Outcomes drawn by hypothesis: any verdict, any figures, any names, in any combination that types allow."""

from math import inf

from hypothesis import strategies as st

from headrace.core.bill import CAUSES
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
)
from headrace.core.cost import Pace
from headrace.core.goal import Aim, Goal
from headrace.core.grade import Attained, ClassGrade, Grade
from headrace.core.objective import Metric, Objective
from headrace.core.trial import Gain, NoResult, Purpose, Run, Verdict
from headrace.report.tuning.tuning import RunDetail, Server, Traffic, Tuning

names = st.sampled_from(("short", "long", "", "a class with a rather long name", "<b>x</b>", "tab\tbell\a"))
words = st.text(max_size=20)
amounts_s = st.floats(1e-6, 1e4)
maybe_s = st.none() | amounts_s
rates = st.floats(0, 1e6)
settings = st.sampled_from(
    (
        {},
        {"max_num_batched_tokens": 512},
        {"max_num_seqs": 16, "long_prefill_token_threshold": 0},
        {"enable_prefix_caching": False, "scheduling_policy": "shortest"},
    )
)
loads = st.sampled_from((0.5, 1.0, 1.276282))
bills = st.none() | st.fixed_dictionaries({cause: st.just(0.0) | amounts_s for cause in CAUSES})
objectives = st.builds(
    Objective, names, st.sampled_from(Metric), st.sampled_from((50.0, 95.0, 99.9)), amounts_s
)
attained = st.builds(Attained, objectives, names, amounts_s | st.just(0.0) | st.just(inf))
classes = st.builds(
    ClassGrade, names, st.integers(0, 500), st.integers(0, 9), maybe_s, maybe_s, maybe_s, maybe_s, bills
)
grades = st.builds(
    Grade,
    st.lists(attained, max_size=3).map(tuple),
    st.lists(classes, max_size=3, unique_by=lambda each: each.request_class).map(tuple),
    st.integers(0, 900),
    st.integers(0, 9),
    rates,
    rates,
    st.none() | st.booleans(),
    st.none() | st.integers(0, 50),
)
outcomes = grades | st.builds(NoResult, words)
purposes = st.sampled_from(Purpose)
runs = st.lists(st.builds(Run, settings, loads, purposes, outcomes, st.floats(0, 1e4)), max_size=6)
gains = st.none() | st.builds(
    Gain, st.floats(0.01, 9), st.floats(0.01, 9), st.floats(1, 3), st.integers(1, 9), st.integers(1, 9)
)
brackets = st.builds(Bracket, st.none() | loads, st.none() | loads)
predictions = st.builds(
    Predicted, st.integers(0, 5), settings, loads, purposes, outcomes, outcomes, st.booleans()
)
levers = st.builds(LeverFound, words, settings, words, gains, st.booleans(), words)
values = st.sampled_from((0, 64, 128, 2048))
points = st.builds(CurvePoint, values, st.none() | loads, outcomes, words)
curves = st.builds(
    Curve,
    st.sampled_from(("max_num_batched_tokens", "long_prefill_token_threshold", "max_num_seqs")),
    values,
    st.lists(points, max_size=4).map(tuple),
    st.none() | values,
    st.lists(words, max_size=3).map(tuple),
)
ratios = st.floats(0, 1e9)
explanations = st.builds(
    Explanation,
    outcomes,
    outcomes,
    st.lists(curves, max_size=3).map(tuple),
    st.lists(st.builds(FrontierPoint, settings, loads, rates, ratios), max_size=3).map(tuple),
    st.lists(st.builds(ObviousMove, words, settings, outcomes, st.none() | words), max_size=2).map(tuple),
    st.integers(0, 9999),
)
conclusions = st.builds(
    Conclusion,
    verdict=st.sampled_from(Verdict),
    why=words,
    contender=st.none() | settings,
    load=loads,
    gain=gains,
    baseline_bracket=brackets,
    contender_bracket=brackets,
    levers=st.lists(levers, max_size=2).map(tuple),
    predictions=st.lists(predictions, max_size=3).map(tuple),
    pace=st.builds(Pace, st.floats(0.3, 3), st.floats(0.3, 3)),
    simulated=st.integers(0, 9999),
    spread=st.none() | st.floats(1, 9),
    nearest=st.none() | grades,
    notes=st.lists(words, max_size=2).map(tuple),
)
goals = st.builds(
    Goal,
    st.sampled_from(Aim),
    st.lists(objectives, min_size=1, max_size=3).map(tuple),
    st.booleans(),
    st.just(0.95),
    st.none() | st.just(2.5),
)
servers = st.builds(
    Server,
    name=words,
    model=words,
    start=st.just({"max_num_batched_tokens": 2048, "max_num_seqs": 128, "long_prefill_token_threshold": 0}),
    command=st.just("vllm serve m"),
    recommended=st.just("vllm serve m --max-num-seqs 16"),
    restarts=st.booleans(),
    headroom_bytes=st.none() | st.just(2**30),
    cores=st.none() | st.just(8),
)
tunings = st.builds(
    Tuning,
    goal=goals,
    server=servers,
    traffic=st.builds(Traffic, said=words, rate_rps=st.none() | st.floats(0.1, 99)),
    runs=runs.map(tuple),
    conclusion=st.none() | conclusions,
    goal_why=words,
    details=st.lists(st.builds(RunDetail, command=words, busy_cores=st.none() | rates), max_size=6).map(
        tuple
    ),
    explanation=st.none() | explanations,
    is_interrupted=st.booleans(),
    resume=st.just("") | st.just("headrace tune"),
)
