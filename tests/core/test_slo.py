"""Goals as people write them."""

import pytest

from headrace.core.errors import BadInput
from headrace.core.settings import SchedulingPolicy, Settings
from headrace.core.slo import USUAL, Goal, parse_goals

MS, S = 10**6, 10**9


def test_goals_are_read_as_people_write_them() -> None:
    goals = parse_goals("chat: ttft 500ms, itl 60ms; docs:ttft 2.5s+3ms/token ;itl 0.1s")
    assert goals.of("chat") == Goal(500 * MS, 0, 60 * MS)
    assert goals.of("docs") == Goal(2500 * MS, 3 * MS, 100 * MS)
    assert goals.of("anybody else") == Goal(USUAL.ttft_ns, USUAL.ttft_ns_per_token, 100 * MS)
    assert goals.of("docs").first_token_ns(1000) == 5500 * MS


def test_without_a_goal_the_usual_one_grows_with_the_prompt() -> None:
    assert parse_goals("").of("") == USUAL
    assert USUAL.first_token_ns(1000) == 2 * S + S // 2


@pytest.mark.parametrize(
    "text",
    [
        "chat: ttft 500",
        "chat: 500ms",
        "chat ttft 500ms",
        ": ttft 1s",
        "chat: ttft 1s; chat: itl 1s",
        "ttft 1s, ttft 2s",
        "itl 1s + 1ms/token",
        "ttft 0ms",
        "ttft -1s",
        "chat:",
    ],
)
def test_what_is_no_goal_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse_goals(text)
    assert "ttft 500ms" in refused.value.hint


def test_goals_for_a_policy_that_has_none_are_refused() -> None:
    with pytest.raises(BadInput, match="fcfs"):
        Settings(max_model_len=128, num_gpu_blocks=100, slo="ttft 1s")
    Settings(max_model_len=128, num_gpu_blocks=100, slo="ttft 1s", scheduling_policy=SchedulingPolicy.SLO)
