"""Objectives are met, missed or undecided, and a failure meets none."""

import pytest

from headrace.core.errors import BadInput
from headrace.core.objective import Metric, Objective, joined, of_class, parse_objectives
from headrace.measure.goodput import Verdict, goodput, judged, meets, overall
from tests.measure.samples import failure, measurement, timeline

FAST = parse_objectives("p95 ttft < 500ms, p95 itl < 60ms")


def test_objectives_are_read_as_people_write_them() -> None:
    found = parse_objectives("chat: p95 ttft < 500ms, itl<=60ms; p99.5 e2e < 2m; docs: ttft 8s")

    assert found == (
        Objective("chat", Metric.TTFT, 95, 0.5),
        Objective("chat", Metric.ITL, 95, 0.06),
        Objective("", Metric.E2E, 99.5, 120),
        Objective("docs", Metric.TTFT, 95, 8),
    )
    assert parse_objectives("; ".join(map(str, found))) == found


def test_a_limit_without_a_class_holds_for_all_who_do_not_state_the_same_one() -> None:
    found = parse_objectives("docs: p95 ttft < 8s, p95 e2e < 60s; p95 ttft < 1s, p95 itl < 60ms")
    assert of_class(found, "docs") == (*found[:2], found[3])
    assert of_class(found, "chat") == found[2:]
    assert of_class(found, "") == found[2:]


def test_a_looser_limit_of_a_class_that_everybodys_makes_void_is_refused() -> None:
    with pytest.raises(BadInput, match="'p99 ttft < 1s' holds for 'docs', too") as caught:
        parse_objectives("p99 ttft < 1s; docs: p95 ttft < 8s")
    assert "docs: p95 ttft < 8s, p99 ttft" in caught.value.hint
    parse_objectives("p99 ttft < 1s; docs: p95 ttft < 8s, p99 ttft < 9s")
    parse_objectives("p99 ttft < 9s; docs: p95 ttft < 8s")


def test_limits_said_apart_are_checked_as_if_said_together() -> None:
    one, other = parse_objectives("ttft 1s"), parse_objectives("p95 ttft < 2s")
    with pytest.raises(BadInput, match="a limit already"):
        joined([*one, *other])


@pytest.mark.parametrize(
    "text",
    [
        "",
        ";",
        "fast",
        "p95 ttft",
        ": ttft 1s",
        "ttft 0ms",
        "p100 ttft 1s",
        "ttft 1s, p95 ttft 2s",
        "ttft < -1s",
    ],
)
def test_what_is_no_objective_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_objectives(text)

    assert "p95 ttft < 500ms" in caught.value.hint


def test_enough_fast_requests_meet_and_enough_slow_ones_miss() -> None:
    fast = measurement(*(timeline(0.1 + 0.001 * n, gaps_s=(0.02, 0.03)) for n in range(100)))
    slow = measurement(*(timeline(0.6 + 0.001 * n, gaps_s=(0.02, 0.03)) for n in range(100)))

    assert overall(judged(fast, FAST)) is Verdict.MET
    assert [each.verdict for each in judged(slow, FAST)] == [Verdict.MISSED, Verdict.MET]
    assert overall(judged(slow, FAST)) is Verdict.MISSED


def test_a_limit_within_the_interval_is_undecided_and_so_is_a_handful() -> None:
    edge = measurement(*(timeline(0.3 + 0.002 * n, gaps_s=(0.02,)) for n in range(106)))

    assert judged(edge, FAST)[0].verdict is Verdict.UNDECIDED
    assert overall(judged(measurement(timeline(0.1, gaps_s=(0.02,))), FAST)) is Verdict.UNDECIDED
    assert overall([]) is Verdict.UNDECIDED


def test_a_percentile_of_few_requests_is_not_met_however_fast_they_are() -> None:
    """The slowest of 20 is below the true P95 in a third of all runs."""
    few = measurement(*(timeline(0.1, gaps_s=(0.02,)) for _ in range(71)))
    enough = measurement(*(timeline(0.1, gaps_s=(0.02,)) for _ in range(72)))
    slow = measurement(*(timeline(0.1 if n % 2 else 2.0, gaps_s=(0.02,)) for n in range(40)))

    ttft, itl = judged(few, FAST)
    assert (ttft.verdict, ttft.interval_s) == (Verdict.UNDECIDED, None)
    assert itl.verdict is Verdict.MET
    assert overall(judged(enough, FAST)) is Verdict.MET
    assert judged(slow, FAST)[0].verdict is Verdict.MISSED


def test_of_a_handful_whose_middle_is_too_late_nobody_waits_for_an_interval() -> None:
    """A search for the capacity took a P95 of 37 s at a limit of 0.8 s for undecided, of eleven requests."""
    slow = measurement(*(timeline(2.0 + n, gaps_s=(0.02,)) for n in range(5)))
    mixed = measurement(*(timeline(0.1 + 0.3 * n, gaps_s=(0.02,)) for n in range(3)))

    assert judged(slow, FAST)[0].verdict is Verdict.MISSED
    assert judged(slow, FAST)[1].verdict is Verdict.UNDECIDED
    assert judged(mixed, FAST)[0].verdict is Verdict.UNDECIDED
    assert judged(measurement(timeline(2.0)), FAST)[0].verdict is Verdict.UNDECIDED


def test_failures_are_later_than_any_limit() -> None:
    """Dropping them would let a server meet its promises by refusing."""
    refusing = measurement(
        *(timeline(0.1, gaps_s=(0.02,)) for _ in range(50)), *(failure() for _ in range(50))
    )

    ttft, itl = judged(refusing, FAST)

    assert (ttft.verdict, ttft.value_s) == (Verdict.MISSED, float("inf"))
    assert itl.verdict is Verdict.MISSED


def test_goodput_counts_requests_within_all_limits_of_their_class() -> None:
    run = measurement(
        timeline(0.1, gaps_s=(0.02,)), timeline(0.6, gaps_s=(0.02,)), timeline(0.1, gaps_s=(0.2,)), failure()
    )

    found = goodput(run, FAST)["short"]

    assert (found.due, found.good, found.per_s, found.attainment) == (4, 1, 0.1, 0.25)


def test_a_run_meets_by_what_it_was_however_few_its_requests() -> None:
    """A twin is asked once, where a server would be asked again; a failure has no end of lateness."""
    near = [timeline(0.4, gaps_s=(0.05,) * 10) for _ in range(10)]
    assert overall(judged(measurement(*near), FAST)) is Verdict.UNDECIDED
    assert meets(measurement(*near), FAST)
    assert not meets(measurement(*near, timeline(0.6)), FAST)
    assert not meets(measurement(*near, failure()), FAST)
    assert not meets(measurement(*near), parse_objectives("p95 itl < 40ms"))
