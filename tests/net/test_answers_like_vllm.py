"""The fields of answers and refusals beside those of vLLM's own code: a client finds what it looks for."""

import json
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.net.http import get, post
from tests.net.scripted import ScriptedRecipe
from tests.net.serving import RunningServer, running, service
from tests.vllm_python import needs_vllm, vllm_says

ANSWERS = Path(__file__).parent / "vllm_answers.py"
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"

pytestmark = needs_vllm

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

TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}},
}
TOOLS = USER | {"tools": [TOOL], "max_tokens": 300, "ignore_eos": False}
NAMED = {"type": "function", "function": {"name": "f"}}
MARKED = '<tool_call>\n{"name": "f", "arguments": {"a": "</b>"}}\n</tool_call>'
TWICE = (
    f"Let me see.\n{MARKED}\n"
    '<tool_call>{"name": "f", "arguments": {"a": [1, {}], "東": null}}</tool_call>'
)
CALLING: list[tuple[dict[str, Any], str, str]] = [
    (TOOLS, TWICE, TWICE),
    (TOOLS | {"parallel_tool_calls": False}, TWICE, TWICE),
    (TOOLS | {"tool_choice": "none"}, TWICE, TWICE),
    (TOOLS, "Hello <b>", "Hello <b>"),
    (TOOLS | {"logprobs": True, "return_token_ids": True}, MARKED, MARKED),
    (TOOLS | {"tool_choice": "required"}, '[{"name": "f", "parameters": {"a": "</b>"}}]', MARKED),
    (TOOLS | {"tool_choice": NAMED}, '{"a": "</b>"}', MARKED),
]
"""What is asked, what the model says here, and there: a forced call has another grammar in each."""

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
    (CHAT, {"max_tokens": 3}, "messages"),
    (COMPLETION, {"max_tokens": 3}, "prompt"),
    (CHAT, USER | {"max_completion_tokens": 5000}, "max_completion_tokens"),
    ("/tokenize", {}, "prompt"),
    ("/tokenize", {"prompt": 5}, "prompt"),
    ("/tokenize", {"prompt": "a", "model": "another"}, "model"),
    ("/detokenize", {}, "tokens"),
    ("/detokenize", {"tokens": "a"}, "tokens"),
    ("/detokenize", {"tokens": [7], "model": "another"}, "model"),
]
NO_JSON = [b"{", b"nope", b"[]", b""]
TOLD: list[tuple[str, dict[str, Any] | None]] = [
    ("/v1/models", None),
    ("/version", None),
    ("/load", None),
    ("/tokenize", {"prompt": "Hello"}),
    ("/tokenize", {"prompt": "Hello", "return_token_strs": True}),
    ("/tokenize", {"messages": USER["messages"], "return_token_strs": True}),
    ("/detokenize", {"tokens": [7]}),
]


@dataclass(frozen=True)
class Theirs:
    answers: list[Any]
    calling: list[tuple[Any, Any]]
    """Whole and streamed."""
    refusals: list[tuple[int, Any]]
    no_json: list[tuple[int, Any]]
    told: list[tuple[int, Any]]


@pytest.fixture(scope="module")
def theirs() -> Theirs:
    """What vLLM says to all of them. It is asked once: the import takes long."""
    calling = [(CHAT, body | more, there) for body, _, there in CALLING for more in ({}, STREAMED)]
    answers = [(path, body, None) for path, body in ANSWERED] + calling
    refusals = [("POST", path, json.dumps(body)) for path, body, _ in REFUSED]
    no_json = [("POST", CHAT, each.decode()) for each in NO_JSON]
    told = [("POST" if body else "GET", path, json.dumps(body or "")) for path, body in TOLD]
    said = vllm_says(ANSWERS, {"answers": answers, "others": refusals + no_json + told})
    calls, others = iter(said["answers"][len(ANSWERED) :]), iter(said["others"])
    return Theirs(
        said["answers"][: len(ANSWERED)],
        list(zip(calls, calls, strict=True)),
        [next(others) for _ in refusals],
        [next(others) for _ in no_json],
        [next(others) for _ in told],
    )


@pytest.fixture(scope="module")
def saying() -> Generator[dict[str, RunningServer], None, None]:
    """A server for each text that a model says here, whatever it is asked."""
    with ExitStack() as stack:
        yield {
            text: stack.enter_context(running(service(ScriptedRecipe(answer=text.encode()))))
            for text in dict.fromkeys(here for _, here, _ in CALLING)
        }


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
def test_an_answer_has_every_field_that_vllm_s_has(server: RunningServer, theirs: Theirs, place: int) -> None:
    path, asked = ANSWERED[place]
    answer = post(server.port, path, asked)
    assert answer.status == 200, answer.body
    if not asked.get("stream"):
        assert set(paths(answer.json)) == set(paths(theirs.answers[place]))
        return
    ours, events = answer.events[:-1], theirs.answers[place]
    assert told(ours) == told(events)
    # From the last event: vLLM's first has the role alone, which ours has with the first token.
    for mine, other in zip(reversed(ours), reversed(events), strict=False):
        assert told(other) <= told(mine)


