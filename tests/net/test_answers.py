"""What a client gets: text, usage, reasons, whole and streamed."""

import codecs
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.net.http import Answer, get, post
from tests.net.scripted import ANSWER, SETTINGS
from tests.net.serving import RunningServer, running, service

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
HELLO = [{"role": "user", "content": "Hello"}]


def chat(server: RunningServer, **fields: Any) -> Answer:
    return post(server.port, CHAT, {"messages": HELLO, **fields})


def completion(server: RunningServer, **fields: Any) -> Answer:
    return post(server.port, COMPLETION, {"prompt": "Hello", **fields})


def test_a_chat_is_answered_until_its_end_token(server: RunningServer) -> None:
    answer = chat(server)
    choice, usage = answer.json["choices"][0], answer.json["usage"]
    assert answer.status == 200
    assert answer.json["object"] == "chat.completion"
    assert {name: value for name, value in choice["message"].items() if value is not None} == {
        "role": "assistant",
        "content": ANSWER,
    }
    assert choice["finish_reason"] == "stop"
    assert usage["completion_tokens"] == len(ANSWER.encode()) + 1, "the end token is counted"
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_a_completion_has_16_tokens_unless_told_otherwise(server: RunningServer) -> None:
    answer = completion(server)
    assert answer.json["object"] == "text_completion"
    assert answer.json["choices"][0]["finish_reason"] == "length"
    assert answer.json["usage"]["completion_tokens"] == 16


def test_a_chat_that_ignores_the_end_fills_the_context(server: RunningServer) -> None:
    usage = chat(server, ignore_eos=True).json["usage"]
    assert usage["total_tokens"] == SETTINGS.max_model_len


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_a_chat_stops_at_the_tokens_asked_for(server: RunningServer, field: str) -> None:
    assert chat(server, **{field: 3}).json["usage"]["completion_tokens"] == 3


def test_max_completion_tokens_goes_before_max_tokens(server: RunningServer) -> None:
    answer = chat(server, max_tokens=9, max_completion_tokens=3)
    assert answer.json["usage"]["completion_tokens"] == 3


def test_a_prompt_may_be_token_ids(server: RunningServer) -> None:
    for prompt in ([72, 105], [[72, 105]], ["Hi"], "Hi"):
        assert completion(server, prompt=prompt).json["usage"]["prompt_tokens"] == 2


def test_a_body_may_begin_with_the_mark_of_utf_8(server: RunningServer) -> None:
    """PowerShell sends it, vLLM takes it; here the body was no JSON."""
    body = codecs.BOM_UTF8 + json.dumps({"messages": HELLO, "max_tokens": 1}).encode()
    assert post(server.port, CHAT, body).status == 200


def test_content_parts_of_type_text_are_joined_by_line_breaks(server: RunningServer) -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    answer = post(server.port, CHAT, {"messages": [{"role": "user", "content": parts}], "max_tokens": 1})
    plain = chat(server, max_tokens=1).json["usage"]["prompt_tokens"]
    assert answer.json["usage"]["prompt_tokens"] == plain + 1


def test_a_stream_has_one_event_for_each_token_and_no_half_characters(server: RunningServer) -> None:
    answer = chat(server, stream=True, max_tokens=48)
    events = answer.events
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert events[-1] == "[DONE]"
    assert len(events) == 49
    assert answer.text == ANSWER.encode()[:48].decode()
    deltas = [event["choices"][0]["delta"] for event in events[:-1]]
    assert deltas[0] == {"role": "assistant", "content": "T"}
    assert deltas[6] == {"content": ""}, "the first byte of two"
    assert deltas[7] == {"content": "ï"}
    reasons = [event["choices"][0]["finish_reason"] for event in events[:-1]]
    assert reasons == [None] * 47 + ["length"]
    assert len({event["id"] for event in events[:-1]}) == 1


def test_a_streamed_completion_says_the_same_as_a_whole_one(server: RunningServer) -> None:
    whole = completion(server, max_tokens=40)
    streamed = completion(server, max_tokens=40, stream=True)
    assert streamed.text == whole.json["choices"][0]["text"]
    assert {event["object"] for event in streamed.events[:-1]} == {"text_completion"}


def test_usage_comes_in_a_last_event_when_asked_for(server: RunningServer) -> None:
    with_usage = chat(server, stream=True, max_tokens=3, stream_options={"include_usage": True}).events
    assert with_usage[-2]["choices"] == []
    assert with_usage[-2]["usage"]["completion_tokens"] == 3
    assert not any("usage" in event for event in chat(server, stream=True, max_tokens=3).events[:-1])


@pytest.mark.parametrize("stream", [False, True])
def test_the_bill_is_shown_to_those_who_ask_and_names_the_whole_wait(
    server: RunningServer, stream: bool
) -> None:
    body: dict[str, Any] = {"messages": HELLO, "max_tokens": 2, "stream": stream}
    if stream:
        body["stream_options"] = {"include_usage": True}
    answer = post(server.port, CHAT, body, X_Headrace_Bill="1")
    usage = answer.events[-2]["usage"] if stream else answer.json["usage"]
    assert set(usage["headrace_bill"]) >= {"front_end", "step_in_flight", "own_prefill"}
    assert all(part >= 0 for part in usage["headrace_bill"].values())
    assert sum(usage["headrace_bill"].values()) > 0
    assert "headrace_bill" not in chat(server, max_tokens=2).json["usage"]


