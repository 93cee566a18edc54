"""A run in few numbers: the same that `measure` tells, with failures later than any limit."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.bill import CAUSES, Cause
from headrace.core.errors import BadInput
from headrace.core.goal import Aim, Goal
from headrace.core.measurement import Measurement
from headrace.core.objective import Metric, parse_objectives
from headrace.core.timeline import Failure, FailureKind, Timeline
from headrace.measure.goodput import judged
from headrace.tune.grade import Seen, grade

GOAL = Goal(
    Aim.CAPACITY,
    parse_objectives("chat: p95 ttft < 500ms, p50 itl < 60ms, p90 tpot < 1s, p99 e2e < 3s; p95 ttft < 8s"),
)


def line(name: str, ttft_s: float, gaps_s: tuple[float, ...] = (0.05, 0.05)) -> Timeline:
    at, tokens = 1.0 + ttft_s, [1.0 + ttft_s]
    for gap_s in gaps_s:
        at += gap_s
        tokens.append(at)
    bill = dict.fromkeys(CAUSES, 0.0) | {Cause.TOKENS: ttft_s}
    return Timeline(f"{name}-{ttft_s}", name, 40, 1.0, 1.0, tuple(tokens), "length", bill_s=bill)


def lost(name: str) -> Failure:
    return Failure("x", name, 40, 1.0, 2.0, FailureKind.CUT, "cut off")


def run(*results: Timeline | Failure) -> Measurement:
    return Measurement("t", "m", {}, "w", 0, 10.0, results)


@given(
    st.lists(st.tuples(st.sampled_from(["chat", "docs"]), st.floats(0.001, 9), st.floats(0, 2)), min_size=1),
    st.integers(0, 3),
)
def test_percentiles_are_those_that_bench_reports(
    rows: list[tuple[str, float, float]], failures: int
) -> None:
    measured = run(*(line(n, t, (g, g / 2)) for n, t, g in rows), *[lost("chat")] * failures)
    ours = {(a.objective, a.request_class): a.value_s for a in grade(measured, GOAL).attained}
    theirs = {(j.objective, j.request_class): j.value_s for j in judged(measured, GOAL.objectives)}
    assert ours == pytest.approx(theirs)


def test_the_worst_ratio_counts_and_the_objective_that_binds_is_named() -> None:
    found = grade(run(line("chat", 0.25), line("docs", 6.0)), GOAL, Seen(is_steady=True))
    assert found.ratio == pytest.approx(0.05 / 0.06)
    binding = found.binding()
    assert binding is not None
    assert (binding.request_class, binding.objective.metric) == ("chat", Metric.ITL)
    assert found.meets


def test_failures_and_a_growing_queue_meet_nothing() -> None:
    lines = [line("chat", 0.1 + i / 1e6) for i in range(50)]
    assert grade(run(*lines), GOAL).meets
    assert not grade(run(*lines, lost("chat")), GOAL).meets
    assert not grade(run(*lines), GOAL, Seen(is_steady=False)).meets
    assert grade(run(lost("chat")), GOAL).ratio == inf


def test_classes_have_their_latencies_and_the_bill_of_their_slow_requests() -> None:
    found = grade(run(line("chat", 0.1), line("chat", 0.3), line("docs", 2.0), lost("docs")), GOAL)
    chat, docs = found.classes
    assert (chat.request_class, chat.requests, chat.failed) == ("chat", 2, 0)
    assert chat.ttft_p50_s == pytest.approx(0.2)
    assert chat.slow_bill_s is not None
    assert chat.slow_bill_s[Cause.TOKENS] == pytest.approx(0.3)
    assert (docs.requests, docs.failed) == (2, 1)
    assert (found.due, found.failed, found.throughput_rps) == (4, 1, pytest.approx(0.3))
    assert found.of_class("none") is None


def test_preemptions_count_by_request() -> None:
    assert grade(run(line("chat", 0.1)), GOAL, Seen(preemptions=3)).preempted_share == 3
    assert grade(run(line("chat", 0.1)), GOAL).preempted_share == 0


def test_a_goal_without_objectives_or_with_an_odd_share_is_refused() -> None:
    with pytest.raises(BadInput, match="at least one objective"):
        Goal(Aim.LATENCY, ())
    with pytest.raises(BadInput, match="share"):
        Goal(Aim.LATENCY, GOAL.objectives, least_throughput=1.5)
    with pytest.raises(BadInput, match="price"):
        Goal(Aim.COST, GOAL.objectives, price_per_hour=0)
