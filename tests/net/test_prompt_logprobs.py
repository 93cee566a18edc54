"""How likely prompts were, and tokens by number: vLLM's fields, in vLLM's shapes."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import openai
import pytest
from openai.types import Completion

from headrace.executor.scripted import ScriptedTokenizer
from headrace.net import generation, replies
from tests.net.http import Answer, get, post
from tests.net.scripted import ANSWER
from tests.net.serving import MODEL, RunningServer, running, service
from tests.net.test_refusals import CHAT, COMPLETION, USER, assert_refused

PROMPT = "Hello, how"
TOKENS = list(PROMPT.encode())


@pytest.fixture
def client(server: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=20)


def completion(server: RunningServer, **fields: Any) -> Answer:
    return post(server.port, COMPLETION, {"prompt": PROMPT, "max_tokens": 4, **fields})


def chat(server: RunningServer, **fields: Any) -> Answer:
    return post(server.port, CHAT, {"messages": USER, "max_tokens": 4, **fields})


def logprobs_of(parts: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Those of a whole answer, or of all events of one."""
    told = [part["choices"][0]["logprobs"] for part in parts]
    return {name: [item for each in told for item in each[name]] for name in told[0]}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("max_tokens", [0, 4])
def test_echo_with_logprobs_tells_of_the_prompt_and_then_of_the_answer(
    server: RunningServer, max_tokens: int, stream: bool
) -> None:
    answer = completion(server, echo=True, logprobs=2, max_tokens=max_tokens, stream=stream)
    told = logprobs_of(answer.events[:-1] if stream else [answer.json])
    text = PROMPT + ANSWER[:max_tokens]
    assert told["tokens"] == list(text)
    assert told["text_offset"] == list(range(len(text)))
    assert told["token_logprobs"][0] is None
    assert told["top_logprobs"][0] is None
    assert all(logprob < 0 for logprob in told["token_logprobs"][1 : len(PROMPT)])
    assert all(token in top for token, top in zip(told["tokens"][1:], told["top_logprobs"][1:], strict=True))
    assert all(2 <= len(top) <= 3 for top in told["top_logprobs"][1:])
    assert (answer.text if stream else answer.json["choices"][0]["text"]) == text


def test_a_prompt_is_as_likely_streamed_as_whole_and_whatever_is_cached(server: RunningServer) -> None:
    """A request that asks reads nothing from the prefix cache: it would know nothing of those tokens."""
    prompt = "The same fifty characters and some more of them, often"
    asks = {"prompt": prompt, "echo": True, "logprobs": 1}
    cold = completion(server, **asks).json
    warm = completion(server, **asks).json
    streamed = logprobs_of(completion(server, **asks, stream=True).events[:-1])
    assert cold["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert logprobs_of([cold]) == logprobs_of([warm]) == streamed
    plain = completion(server, prompt=prompt).json["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert plain == 48, "others do read what it computed"


@pytest.mark.parametrize(("tokens", "in_loop"), [(10, True), (400, False)])
def test_many_names_are_given_where_they_hold_up_nobody(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, tokens: int, in_loop: bool
) -> None:
    """Those of a prompt of 4,000 tokens held all answers up for a quarter of a second."""
    threads: list[str] = []

    def watched(work: Callable[..., Any]) -> Callable[..., Any]:
        def watching(*args: Any) -> Any:
            threads.append(threading.current_thread().name)
            return work(*args)

        return watching

    monkeypatch.setattr(generation, "prompt_logprobs", watched(generation.prompt_logprobs))
    monkeypatch.setattr(replies, "completion_logprobs", watched(replies.completion_logprobs))
    asks = {"prompt": "x" * tokens, "echo": True, "logprobs": 2}
    whole = completion(server, **asks, prompt_logprobs=2).json["choices"][0]
    streamed = logprobs_of(completion(server, **asks, stream=True).events[:-1])
    assert len(whole["prompt_logprobs"]) == tokens
    assert len(whole["logprobs"]["tokens"]) == len(streamed["tokens"]) == tokens + 4
    long_ones = [threads[0], threads[1], threads[2]]  # named, written whole, written as the first event
    assert [name == "server" for name in long_ones] == [in_loop] * 3
    assert set(threads[3:]) <= {"server"}, "single tokens are named where they come"


def test_prompt_logprobs_have_vllms_shape_on_both_endpoints(server: RunningServer) -> None:
    of_completion = completion(server, prompt_logprobs=2).json["choices"][0]["prompt_logprobs"]
    answer = chat(server, prompt_logprobs=2, return_token_ids=True).json
    assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]
    for told, tokens in ((of_completion, TOKENS), (answer["prompt_logprobs"], answer["prompt_token_ids"])):
        assert told[0] is None
        for token, likely in zip(tokens[1:], told[1:], strict=True):
            assert 2 <= len(likely) <= 3
            assert next(iter(likely)) == str(token), "the token of the prompt comes first"
            assert set(likely[str(token)]) == {"logprob", "rank", "decoded_token"}
            assert likely[str(token)]["decoded_token"] == chr(token)
            by_rank = sorted(likely.values(), key=lambda each: each["rank"])
            assert [each["rank"] for each in by_rank[:2]] == [1, 2]
            assert by_rank == sorted(by_rank, key=lambda each: -each["logprob"])


def test_prompts_of_a_batch_and_choices_of_a_prompt_are_each_told_of(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt=["one", "three"], max_tokens=2, n=2, echo=True, logprobs=0, seed=1
    )
    tokens = [choice.logprobs.tokens or [] for choice in answer.choices if choice.logprobs]
    assert ["".join(each) for each in tokens] == ["oneTh", "oneTh", "threeTh", "threeTh"]
    told = [(choice.model_extra or {})["prompt_logprobs"] for choice in answer.choices]
    assert [len(each) for each in told] == [3, 3, 5, 5]
    assert told[0] == told[1]


def test_a_prompt_of_one_token_has_nothing_but_its_null(server: RunningServer) -> None:
    choice = completion(server, prompt="A", prompt_logprobs=5, echo=True, logprobs=3).json["choices"][0]
    assert choice["prompt_logprobs"] == [None]
    assert choice["logprobs"]["token_logprobs"][0] is None


def test_prompt_logprobs_go_before_logprobs_for_an_echoed_prompt(server: RunningServer) -> None:
    choice = completion(server, prompt_logprobs=1, echo=True, logprobs=4).json["choices"][0]
    assert max(len(top) for top in choice["logprobs"]["top_logprobs"][1 : len(PROMPT)]) <= 2
    assert min(len(top) for top in choice["logprobs"]["top_logprobs"][len(PROMPT) :]) >= 3


def test_a_chat_that_echoes_and_has_top_logprobs_tells_of_its_prompt(server: RunningServer) -> None:
    answer = chat(server, echo=True, logprobs=True, top_logprobs=1).json
    assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]
    assert len(answer["choices"][0]["logprobs"]["content"]) == 4, "the answer's tokens alone"


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
def test_prompt_logprobs_do_not_come_with_a_stream(server: RunningServer, path: str) -> None:
    body = {"messages": USER, "prompt": PROMPT, "max_tokens": 2, "stream": True}
    assert_refused(post(server.port, path, {**body, "prompt_logprobs": 1}), 400, "echo and logprobs")
    assert post(server.port, path, {**body, "prompt_logprobs": 0}).status == 200, "as in vLLM"