def test_a_prompt_seen_before_is_found_in_the_prefix_cache(server: RunningServer) -> None:
    prompt = "The same forty and some more characters, twice"
    completion(server, prompt=prompt)
    usage = completion(server, prompt=prompt).json["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 32, "two whole blocks of 16"
    salted = completion(server, prompt=prompt, cache_salt="mine").json["usage"]
    assert salted["prompt_tokens_details"]["cached_tokens"] == 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("stop", "text"), [("caf", "The naïve "), (["ve c", "zz"], "The naï"), ("é", "The naïve caf")]
)
def test_a_stop_string_ends_the_answer_and_is_not_part_of_it(
    server: RunningServer, stop: str | list[str], text: str, stream: bool
) -> None:
    answer = chat(server, stop=stop, stream=stream)
    last = (answer.events[-2] if stream else answer.json)["choices"][0]
    assert (answer.text if stream else last["message"]["content"]) == text
    assert last["finish_reason"] == "stop"
    assert last["stop_reason"] == (stop if isinstance(stop, str) else stop[0])


def test_events_come_while_text_is_held_back_and_the_text_comes_when_it_is_clear(
    server: RunningServer,
) -> None:
    answer = chat(server, stop="The naïve dog", stream=True, max_tokens=20)
    contents = [event["choices"][0]["delta"]["content"] for event in answer.events[:-1]]
    assert contents[:11] == [""] * 11
    assert contents[11] == "The naïve c"
    assert len(contents) == 20


def test_a_stop_token_ends_the_answer_and_is_not_part_of_it(server: RunningServer) -> None:
    choice = chat(server, stop_token_ids=[ord("n")]).json["choices"][0]
    assert choice["message"]["content"] == "The "
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", ord("n"))


def test_nothing_stops_an_answer_before_its_min_tokens(server: RunningServer) -> None:
    choice = chat(server, stop=["naïve", "café"], min_tokens=11).json["choices"][0]
    assert choice["message"]["content"] == "The naïve "
    again = chat(server, stop="e", min_tokens=len(ANSWER.encode()) + 10, max_tokens=80).json["choices"][0]
    assert again["message"]["content"].startswith(ANSWER)


def test_a_request_id_is_echoed(server: RunningServer) -> None:
    answer = post(server.port, CHAT, {"messages": HELLO, "max_tokens": 1}, X_Request_Id="my-id")
    assert answer.headers["x-request-id"] == "my-id"
    assert answer.json["id"] == "chatcmpl-my-id"


def test_two_requests_with_one_request_id_do_not_meet(server: RunningServer) -> None:
    answers = [
        post(server.port, CHAT, {"messages": HELLO, "max_tokens": 5}, X_Request_Id="same") for _ in range(2)
    ]
    assert [answer.status for answer in answers] == [200, 200]


def test_every_name_of_the_model_works_and_no_other(server: RunningServer) -> None:
    for name in ("scripted", "alias", "", None):
        assert chat(server, model=name, max_tokens=1).status == 200
    missing = chat(server, model="gpt-5")
    assert missing.status == 404
    assert missing.json["error"]["type"] == "NotFoundError"
    assert "'gpt-5'" in missing.error
    assert [card["id"] for card in get(server.port, "/v1/models").json["data"]] == ["scripted", "alias"]


def test_the_server_says_who_it_is(server: RunningServer) -> None:
    assert get(server.port, "/health").status == 200
    assert get(server.port, "/ping").status == 200
    assert set(get(server.port, "/version").json) == {"version"}
    assert get(server.port, "/v1/models").json["data"][0]["max_model_len"] == SETTINGS.max_model_len


def test_the_beginning_of_a_stop_string_at_the_end_is_text(server: RunningServer) -> None:
    text = completion(server, max_tokens=6).json["choices"][0]["text"]
    stopped = completion(server, max_tokens=6, stop=text[-2:] + "never").json["choices"][0]
    assert (stopped["text"], stopped["finish_reason"]) == (text, "length")


def test_a_stop_string_may_come_with_the_token_after_min_tokens(server: RunningServer) -> None:
    text = completion(server, max_tokens=6).json["choices"][0]["text"]
    assert text.count(text[3]) == 1, "else this shows nothing"
    stopped, passed = (completion(server, max_tokens=6, stop=text[3], min_tokens=n) for n in (3, 4))
    assert stopped.json["choices"][0]["text"] == text[:3]
    assert passed.json["choices"][0]["text"] == text


@pytest.mark.parametrize("of", [chat, completion])
def test_a_stream_s_events_have_as_many_tokens_as_asked_for(
    server: RunningServer, of: Callable[..., Answer]
) -> None:
    """vLLM's `stream_interval`: the first token and the end come at once all the same."""
    asked = {"max_tokens": 10, "ignore_eos": True, "stream": True}
    one, four = of(server, **asked), of(server, **asked, stream_interval=4)
    assert (len(one.events), len(four.events)) == (11, 5)
    assert four.text == one.text
    stopped = of(server, **asked, stream_interval=4, stop=[one.text[6:8]], return_token_ids=True)
    assert stopped.text == one.text[:6]
    assert [len(event["choices"][0]["token_ids"]) for event in stopped.events[:-1]] == [1, 4, 4]


def test_a_server_can_say_how_many_tokens_an_event_has_at_least() -> None:
    asked = {"prompt": "Hello", "max_tokens": 10, "ignore_eos": True, "stream": True}
    with running(replace(service(), stream_interval=4)) as server:
        events = [
            len(post(server.port, COMPLETION, asked | {"stream_interval": interval}).events)
            for interval in (1, 4, 100)
        ]
    assert events == [5, 5, 3]
