import json

import pytest

from headrace.core.bill import CAUSES, Cause
from headrace.core.exchange import Answer, Ask
from headrace.core.timeline import FailureKind
from headrace.net.transcript import StreamBroke, Transcript, error_message

ASK = Ask("r", "short", "five words in a prompt", max_tokens=8)

ROLE = {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
DONE = "[DONE]"


def text(content: str, finish_reason: str | None = None) -> dict[str, object]:
    return {"choices": [{"delta": {"content": content}, "finish_reason": finish_reason}]}


def usage(completion_tokens: object, **more: object) -> dict[str, object]:
    return {"choices": [], "usage": {"prompt_tokens": 40, "completion_tokens": completion_tokens, **more}}


def heard(*events: object) -> Answer:
    """Events arrive at 1, 2, 3, ..."""
    transcript = Transcript(ASK)
    for at, event in enumerate(events, start=1):
        transcript.hear((event if isinstance(event, str) else json.dumps(event)).encode(), float(at))
    return transcript.answer(sent_at=0.5)


def test_an_event_that_only_announces_the_role_is_no_token() -> None:
    answer = heard(ROLE, text("a"), text("b", "length"), usage(2), DONE)

    assert answer == Answer(
        0.5,
        (2.0, 3.0),
        "length",
        prompt_tokens=40,
        cached_tokens=0,
        bill_s=None,
        usage_tokens=2,
        token_events=2,
    )


def test_headrace_sends_a_token_with_every_event_even_when_it_holds_all_text_back() -> None:
    bill = {cause.value: 0.25 for cause in CAUSES}

    answer = heard(ROLE, text("é"), text("", "length"), usage(3, headrace_bill=bill), DONE)

    assert answer.token_at == (1.0, 2.0, 3.0)
    assert answer.bill_s == dict.fromkeys(CAUSES, 0.25)


def test_an_end_of_sequence_token_shows_no_text_and_is_still_one() -> None:
    assert heard(ROLE, text("", "stop"), usage(1), DONE).token_at == (2.0,)


def test_reasoning_and_tool_calls_are_tokens_too() -> None:
    reasoning = {"choices": [{"delta": {"reasoning_content": "hm"}}]}
    call = {"choices": [{"delta": {"tool_calls": [{"index": 0}]}, "finish_reason": "tool_calls"}]}

    assert heard(ROLE, reasoning, call).token_at == (2.0, 3.0)


def test_the_prefix_cache_is_credited() -> None:
    answer = heard(text("a", "length"), usage(1, prompt_tokens_details={"cached_tokens": 32}))

    assert answer.cached_tokens == 32


@pytest.mark.parametrize("tokens", ["many", -1, 10**12, None, 1.5, {}])
def test_a_usage_that_cannot_be_is_not_believed(tokens: object) -> None:
    answer = heard(text("a"), text("b", "length"), usage(tokens), DONE)

    assert answer.token_at == (1.0, 2.0)
    assert answer.prompt_tokens == ASK.num_prompt_words


@pytest.mark.parametrize("bill", [{"witchcraft": 1.0}, {"kv": -1.0}])
def test_a_bill_that_would_not_add_up_is_no_bill(bill: dict[str, float]) -> None:
    assert heard(text("a", "length"), usage(1, headrace_bill=bill)).bill_s is None


def test_causes_left_out_of_a_bill_cost_nothing() -> None:
    bill_s = heard(text("a", "length"), usage(1, headrace_bill={"kv": 0.5})).bill_s

    assert bill_s is not None
    assert bill_s[Cause.KV] == 0.5
    assert sum(bill_s.values()) == 0.5


def test_a_finish_reason_makes_an_answer_whole_even_without_done() -> None:
    assert heard(text("a", "stop")).finish_reason == "stop"


def test_done_makes_an_answer_whole_even_without_a_finish_reason() -> None:
    assert heard(text("a"), DONE).finish_reason == "unstated"


@pytest.mark.parametrize(
    ("events", "kind", "reason"),
    [
        ([text("a")], FailureKind.CUT, "ended after 1 tokens"),
        ([], FailureKind.CUT, "ended after 0 tokens"),
        ([text("a"), text("", "abort"), DONE], FailureKind.CUT, "abort"),
        ([text("a"), {"error": {"message": "out of memory", "code": 500}}], FailureKind.CUT, "out of memory"),
        ([{"object": "error", "message": "gone"}], FailureKind.CUT, "gone"),
        (["{half"], FailureKind.MALFORMED, "{half"),
        (["[1, 2]"], FailureKind.MALFORMED, "[1, 2]"),
        ([{"choices": "none"}], FailureKind.MALFORMED, "choices"),
        ([ROLE, DONE], FailureKind.EMPTY, "without a token"),
        ([ROLE, usage(0), DONE], FailureKind.EMPTY, "without a token"),
        ([text("x")] * 1000, FailureKind.MALFORMED, "still streaming"),
    ],
)
def test_half_an_answer_never_passes_for_a_whole_one(
    events: list[object], kind: FailureKind, reason: str
) -> None:
    with pytest.raises(StreamBroke) as caught:
        heard(*events)

    assert caught.value.kind is kind
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "too long: 9000 > 8192"}}', "too long: 9000 > 8192"),
        (b'{"error": "plain"}', "plain"),
        (b'{"message": "flat"}', "flat"),
        (b'{"detail": "FastAPI"}', "FastAPI"),
        (b"<html>\n  <b>502</b>\n</html>", "<html> <b>502</b> </html>"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"", ""),
        (b"[]", "[]"),
        (b'{"error": "red \\u001b[31m alert"}', "red [31m alert"),
    ],
)
def test_what_the_server_said_is_found_in_every_shape(body: bytes, message: str) -> None:
    assert error_message(body) == message


def test_a_long_error_page_is_cut_to_a_line() -> None:
    assert len(error_message(b"x" * 100_000)) == 200