def test_who_asks_for_nothing_is_told_nothing(server: RunningServer) -> None:
    choice = completion(server).json["choices"][0]
    answer = chat(server).json
    assert choice["prompt_logprobs"] is choice["token_ids"] is choice["prompt_token_ids"] is None
    assert answer["prompt_logprobs"] is answer["prompt_token_ids"] is answer["prompt_text"] is None
    events = completion(server, stream=True).events[:-1] + chat(server, stream=True).events[:-1]
    assert not any(event["choices"][0]["token_ids"] or event.get("prompt_token_ids") for event in events)


def test_who_asks_for_the_text_of_a_chat_sees_what_the_model_sees(server: RunningServer) -> None:
    asked = {"return_prompt_text": True, "return_token_ids": True}
    whole = chat(server, **asked).json
    assert bytes(whole["prompt_token_ids"]).decode() == whole["prompt_text"]
    first, *later = chat(server, **asked, stream=True).events[:-1]
    assert first["prompt_text"] == whole["prompt_text"]
    assert not any("prompt_text" in event for event in later)


@pytest.mark.parametrize("stream", [False, True])
def test_token_ids_are_returned_with_the_end_of_the_answer_among_them(
    client: openai.OpenAI, stream: bool
) -> None:
    asked: dict[str, Any] = {"model": MODEL, "prompt": PROMPT, "max_tokens": 99, "stream": stream}
    answer = client.completions.create(**asked, extra_body={"return_token_ids": True})
    parts = [answer] if isinstance(answer, Completion) else list(answer)
    told = [part.choices[0].model_extra or {} for part in parts]
    ids = [token for each in told for token in each["token_ids"]]
    assert ids == [*ANSWER.encode(), ScriptedTokenizer.eos_token_id]
    assert told[0]["prompt_token_ids"] == TOKENS
    assert not any(each["prompt_token_ids"] for each in told[1:]), "only in the first event"


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_returns_the_tokens_of_its_template_too(server: RunningServer, stream: bool) -> None:
    answer = chat(server, return_token_ids=True, stream=stream, n=2)
    parts = answer.events[:-1] if stream else [answer.json]
    ids: dict[int, list[int]] = {0: [], 1: []}
    for part in parts:
        for choice in part["choices"]:
            ids[choice["index"]] += choice["token_ids"]
    assert ids == {0: list(b"The "), 1: list(b"The ")}
    assert bytes(parts[0]["prompt_token_ids"]).startswith(b"user: Hello")


