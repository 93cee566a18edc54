"""What `python -m bench.policies` makes of the requests it measured."""

from bench.policies import meets_the_usual_goal, outcome_of
from headrace.core.timeline import Timeline


def timeline(prompt_tokens: int, *token_at: float) -> Timeline:
    return Timeline("r", "trace", prompt_tokens, 0.0, 0.0, token_at, "length")


def test_a_goal_is_met_by_the_first_token_and_by_the_gaps() -> None:
    assert meets_the_usual_goal(timeline(100, 0.69, 0.85))
    assert not meets_the_usual_goal(timeline(100, 0.71)), "half a second, and 2 ms for each of 100 tokens"
    assert meets_the_usual_goal(timeline(4000, 8.5))
    assert not meets_the_usual_goal(timeline(100, 0.1, 0.31))


def test_short_and_long_are_told_apart_by_their_prompts() -> None:
    outcome = outcome_of([timeline(10, 1.0, 1.1), timeline(20, 3.0), timeline(21, 9.0, 10.0)], 20)
    assert (outcome.short_ttft_p50_s, outcome.long_ttft_p50_s, outcome.long_ttft_max_s) == (2.0, 9.0, 9.0)
    assert outcome.output_tokens_per_s == 0.5
    assert round(outcome.itl_p99_s, 3) == 0.991
