"""The load of a tuning: the same requests every time, near the knee of whatever server it is."""

from dataclasses import replace
from pathlib import Path

import pytest

from headrace.cli.tuning_workload import (
    NEAR_KNEE,
    FilePart,
    Speeds,
    Traffic,
    Wishes,
    fitted,
    require_room,
    timed,
    traffic_of_file,
    traffic_of_mix,
)
from headrace.core.errors import BadInput
from headrace.core.measurement import Measurement
from headrace.core.timeline import Failure, FailureKind, Timeline
from headrace.workload.mixed import MixedWorkload
from headrace.workload.trace import TraceRequest

REQUESTS = (
    TraceRequest(0.0, 50, 8, "chat"),
    TraceRequest(1.0, 900, 8, "docs"),
    TraceRequest(4.0, 40, 8, "chat"),
)
TRAFFIC = Traffic(REQUESTS, "three requests")


def computing(prompt_tokens_per_s: float) -> Speeds:
    """A server that computes one prompt after the other and nothing else."""

    def seconds(requests: tuple[TraceRequest, ...]) -> float:
        return sum(each.prompt_tokens for each in requests) / prompt_tokens_per_s

    return Speeds(seconds, seconds)


@pytest.mark.parametrize("prompt_tokens_per_s", [300, 5_000])
def test_the_mix_brings_a_server_of_any_speed_near_its_knee(prompt_tokens_per_s: float) -> None:
    mix = fitted(computing(prompt_tokens_per_s), 8192, Wishes())
    requests = traffic_of_mix(replace(mix, duration_s=40 / mix.long_rps)).requests
    share = sum(each.prompt_tokens for each in requests) / prompt_tokens_per_s / requests[-1].due_at
    assert 0.6 * NEAR_KNEE < share < 1.4 * NEAR_KNEE


def test_rates_that_are_given_are_kept() -> None:
    mix = fitted(computing(500), 8192, Wishes(short_rps=3.0))
    assert mix.short_rps == 3.0


def test_a_context_too_short_for_documents_is_refused() -> None:
    with pytest.raises(BadInput, match="no room for documents"):
        fitted(computing(500), 512, Wishes())


@pytest.mark.parametrize(
    ("left_s", "around_s", "most", "duration_s"), [(1500, 70, None, 80), (300, 8, None, 35), (20, 8, 3, 12)]
)
def test_a_run_is_as_long_as_the_budget_allows(
    left_s: float, around_s: float, most: int | None, duration_s: float
) -> None:
    mix = MixedWorkload(short_rps=2, long_rps=0.1)
    assert timed(mix, left_s, around_s, most).duration_s == duration_s


def test_another_load_sends_the_same_requests_sooner_and_other_words() -> None:
    once, twice, other = TRAFFIC.at(1.0, 1), TRAFFIC.at(2.0, 1), TRAFFIC.at(1.0, 2)
    assert once.duration_s == 4.0
    assert twice.duration_s == 2.0
    assert once.requests == twice.requests == other.requests == 3
    assert 0 < once.warm_up_s < 1


def test_a_server_is_warmed_up_with_each_kind_in_brief() -> None:
    asks = TRAFFIC.warm_up(7)
    assert [ask.request_class for ask in asks] == ["chat", "chat", "docs"]
    assert max(ask.num_prompt_words for ask in asks) == 300


def test_the_twin_is_asked_with_the_lengths_that_the_server_counts() -> None:
    results = (
        Timeline("chat-0", "chat", 75, 0.0, 0.0, (0.5,), "length"),
        Timeline("docs-1", "docs", 931, 1.0, 1.0, (2.0,), "length"),
        Failure("chat-2", "chat", 40, 4.0, 5.0, FailureKind.REFUSED, "500"),
    )
    measurement = Measurement("t", "m", {}, "w", 0, 5.0, results)
    counted = TRAFFIC.as_counted(measurement)
    assert [each.prompt_tokens for each in counted] == [75, 931, 40 + 28]
    assert [replace(each, prompt_tokens=0) for each in counted] == [
        replace(each, prompt_tokens=0) for each in REQUESTS
    ]


def azure(path: Path, rows: int) -> Path:
    lines = [f"2023-11-16 18:{10 + number // 60}:{number % 60:02}.0000000,1000,100" for number in range(rows)]
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(lines) + "\n")
    return path


def test_a_part_of_a_file_is_sent_and_what_is_cut_is_cut(tmp_path: Path) -> None:
    path = azure(tmp_path / "w.csv", 300)
    part = FilePart(duration_s=60, longest_prompt=400, longest_answer=10, scale=2)
    traffic = traffic_of_file(path, part)
    assert len(traffic.requests) == 120
    assert traffic.duration_s == 59.5
    assert {(each.prompt_tokens, each.output_tokens) for each in traffic.requests} == {(400, 10)}
    assert "120 of its 300 requests of w.csv" in traffic.said


def test_what_is_too_little_or_too_long_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = azure(tmp_path / "w.csv", 3)
    with pytest.raises(BadInput, match="too few to tune for") as few:
        traffic_of_file(path, FilePart(duration_s=0.5))
    assert "--duration" in few.value.hint
    with pytest.raises(BadInput, match="3 of 3 requests do not fit") as long:
        require_room(traffic_of_file(path, FilePart()), 512)
    assert "--longest-prompt" in long.value.hint
    require_room(traffic_of_file(path, FilePart()), 2048)
    require_room(traffic_of_file(path, FilePart()), None)