def test_an_echo_is_left_out_where_its_tokens_are_returned(server: RunningServer) -> None:
    choice = completion(server, echo=True, return_token_ids=True).json["choices"][0]
    assert (choice["text"], choice["prompt_token_ids"]) == ("The ", TOKENS), "as in vLLM"


def test_tokens_can_be_called_by_their_numbers(server: RunningServer) -> None:
    fields = {"return_tokens_as_token_ids": True, "prompt": "Hi"}
    told = completion(server, **fields, echo=True, logprobs=1).json["choices"][0]["logprobs"]
    assert told["tokens"][:3] == ["token_id:72", "token_id:105", "token_id:84"]
    assert all(key.startswith("token_id:") for top in told["top_logprobs"][1:] for key in top)
    token = chat(server, **fields, logprobs=True).json["choices"][0]["logprobs"]["content"][0]
    assert (token["token"], token["bytes"]) == ("token_id:84", [84])


def test_tokens_can_be_asked_for_by_number(server: RunningServer) -> None:
    asked = {"logprob_token_ids": [65, 256, 65]}
    told = completion(server, **asked, logprobs=1).json["choices"][0]["logprobs"]["top_logprobs"]
    assert [list(top) for top in told] == [["A", "<|end|>", letter] for letter in "The "]
    content = chat(server, **asked, logprobs=True).json["choices"][0]["logprobs"]["content"]
    assert [[each["token"] for each in token["top_logprobs"]] for token in content] == [["A", "<|end|>"]] * 4
    for wrong in ({"logprob_token_ids": [257]}, {"max_tokens": 0, "echo": True}):
        refused = completion(server, **{**asked, "logprobs": 1, **wrong})
        assert_refused(refused)
        assert refused.json["error"]["param"] == "logprob_token_ids"


def test_a_completion_begins_as_every_text_of_the_model_and_a_chat_as_its_template() -> None:
    bos = ScriptedTokenizer.eos_token_id
    with running(replace(service(), load_tokenizer=lambda: ScriptedTokenizer((bos,)))) as server:
        for wanted, begins in ((None, [bos]), (True, [bos]), (False, [])):
            asked = {"return_token_ids": True, "add_special_tokens": wanted}
            assert completion(server, **asked).json["choices"][0]["prompt_token_ids"] == begins + TOKENS
            body = {"prompt": PROMPT, "add_special_tokens": wanted}
            assert post(server.port, "/tokenize", body).json["tokens"] == begins + TOKENS
        for wanted in (None, True):
            told = chat(server, return_token_ids=True, add_special_tokens=wanted).json["prompt_token_ids"]
            assert (told[0] == bos) == bool(wanted)
        ids = completion(server, prompt=TOKENS, return_token_ids=True).json["choices"][0]["prompt_token_ids"]
        assert ids == TOKENS, "who sends tokens has said it all"
        echoed = completion(server, echo=True, logprobs=0, max_tokens=0).json["choices"][0]
        assert echoed["text"] == PROMPT
        assert echoed["logprobs"]["tokens"] == ["<|end|>", *PROMPT]


def test_an_answer_is_cut_to_what_the_context_leaves(server: RunningServer) -> None:
    """It was refused; vLLM cuts it."""
    answer = completion(server, max_tokens=512, ignore_eos=True).json
    assert answer["usage"]["total_tokens"] == 512
    assert answer["choices"][0]["finish_reason"] == "length"


def test_an_answer_that_must_be_longer_than_the_context_leaves_is_refused(server: RunningServer) -> None:
    for most in (None, 512):
        refused = completion(server, max_tokens=most, min_tokens=503)
        assert_refused(refused, 400, "min_tokens")
    assert_refused(
        chat(server, max_tokens=None, min_tokens=510), 400, "min_tokens is 510, and the answer can"
    )


def test_a_request_id_may_stand_in_the_body_and_the_header_goes_before_it(server: RunningServer) -> None:
    body = {"prompt": PROMPT, "max_tokens": 1, "request_id": "of the body"}
    answer = post(server.port, COMPLETION, body)
    assert (answer.json["id"], answer.headers["x-request-id"]) == ("cmpl-of the body", "of the body")
    assert post(server.port, COMPLETION, body, X_Request_Id="mine").json["id"] == "cmpl-mine"


@pytest.mark.parametrize("request_id", ["a\r\nSet-Cookie: b", "東京", "", "x" * 500, "\x00\U0001f600"])
def test_a_request_id_that_is_no_header_does_no_harm(server: RunningServer, request_id: str) -> None:
    answer = chat(server, request_id=request_id)
    assert answer.status == 200
    assert answer.json["id"].startswith("chatcmpl-" + request_id[:128])
    assert "set-cookie" not in answer.headers
    assert get(server.port, "/health").status == 200
