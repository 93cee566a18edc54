"""What `python -m bench.engine` makes of its visits, without an engine."""

from collections import deque
from pathlib import Path

import pytest

from bench.engine.in_process import THEIRS, drive
from bench.engine.load import MIXED, POINTS, Point
from bench.engine.record import OURS, Place, Record, When, visit_of
from bench.engine.report import to_json
from bench.engine.servers import Contender, LlamaServer
from headrace.core.errors import TargetFailed
from headrace.core.timeline import Failure, FailureKind, Timeline


def life(*token_at: float, due_at: float = 0.0, request_class: str = "burst") -> Timeline:
    return Timeline("r", request_class, 128, due_at, due_at, token_at, "length")


def http(number: int) -> When:
    return When(Place.HTTP, f"round {number}", number)


def contender(name: str, absent: str | None = None) -> Contender:
    def start() -> LlamaServer:
        raise AssertionError("nothing is started here")

    return Contender(name, start, "float32", absent)


def test_the_rate_of_bursts_is_over_the_time_that_they_took_together() -> None:
    visit = visit_of(http(1), OURS, "1", [[life(1.0, 2.0)], [life(1.0, 3.0)]], None)
    assert visit.tokens_per_s == 4 / 5
    assert visit.itl_ms == [1000.0, 2000.0]


def test_failed_requests_are_counted_and_not_mixed_in() -> None:
    lost = Failure("r", "burst", 128, 0.0, 9.0, FailureKind.CUT, "gone", 3)
    visit = visit_of(http(1), OURS, "8", [[life(1.0, 2.0), lost]], None)
    assert (visit.failed, visit.tokens_per_s) == (1, 1.0)


def test_only_visits_of_one_round_and_one_place_are_compared(tmp_path: Path) -> None:
    record = Record(tmp_path / "visits.jsonl")
    for number in (1, 2):
        record.add(visit_of(http(number), OURS, "1", [[life(1.0, 2.0)]], 0.0))
    record.add(visit_of(http(2), "llama_cpp", "1", [[life(2.0, 4.0)]], 0.0))
    in_process = When(Place.IN_PROCESS, "round 1", 1)
    record.add(visit_of(in_process, "llama_cpp", "1", [[life(9.0)]], 0.0))

    again = Record(tmp_path / "visits.jsonl")
    ((ours, theirs),) = again.pairs(Place.HTTP, "llama_cpp", "1")
    assert (ours.round, ours.tokens_per_s / theirs.tokens_per_s) == ("round 2", 2.0)


def test_an_absent_peer_is_null_with_its_reason_and_an_unasked_one_is_null() -> None:
    record = Record()
    record.add(visit_of(http(1), OURS, "1", [[life(1.0)]], 0.0))
    servers = [contender(OURS), contender("llama_cpp"), contender("vllm", "no .vllm")]
    result = to_json(record, servers)
    assert (result["ratio_vs_vllm"], result["absent"]) == (None, {"vllm": "no .vllm"})
    assert result["ratio_vs_llama_cpp"] is None
    assert result[f"ratio_vs_{THEIRS}"] is None
    assert result["plan_share"] is None


def test_the_mix_compares_first_tokens_of_its_short_class() -> None:
    record = Record()
    for name, short_s in ((OURS, 1.0), ("llama_cpp", 4.0)):
        lives = [life(short_s, request_class="short"), life(100.0, request_class="long")]
        record.add(visit_of(http(1), name, MIXED, [lives], 0.0))
    result = to_json(record, [contender(OURS), contender("llama_cpp")])
    assert result["short_ttft_p95_ratio_mixed"]["llama_cpp"] == {OURS: 0.25}


@pytest.mark.parametrize("point", POINTS.values(), ids=lambda point: point.name)
def test_a_seed_says_what_is_sent_and_another_one_sends_other_prompts(point: Point) -> None:
    first, same, other = (point.timetables(seed, 98, 5.0) for seed in (1, 1, 2))
    assert first == same
    asked = {arrival.ask.prompt for timetable in first for arrival in timetable}
    assert len(asked) == sum(map(len, first))
    assert asked.isdisjoint(arrival.ask.prompt for timetable in other for arrival in timetable)


class TakesTurns:
    """One token a step, for whoever waits the longest."""

    def __init__(self) -> None:
        self.left: deque[tuple[int, int]] = deque()
        self.prompts: list[list[int]] = []

    def submit(self, number: int, prompt: list[int], max_tokens: int) -> None:
        self.prompts.append(prompt)
        self.left.append((number, max_tokens))

    def step(self) -> list[tuple[int, int]] | None:
        if not self.left:
            return None
        number, tokens = self.left.popleft()
        if tokens > 1:
            self.left.append((number, tokens - 1))
        return [(number, 1)]


def test_an_engine_in_this_process_gets_every_request_once_and_every_token_is_timed() -> None:
    (arrivals,) = POINTS["8"].timetables(1, 128, 1.0)[:1]
    first, second = TakesTurns(), TakesTurns()
    lives = drive(first, arrivals)
    drive(second, arrivals)
    assert [len(each.token_at) for each in lives] == [64] * 8
    assert {len(prompt) for prompt in first.prompts} == {128}
    assert first.prompts == second.prompts


def test_a_llama_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no such model >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(TargetFailed, match="no such model"), LlamaServer(broken, tmp_path / "m.gguf"):
        pass
