"""A goal for who set none follows from the traffic and the baseline, and says so."""

from dataclasses import replace

import pytest

from headrace.core.errors import BadInput
from headrace.core.goal import Aim, Goal
from headrace.core.measurement import Measurement
from headrace.core.objective import Metric, parse_objectives
from headrace.core.timeline import Failure, FailureKind, Timeline
from headrace.tune.goals import Kind, highest_load, kind_of, propose_goal, relative_to, warnings_of
from headrace.tune.grade import grade
from headrace.workload.features import (
    ClassMix,
    Concurrency,
    Features,
    Groups,
    Lengths,
    LongPrompts,
    Timing,
)

SHORT, LONG = Lengths(100, 90, 180, 190, 200), Lengths(5000, 4900, 7000, 7900, 8000)
CHAT, DOCS = ClassMix("chat", 0.9, 0.2, SHORT, SHORT), ClassMix("docs", 0.1, 0.8, LONG, SHORT)
MIXED = Features(
    requests=200,
    left_out=0,
    prompt=SHORT,
    output=SHORT,
    timing=Timing(100.0, 2.0, 1.0, 1.0, 0.0, 6, 130, 200),
    concurrency=Concurrency(0.02, 10, 4.0),
    long_prompts=LongPrompts(2048, 0.1, 0.8),
    reuse=None,
    classes=(CHAT, DOCS),
    tenants=None,
    sessions=None,
    waiting_share=0.0,
)
BATCH = replace(MIXED, timing=replace(MIXED.timing, rate=0.0, instants=1))
TENANTS = replace(MIXED, tenants=Groups(12, 16.0, 0.3))
DOCUMENTS = replace(MIXED, prompt=LONG, classes=(replace(DOCS, share=1.0),))


def measured(chat_s: float = 0.5, docs_s: float = 4.0) -> Measurement:
    def line(name: str, ttft_s: float) -> Timeline:
        return Timeline(name, name, 10, 1.0, 1.0, (1.0 + ttft_s, 1.0 + 2 * ttft_s), "length")

    lines = [line("chat", chat_s) for _ in range(20)] + [line("docs", docs_s) for _ in range(5)]
    return Measurement("t", "m", {}, "w", 0, 10.0, tuple(lines))


@pytest.mark.parametrize(
    ("features", "kind"),
    [
        (MIXED, Kind.INTERACTIVE),
        (BATCH, Kind.HIGH_THROUGHPUT),
        (TENANTS, Kind.MULTI_TENANT),
        (DOCUMENTS, Kind.LONG_CONTEXT),
        (replace(TENANTS, tenants=Groups(12, 16.0, 0.95)), Kind.INTERACTIVE),
    ],
)
def test_the_kind_of_traffic_is_told_with_the_numbers_that_tell_it(features: Features, kind: Kind) -> None:
    found, why = kind_of(features)
    assert found is kind
    assert any(character.isdigit() for character in why)


@pytest.mark.parametrize("features", [MIXED, BATCH, TENANTS])
def test_a_proposal_has_the_baseline_at_or_below_its_limits(features: Features) -> None:
    runs = [measured(0.5), measured(0.5)]
    goal, why = propose_goal(features, runs)
    assert goal.is_relative
    assert kind_of(features)[0].value in why
    assert grade(runs[0], goal).ratio == pytest.approx(0.5 if features is BATCH else 1.0)


def test_people_who_talk_get_shorter_waits_and_others_may_wait_twice_as_long() -> None:
    goal, why = propose_goal(MIXED, [measured()])
    assert goal.aim is Aim.LATENCY
    assert {each.request_class: each.limit_s for each in goal.objectives} == pytest.approx(
        {"chat": 0.5, "docs": 8.0}
    )
    assert "chat" in why


def test_batches_get_throughput_and_long_prompts_capacity() -> None:
    goal, _ = propose_goal(BATCH, [measured()])
    assert goal.aim is Aim.CAPACITY
    assert {each.metric for each in goal.objectives} == {Metric.E2E}
    assert propose_goal(DOCUMENTS, [measured()])[0].aim is Aim.CAPACITY


def test_an_aim_that_a_person_named_is_kept() -> None:
    assert propose_goal(MIXED, [measured()], Aim.COST)[0].aim is Aim.COST


def test_limits_are_the_median_of_the_baselines_runs() -> None:
    goal = relative_to([measured(0.4), measured(0.6), measured(9.0)], "chat")
    assert goal.objectives[0].limit_s == pytest.approx(0.6)


def test_a_class_without_an_answer_has_no_goal() -> None:
    failed = Failure("x", "chat", 10, 1.0, 2.0, FailureKind.CUT, "cut")
    with pytest.raises(BadInput, match="no run of the baseline tells the p95 ttft of 'chat'"):
        relative_to([Measurement("t", "m", {}, "w", 0, 10.0, (failed,))], "chat")


def test_a_percentile_of_few_requests_is_warned_of() -> None:
    goal = Goal(Aim.LATENCY, parse_objectives("chat: p95 ttft < 1s, p99 e2e < 3s; docs: p50 ttft < 9s"))
    (warning,) = warnings_of(MIXED, goal, grade(measured(), goal))
    assert "p99 e2e of 'chat'" in warning
    assert "180 requests" in warning
    assert "500" in warning


def lasting(duration_s: float) -> Features:
    return replace(MIXED, timing=replace(MIXED.timing, duration_s=duration_s))


def test_a_workload_that_is_over_before_a_queue_shows_is_warned_of_and_not_compressed() -> None:
    goal = Goal(Aim.CAPACITY, parse_objectives("docs: p50 ttft < 8s; chat: p50 ttft < 1s"))
    baseline = grade(measured(docs_s=3.0), goal)
    (warning,) = warnings_of(lasting(20.0), goal, baseline)
    assert "lasts 20 s and a wait may grow by 5.0 s" in warning
    assert "1.3 times what the server carries" in warning, "15 s of work take 20 s, of 5 s nobody knows"
    assert "55 s of it" in warning
    assert highest_load(lasting(20.0), baseline) == pytest.approx(20 / 15)
    assert highest_load(lasting(4.0), baseline) == 1.0, "what a person asks about is tried"
    assert warnings_of(lasting(55.1), goal, baseline) == ()
    assert highest_load(lasting(300.0), baseline) == pytest.approx(20.0)


def test_limits_that_no_queue_can_miss_bound_no_load() -> None:
    goal = Goal(Aim.CAPACITY, parse_objectives("p95 itl < 9s"))
    assert warnings_of(lasting(1.0), goal, grade(measured(), goal)) == ()
    assert highest_load(lasting(1.0), grade(measured(), goal)) == float("inf")
