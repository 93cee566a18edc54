"""The fields of answers and refusals beside those of vLLM's own code: a client finds what it looks for."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.net.http import get, post
from tests.net.serving import RunningServer

VLLM = Path(__file__).parents[2] / ".vllm" / "bin" / "python"
ANSWERS = Path(__file__).parent / "vllm_answers.py"
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not VLLM.exists(), reason="no vLLM here: make vllm"),
    pytest.mark.timeout(900),  # vLLM alone takes up to a minute to import
]

USER = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3, "ignore_eos": True}
TEXT = {"prompt": [7, 8, 9], "max_tokens": 3, "ignore_eos": True}
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
ANSWERED = [
    (CHAT, USER),
    (CHAT, USER | {"logprobs": True, "top_logprobs": 1, "prompt_logprobs": 1}),
    (CHAT, USER | {"return_token_ids": True, "return_prompt_text": True}),
    (CHAT, USER | {"stream": True}),
    (CHAT, USER | STREAMED),
    (CHAT, USER | STREAMED | {"logprobs": True, "top_logprobs": 1}),
    (CHAT, USER | STREAMED | {"return_token_ids": True, "return_prompt_text": True}),
    (
        CHAT,
        USER | {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    ),
    (COMPLETION, TEXT),
    (COMPLETION, TEXT | {"logprobs": 1, "prompt_logprobs": 1}),
    (COMPLETION, TEXT | {"return_token_ids": True}),
    (COMPLETION, TEXT | {"stream": True}),
    (COMPLETION, TEXT | STREAMED),
    (COMPLETION, TEXT | STREAMED | {"logprobs": 1}),
    (COMPLETION, TEXT | STREAMED | {"return_token_ids": True}),
]

DETAILS = ("usage.prompt_tokens_details", "usage.completion_tokens_details")
"""In events vLLM tells what was cached in the last one only, and leaves out what is null there."""

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (COMPLETION, {"prompt": [7] * 600}, "input_tokens"),
    (CHAT, USER | {"max_tokens": 5000}, "max_tokens"),
    (CHAT, USER | {"max_tokens": 0}, "max_tokens"),
    (CHAT, USER | {"model": "another"}, "model"),
    (CHAT, USER | {"temperature": -1}, "temperature"),
    (CHAT, USER | {"temperature": 3}, "temperature"),
    (CHAT, USER | {"top_p": 1.5}, "top_p"),
    (CHAT, USER | {"n": 0}, "n"),
    (CHAT, USER | {"n": 2, "temperature": 0}, "n"),
    (CHAT, USER | {"stop": 5}, "stop"),
    (COMPLETION, TEXT | {"stop": [5]}, "stop[0]"),
    (COMPLETION, TEXT | {"logprobs": 50}, "logprobs"),
    (CHAT, USER | {"top_logprobs": 5}, "top_logprobs"),
    (CHAT, USER | {"stream_options": {"include_usage": True}}, "stream_options"),
    (CHAT, USER | {"tools": []}, "tools"),
    (CHAT, USER | {"tool_choice": "auto"}, "tool_choice"),
    (CHAT, USER | {"logit_bias": {"a": 1}}, "logit_bias"),
    (CHAT, USER | {"seed": 2**64}, "seed"),
    (CHAT, USER | {"min_tokens": 20, "max_tokens": 10}, "min_tokens"),
    (CHAT, USER | {"response_format": {"type": "json_schema"}}, "response_format"),
    (CHAT, {"messages": "Hello"}, "messages"),
]
NO_JSON = [b"{", b"nope", b"[]", b""]


@pytest.fixture(scope="module")
def theirs() -> Any:
    """What vLLM says to all of them. It is asked once: the import takes long."""
    raw = [(path, json.dumps(body)) for path, body, _ in REFUSED]
    asked = {"answers": ANSWERED, "refusals": raw + [(CHAT, each.decode()) for each in NO_JSON]}
    done = subprocess.run(
        [VLLM, "-P", ANSWERS],  # without its folder: http.py is there
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
        env={**os.environ, "VLLM_TARGET_DEVICE": "cpu", "PYTHONPATH": "", "VLLM_LOGGING_LEVEL": "ERROR"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def paths(body: Any, place: str = "") -> Iterator[str]:
    """Every field of `body`, by where it stands; the elements of a list stand in one place."""
    if isinstance(body, dict):
        for name, value in body.items():
            # Token ids, and tokens in the maps of completions, are no names of fields.
            inside = name if name.isidentifier() and len(name) > 1 else "*"
            yield f"{place}{inside}"
            yield from paths(value, f"{place}{inside}.")
    elif isinstance(body, list):
        for each in body:
            yield from paths(each, place)


@pytest.mark.parametrize("place", range(len(ANSWERED)))
def test_an_answer_has_every_field_that_vllm_s_has(server: RunningServer, theirs: Any, place: int) -> None:
    path, asked = ANSWERED[place]
    answer = post(server.port, path, asked)
    assert answer.status == 200, answer.body
    if not asked.get("stream"):
        assert set(paths(answer.json)) == set(paths(theirs["answers"][place]))
        return
    ours, events = answer.events[:-1], theirs["answers"][place]
    assert told(ours) == told(events)
    # From the last event: vLLM's first has the role alone, which ours has with the first token.
    for mine, other in zip(reversed(ours), reversed(events), strict=False):
        assert told(other) <= told(mine)


def told(events: Any) -> set[str]:
    return {each for each in paths(events) if not each.startswith(DETAILS)}


@pytest.mark.parametrize("place", range(len(REFUSED)), ids=lambda place: str(REFUSED[place][1])[-60:])
def test_a_refusal_has_vllm_s_status_and_names_the_same_field(
    server: RunningServer, theirs: Any, place: int
) -> None:
    path, asked, param = REFUSED[place]
    status, body = theirs["refusals"][place]
    answer = post(server.port, path, asked)
    error, other = answer.json["error"], body["error"]
    assert (answer.status, error["code"]) == (status, other["code"])
    assert set(error) == set(other)
    assert error["type"] == other["type"].replace("Bad Request", "BadRequestError")
    assert error["param"] == param
    field = param.removesuffix("[0]")
    assert other["param"] in {field, f"body.{field}", None}


@pytest.mark.parametrize("place", range(len(NO_JSON)), ids=lambda place: repr(NO_JSON[place]))
def test_what_is_no_request_at_all_has_vllm_s_status(server: RunningServer, theirs: Any, place: int) -> None:
    status, body = theirs["refusals"][len(REFUSED) + place]
    answer = post(server.port, CHAT, NO_JSON[place])
    assert (answer.status, answer.json["error"]["code"]) == (status, body["error"]["code"])


@pytest.mark.parametrize("path", ["/v1/models", "/tokenize", "/detokenize", "/version", "error"])
def test_what_is_said_of_the_server_has_every_field_that_vllm_s_has(
    server: RunningServer, theirs: Any, path: str
) -> None:
    asked: dict[str, Any] = {"/tokenize": {"prompt": "Hello"}, "/detokenize": {"tokens": [7]}, "error": {}}
    answer = (
        post(server.port, CHAT if path == "error" else path, asked[path])
        if path in asked
        else get(server.port, path)
    )
    mine, other = set(paths(answer.json)), set(paths(theirs["others"][path]))
    permission = {each for each in other if each.startswith("data.permission.")}
    assert mine == other - permission, "permission is an empty list here: there are none"
