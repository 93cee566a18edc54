"""What is wrong is refused with the reason, in OpenAI's shape, and nothing is left behind."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.core.errors import BadInput
from headrace.net.bodies import MOST_CHOICES, ChatBody, CompletionBody
from headrace.net.wire import read_chat, read_completion
from tests.net.http import Answer, connected, get, post, posted, read_answer
from tests.net.scripted import SETTINGS
from tests.net.serving import RunningServer

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
USER = [{"role": "user", "content": "Hello"}]


def assert_refused(answer: Answer, status: int = 400, complaint: str = "") -> None:
    assert answer.status == status, answer.body
    error = answer.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == status
    assert error["message"]
    assert complaint in error["message"]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe\x00",
        b'{"messages": [{"role": "user", "content": "\xff"}]}',
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"messages": [{"role": "user", "content": "hi"}], "temperature": NaN}',
        b'{"messages": [{"role": "user", "content": "hi"}], "temperature": 1e999}',
        b'{"messages": [{"role": "user", "content": "hi"}], "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=lambda raw: repr(raw[:30]),
)
def test_a_body_that_is_no_request_is_refused(server: RunningServer, raw: bytes) -> None:
    assert_refused(post(server.port, CHAT, raw))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", "warm"),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", 1.5),
        ("max_tokens", 10**40),
        ("max_completion_tokens", 0),
        ("min_tokens", -1),
        ("min_tokens", 10**40),
        ("seed", 2**63),
        ("seed", "seven"),
        ("stop", ""),
        ("stop", ["a"] * 65),
        ("stop", "a" * 1025),
        ("stop", [1]),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [2**70]),
        ("priority", 2**80),
        ("cache_salt", ""),
        ("logprobs", 0),
        ("top_logprobs", 5),
        ("tool_choice", "required"),
        ("functions", [{"name": "f"}]),
        ("guided_json", {"type": "object"}),
        ("tools", [{"type": "function"}]),
        ("n", 0),
        ("n", 2000),
        ("temperature", 2.1),
        ("min_p", 1.5),
        ("presence_penalty", 2.5),
        ("repetition_penalty", 0),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"257": 1}),
        ("allowed_token_ids", []),
        ("allowed_token_ids", [257]),
        ("stop_token_ids", [257]),
        ("bad_words", [""]),
        ("bad_words", [" "]),
        ("truncate_prompt_tokens", 0),
        ("truncate_prompt_tokens", 100_000),
        ("prompt_logprobs", 21),
        ("prompt_logprobs", -1),
        ("logprob_token_ids", [1]),
        ("logprob_token_ids", [1] * 129),
        ("max_tokens", 513),
        ("max_completion_tokens", 513),
        ("top_logprobs", 21),
        ("chat_template", "{{ messages }}"),
        ("priority", 1),
        ("tools", []),
        ("tool_choice", "auto"),
        ("response_format", {"type": "xml"}),
        ("response_format", {"type": "json_schema"}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "x"}}),
        ("structured_outputs", {}),
        ("structured_outputs", {"regex": "a", "choice": ["b"]}),
        ("structured_outputs", {"choice": []}),
        ("structured_outputs", {"json": "{"}),
        ("structured_outputs", {"regex": "a", "whitespace_pattern": " "}),
        ("guided_regex", "a+"),
        ("use_beam_search", True),
        ("stream", "yes"),
        ("model", 7),
        ("stream_options", {"include_usage": True}),
        ("messages", []),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]),
        ("messages", [{"content": "hi"}]),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_name(server: RunningServer, field: str, value: Any) -> None:
    answer = post(server.port, CHAT, {"messages": USER, field: value})
    assert_refused(answer)
    assert answer.json["error"]["param"].startswith(field)


@pytest.mark.parametrize(
    "fields", [{"max_completion_tokens": 600}, {"min_tokens": 9, "max_completion_tokens": 3}]
)
def test_the_limit_that_counts_is_named_as_the_client_wrote_it(
    server: RunningServer, fields: dict[str, int]
) -> None:
    """It was called max_tokens, which nobody had sent, or which was not too large."""
    answer = post(server.port, CHAT, {"messages": USER, "max_tokens": 5} | fields)
    assert_refused(answer)
    assert answer.json["error"]["param"] == next(iter(fields))
    message = answer.json["error"]["message"]
    assert "max_completion_tokens" in message
    assert "max_tokens" not in message


def test_a_field_of_old_is_refused_with_what_took_its_place(server: RunningServer) -> None:
    for form in ("json", "regex", "choice", "grammar"):
        answer = post(server.port, CHAT, {"messages": USER, f"guided_{form}": "a"})
        assert_refused(answer, complaint=f'use structured_outputs, as in {{"{form}": ')


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {}, "messages"),
        (COMPLETION, {"max_tokens": 1}, "prompt"),
        ("/tokenize", {}, "prompt"),
        ("/detokenize", {}, "tokens"),
        (CHAT, {"messages": [{"content": "hi"}]}, "messages[0].role"),
    ],
)
def test_a_field_that_is_missing_is_named(
    server: RunningServer, path: str, body: dict[str, Any], param: str
) -> None:
    answer = post(server.port, path, body)
    assert_refused(answer)
    assert answer.json["error"]["param"] == param


@pytest.mark.parametrize(
    "prompt", ["", [], [[]], [257], [-1], [10**30], ["a", ""], [[1], [257]], [1, "a"], [1.5], None, {}]
)
def test_a_prompt_that_cannot_be_is_refused(server: RunningServer, prompt: Any) -> None:
    assert_refused(post(server.port, COMPLETION, {"prompt": prompt}))


def test_neutral_values_and_unknown_fields_are_let_pass(server: RunningServer) -> None:
    neutral = {
        "n": 1,
        "logprobs": False,
        "top_logprobs": 0,
        "best_of": 2,
        "tool_choice": "none",
        "skip_special_tokens": True,
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "tools": None,
        "response_format": {"type": "text"},
        "user": "me",
        "no_such_field": {"a": [1]},
        "temperature": 0,
        "top_p": 1,
        "top_k": -1,
        "seed": -5,
        "stop": None,
        "priority": 0,
    }
    assert post(server.port, CHAT, {"messages": USER, "max_tokens": 2, **neutral}).status == 200


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
def test_what_can_never_fit_is_refused_with_the_numbers(server: RunningServer, path: str) -> None:
    long = "x" * 600
    whole = post(server.port, path, {"messages": [{"role": "user", "content": long}], "prompt": long})
    assert_refused(whole)
    assert str(SETTINGS.max_model_len) in whole.error
    much = post(server.port, path, {"messages": USER, "prompt": "Hello", "max_tokens": 513})
    assert_refused(much)
    assert "max_tokens is 513, more than the maximum context length of 512" in much.error


def test_a_body_larger_than_any_prompt_is_refused(server: RunningServer) -> None:
    for size in (1 << 21, 1 << 23):
        raw = json.dumps({"messages": [{"role": "user", "content": "x" * size}]}).encode()
        assert_refused(post(server.port, CHAT, raw), 413)


def test_a_body_announced_as_enormous_is_refused_unread(server: RunningServer) -> None:
    with connected(server.port) as connection:
        connection.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {10**15}\r\n\r\n".encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 413")


def test_paths_and_methods_that_do_not_exist_are_refused(server: RunningServer) -> None:
    assert_refused(
        get(server.port, "/v2/chat"), 404, "there is no /v2/chat here; there are /v1/chat/completions"
    )
    assert_refused(get(server.port, CHAT), 405, "does not take GET; it takes POST")
    assert_refused(post(server.port, "/v1/models", {}), 405)


def test_bytes_that_are_no_http_do_no_harm(server: RunningServer) -> None:
    for raw in (
        b"\x16\x03\x01" * 100,
        b"GET\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: x\r\n\r\n",
    ):
        with connected(server.port) as connection:
            connection.sendall(raw)
            assert read_answer(connection).status == 400
    assert get(server.port, "/health").status == 200


def test_a_body_that_never_ends_holds_up_nobody(server: RunningServer) -> None:
    with posted(server.port, CHAT, b"", Content_Length="100"):
        assert post(server.port, CHAT, {"messages": USER, "max_tokens": 1}).status == 200


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(sorted({*ChatBody.__struct_fields__, *CompletionBody.__struct_fields__}))


@given(st.dictionaries(FIELDS, JSON, max_size=6))
def test_any_json_is_either_understood_or_refused(fields: dict[str, Any]) -> None:
    """Through the reader only: it must never raise anything else."""
    for read, needed in ((read_chat, {"messages": USER}), (read_completion, {"prompt": "a"})):
        try:
            asked = read(json.dumps({**needed, **fields}).encode())
        except BadInput:
            continue
        assert asked.limit.tokens is None or asked.limit.tokens >= 1
        assert asked.sampling.temperature >= 0
        assert 1 <= asked.n * len(asked.prompts) <= MOST_CHOICES


@given(st.binary(max_size=60))
def test_any_bytes_are_either_understood_or_refused(raw: bytes) -> None:
    with pytest.raises(BadInput):
        read_chat(raw)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from([CHAT, COMPLETION, "/tokenize", "/detokenize"]), st.dictionaries(FIELDS, JSON, max_size=4)
)
def test_any_json_is_either_answered_or_refused_in_shape(
    server: RunningServer, path: str, fields: dict[str, Any]
) -> None:
    needed = {"messages": USER} if path == CHAT else {"prompt": "a", "tokens": [1]}
    answer = post(server.port, path, {**needed, "max_tokens": 2, **fields})
    if answer.status != 200:
        assert_refused(answer, answer.status)
        assert answer.status in {400, 404}


def test_long_lists_of_tokens_with_many_answers_are_refused_with_the_product(server: RunningServer) -> None:
    """One request of 600 kB became 530 MB, and everybody waited 8 s while the engine read them."""
    words = {"bad_words": [f"{place:03}" + "x" * 1000 for place in range(128)], "max_tokens": 1}
    assert post(server.port, COMPLETION, {"prompt": "a", **words}).status == 200
    refused = post(server.port, COMPLETION, {"prompt": "a", "n": 64, **words})
    assert_refused(refused, 400, "64 answers, each with 128,384 tokens")
    assert refused.json["error"]["param"] == "n"
    several = post(server.port, COMPLETION, {"prompt": ["a"] * 64, **words})
    assert_refused(several, 400, "are 8,216,576 tokens; at most 1,048,576 are taken")
