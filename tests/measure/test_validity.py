"""A run that its own client spoiled says so; one that a slow server made slow does not."""

from dataclasses import replace
from random import Random

from headrace.core.measurement import ClientLoad, Load, Measurement
from headrace.core.timeline import Timeline
from headrace.measure.validity import check
from tests.measure.samples import measurement


def poisson(count: int, seed: int = 3) -> list[float]:
    chance, at, found = Random(seed), 0.0, list[float]()
    for _ in range(count):
        at += chance.expovariate(10)
        found.append(at)
    return found


def run(
    due_at: list[float], lag_s: list[float], load: Load = Load.POISSON, ttft_s: float = 0.2
) -> Measurement:
    timelines = [
        Timeline("r", "c", 40, due, due + lag, (due + lag + ttft_s, due + lag + ttft_s + 0.05), "length")
        for due, lag in zip(due_at, lag_s, strict=True)
    ]
    return replace(measurement(*timelines), load=load)


def test_a_prompt_client_is_believed() -> None:
    found = check(run(poisson(400), [0.001] * 400))

    assert found.is_valid, found.reasons
    assert found.delivered.per_s == found.asked.per_s


def test_a_slow_server_does_not_spoil_a_run() -> None:
    assert check(run(poisson(400), [0.001] * 400, ttft_s=30.0)).is_valid


def test_requests_that_leave_late_spoil_it_where_it_shows_in_the_ttft() -> None:
    lag_s = [0.001] * 380 + [0.15] * 20
    (reason, *_) = check(run(poisson(400), lag_s)).reasons

    assert "150 ms late at P99" in reason
    assert check(run(poisson(400), lag_s, ttft_s=20.0)).is_valid


def test_a_client_that_stops_and_catches_up_has_not_delivered_the_arrivals() -> None:
    due_at = poisson(400)
    lag_s = [max(0.0, 4 * (int(due / 4) + 1) - due) for due in due_at]  # all of 4 s at once

    reasons = " ".join(check(run(due_at, lag_s, ttft_s=1_000.0)).reasons)

    assert "index of dispersion" in reasons


def test_a_timetable_that_is_not_the_process_it_claims_to_be_is_found_out() -> None:
    gaps = [gap for gap in (Random(1).expovariate(10) for _ in range(1)) for _ in range(10)]
    chance, at, due_at = Random(1), 0.0, list[float]()
    for _ in range(100):
        gap = chance.expovariate(10)
        for _ in gaps:
            at += gap
            due_at.append(at)

    assert "gaps know of each other" in " ".join(check(run(due_at, [0.0] * 1_000)).reasons)
    assert check(run(due_at, [0.0] * 1_000, load=Load.OPEN)).is_valid


def test_a_client_that_reads_late_spoils_the_gaps_between_tokens() -> None:
    late = ClientLoad(cpu_s=1.0, wakings=100, late_p50_s=0.0, late_p99_s=0.04, late_max_s=0.1)
    spoiled = replace(run(poisson(400), [0.001] * 400), client=late)

    assert "looked at its sockets 40 ms late" in check(spoiled).reasons[0]


def test_what_was_due_in_the_warm_up_is_in_no_figure() -> None:
    whole = run(poisson(400), [1.0] * 200 + [0.001] * 200)

    assert not check(whole).is_valid
    assert check(replace(whole, warm_up_s=whole.timelines[200].due_at)).is_valid