def told(events: Any) -> set[str]:
    return {each for each in paths(events) if not each.startswith(DETAILS)}


@pytest.mark.parametrize("place", range(len(REFUSED)), ids=lambda place: str(REFUSED[place][1])[-60:])
def test_a_refusal_has_vllm_s_status_and_names_the_same_field(
    server: RunningServer, theirs: Theirs, place: int
) -> None:
    path, asked, param = REFUSED[place]
    status, body = theirs.refusals[place]
    answer = post(server.port, path, asked)
    error, other = answer.json["error"], body["error"]
    assert (answer.status, error["code"]) == (status, other["code"])
    assert set(error) == set(other)
    assert error["type"] == other["type"].replace("Bad Request", "BadRequestError")
    assert error["param"] == param
    field = param.removesuffix("[0]")
    assert other["param"] in {field, f"body.{field}", None}


@pytest.mark.parametrize("place", range(len(NO_JSON)), ids=lambda place: repr(NO_JSON[place]))
def test_what_is_no_request_at_all_has_vllm_s_status(
    server: RunningServer, theirs: Theirs, place: int
) -> None:
    status, body = theirs.no_json[place]
    answer = post(server.port, CHAT, NO_JSON[place])
    assert (answer.status, answer.json["error"]["code"]) == (status, body["error"]["code"])


@pytest.mark.parametrize("place", range(len(TOLD)), ids=lambda place: str(TOLD[place]))
def test_what_is_said_without_the_engine_has_every_field_that_vllm_s_has(
    server: RunningServer, theirs: Theirs, place: int
) -> None:
    path, asked = TOLD[place]
    status, body = theirs.told[place]
    answer = get(server.port, path) if asked is None else post(server.port, path, asked)
    mine, other = set(paths(answer.json)), set(paths(body))
    permission = {each for each in other if each.startswith("data.permission.")}
    assert (answer.status, mine) == (status, other - permission), "permission is an empty list here"


@dataclass
class Understood:
    """What a client makes of an answer with tools, whole or in pieces."""

    content: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Names and arguments."""
    finish_reason: str | None = None

    @classmethod
    def of(cls, whole: Any) -> "Understood":
        choice = whole["choices"][0]
        made = [each["function"] for each in choice["message"].get("tool_calls", ())]
        calls = [(each["name"], each["arguments"]) for each in made]
        return cls(choice["message"]["content"] or "", calls, choice["finish_reason"])

    def hear(self, event: Any) -> None:
        for choice in event["choices"]:
            self.content += choice["delta"].get("content") or ""
            self.finish_reason = choice["finish_reason"] or self.finish_reason
            for part in choice["delta"].get("tool_calls", ()):
                self._take(part)

    def _take(self, part: Any) -> None:
        name = part["function"].get("name")
        assert (name is None) == (part.get("id") is None) == (part.get("type") is None)
        if name is not None:
            assert part["index"] == len(self.calls)
            self.calls.append((name, ""))
        assert part["index"] == len(self.calls) - 1
        name, arguments = self.calls[-1]
        self.calls[-1] = (name, arguments + part["function"].get("arguments", ""))


@pytest.mark.parametrize("place", range(len(CALLING)))
def test_a_client_understands_the_same_calls_of_tools(
    saying: dict[str, RunningServer], theirs: Theirs, place: int
) -> None:
    asked, here, _ = CALLING[place]
    whole = post(saying[here].port, CHAT, asked).json
    other, events = theirs.calling[place]
    assert set(paths(whole)) == set(paths(other))
    assert Understood.of(whole) == Understood.of(other)

    streamed = post(saying[here].port, CHAT, asked | STREAMED)
    assert heard(streamed.events[:-1]) == heard(events) == Understood.of(whole)
    assert told(streamed.events[:-1]) == told(events)
    assert pieces(streamed.events[:-1]) >= pieces(events), "arguments come as they are written"


def heard(events: list[Any]) -> Understood:
    understood = Understood()
    for event in events:
        understood.hear(event)
    return understood


def pieces(events: list[Any]) -> int:
    """Of arguments."""
    choices = [choice for event in events for choice in event["choices"]]
    parts = [part for choice in choices for part in choice["delta"].get("tool_calls", ())]
    return sum(bool(part["function"].get("arguments")) for part in parts)
