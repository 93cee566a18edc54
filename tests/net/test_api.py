"""The `openai` package's own calls for what the API offers beyond one plain answer."""

from collections.abc import Generator

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

from tests.net.http import get, post
from tests.net.scripted import ANSWER, ScriptedRecipe
from tests.net.serving import MODEL, RunningServer, running, service

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hello"}]
TOOL: ChatCompletionToolParam = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {}}}},
}
CALLING = (
    'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>\n'
    '<tool_call>{"name": "weather", "arguments": {"city": "東京"}}</tool_call>'
)


def client_of(server: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=20)


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Generator[openai.OpenAI, None, None]:
    with client_of(server) as made:
        yield made


@pytest.fixture
def unhurried() -> Generator[openai.OpenAI, None, None]:
    """Steps take longer than a choice to reach the engine, so that choices share them on any machine."""
    with running(service(ScriptedRecipe(step_s=0.004))) as server, client_of(server) as made:
        yield made


@pytest.fixture(scope="module")
def calling() -> Generator[openai.OpenAI, None, None]:
    """A model that calls a tool twice, whatever it is asked."""
    with running(service(ScriptedRecipe(answer=CALLING.encode()))) as server, client_of(server) as made:
        yield made


def test_n_gives_so_many_answers_and_counts_the_prompt_once(client: openai.OpenAI) -> None:
    one = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=4)
    three = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=4, n=3)
    assert one.usage is not None
    assert three.usage is not None
    assert [choice.index for choice in three.choices] == [0, 1, 2]
    assert {choice.message.content for choice in three.choices} == {ANSWER[:4]}
    assert three.usage.prompt_tokens == one.usage.prompt_tokens
    assert three.usage.completion_tokens == 12


def test_choices_are_streamed_side_by_side_each_with_its_role_and_reason(unhurried: openai.OpenAI) -> None:
    stream = unhurried.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        max_tokens=48,
        n=3,
        stream=True,
        stream_options={"include_usage": True},
    )
    texts, roles, reasons = ["", "", ""], [0, 0, 0], ["", "", ""]
    order: list[int] = []
    completion_tokens = None
    for chunk in stream:
        completion_tokens = chunk.usage.completion_tokens if chunk.usage else None
        for choice in chunk.choices:
            order.append(choice.index)
            texts[choice.index] += choice.delta.content or ""
            roles[choice.index] += choice.delta.role == "assistant"
            reasons[choice.index] += choice.finish_reason or ""
    assert texts == [ANSWER.encode()[:48].decode()] * 3
    assert roles == [1, 1, 1]
    assert reasons == ["length"] * 3
    ended = len(order) - 1 - order[::-1].index(0)
    assert order.index(2) < ended, "not one after another"
    assert completion_tokens == 3 * 48


def test_a_batch_of_prompts_is_answered_in_its_order(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=["one", "two!"], max_tokens=3, n=2, echo=True)
    assert [choice.text for choice in answer.choices] == ["oneThe"] * 2 + ["two!The"] * 2
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (7, 12)
    ids = client.completions.create(model=MODEL, prompt=[[72, 105], [33]], max_tokens=1, echo=True)
    assert [choice.text for choice in ids.choices] == ["HiT", "!T"]


def test_a_completion_of_no_tokens_echoes_the_prompt(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="Hello", max_tokens=0, echo=True)
    assert answer.choices[0].text == "Hello"


def test_usage_can_come_with_every_event(server: RunningServer) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    for path, prompt in (
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/chat/completions", {"messages": HELLO}),
    ):
        body = {**prompt, "max_tokens": 3, "stream": True, "stream_options": options}
        events = post(server.port, path, body).events[:-1]
        assert [event["usage"]["completion_tokens"] for event in events] == [1, 2, 3, 3]


def test_a_stop_string_and_a_stop_token_can_be_part_of_the_text(client: openai.OpenAI) -> None:
    extra = {"include_stop_str_in_output": True}
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, stop="caf", extra_body=extra)
    assert answer.choices[0].message.content == "The naïve caf"
    extra_token = {**extra, "stop_token_ids": [ord("n")]}
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, extra_body=extra_token)
    assert answer.choices[0].message.content == "The n"


def test_special_tokens_are_shown_on_demand(client: openai.OpenAI) -> None:
    extra = {"skip_special_tokens": False, "include_stop_str_in_output": True, "stop_token_ids": [256]}
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, extra_body=extra)
    assert answer.choices[0].message.content == ANSWER + "<|end|>"


def test_a_prompt_is_cut_on_demand_at_the_side_asked_for(client: openai.OpenAI) -> None:
    for side, text in (({}, "lo"), ({"truncation_side": "right"}, "He")):
        extra = {"truncate_prompt_tokens": 2, **side}
        answer = client.completions.create(
            model=MODEL, prompt="Hello", max_tokens=1, echo=True, extra_body=extra
        )
        assert answer.choices[0].text == text + "T"


def test_a_message_can_be_continued_and_echoed(client: openai.OpenAI) -> None:
    open_ended: list[ChatCompletionMessageParam] = [
        *HELLO,
        {"role": "assistant", "content": "Once"},
    ]
    extra = {"continue_final_message": True, "add_generation_prompt": False, "echo": True}
    answer = client.chat.completions.create(model=MODEL, messages=open_ended, max_tokens=3, extra_body=extra)
    assert answer.choices[0].message.content == "OnceThe"
    both = {"continue_final_message": True, "add_generation_prompt": True}
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=MODEL, messages=open_ended, extra_body=both)


def test_calls_of_tools_are_found_in_the_answer(calling: openai.OpenAI) -> None:
    choice = calling.chat.completions.create(model=MODEL, messages=HELLO, tools=[TOOL]).choices[0]
    calls = choice.message.tool_calls or []
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see.\n"
    assert [
        (call.type, call.function.name, call.function.arguments) for call in calls if call.type == "function"
    ] == [
        ("function", "weather", '{"city": "Rome"}'),
        ("function", "weather", '{"city": "東京"}'),
    ]
    assert calls[0].id != calls[1].id
    one = calling.chat.completions.create(
        model=MODEL, messages=HELLO, tools=[TOOL], parallel_tool_calls=False
    )
    assert len(one.choices[0].message.tool_calls or []) == 1


def test_arguments_of_calls_are_streamed_as_they_are_written(calling: openai.OpenAI) -> None:
    """A call came in one event once it was whole: nothing to show while a long one was written."""
    stream = calling.chat.completions.create(model=MODEL, messages=HELLO, tools=[TOOL], stream=True)
    content, reason = "", None
    calls = dict[int, list[tuple[str | None, str | None, str]]]()
    for chunk in stream:
        delta = chunk.choices[0].delta
        content += delta.content or ""
        for call in delta.tool_calls or []:
            assert call.function is not None
            part = (call.id, call.function.name, call.function.arguments or "")
            calls.setdefault(call.index, []).append(part)
        reason = chunk.choices[0].finish_reason or reason
    assert content == "Let me see.\n"
    assert reason == "tool_calls"
    assert ["".join(part[2] for part in parts) for parts in calls.values()] == [
        '{"city": "Rome"}',
        '{"city": "東京"}',
    ]
    for parts in calls.values():
        assert [part[1] for part in parts] == ["weather"] + [None] * (len(parts) - 1), "its name comes first"
        assert [part[0] is None for part in parts] == [False] + [True] * (len(parts) - 1)
        assert len(parts) > 10


def test_the_first_event_of_a_call_without_text_has_a_content_too(calling: openai.OpenAI) -> None:
    """Who read `delta["content"]` beside the role found nothing there; vLLM's has it, empty."""
    stream = calling.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        tools=[TOOL],
        tool_choice={"type": "function", "function": {"name": "weather"}},
        stream=True,
    )
    first, *_ = [chunk.choices[0].delta for chunk in stream]
    assert (first.role, first.content) == ("assistant", "")


def test_the_openai_client_assembles_the_streamed_calls_into_those_of_a_whole_answer(
    calling: openai.OpenAI,
) -> None:
    strict: ChatCompletionToolParam = {
        "type": "function",
        "function": {"name": "weather", "strict": True, "parameters": {"type": "object", "properties": {}}},
    }
    whole = calling.chat.completions.create(model=MODEL, messages=HELLO, tools=[TOOL]).choices[0].message
    with calling.chat.completions.stream(model=MODEL, messages=HELLO, tools=[strict]) as stream:
        streamed = stream.get_final_completion().choices[0].message
    assert [call.function.arguments for call in whole.tool_calls or [] if call.type == "function"] == [
        call.function.arguments for call in streamed.tool_calls or []
    ]


def test_with_tool_choice_none_calls_are_text(calling: openai.OpenAI) -> None:
    choice = calling.chat.completions.create(
        model=MODEL, messages=HELLO, tools=[TOOL], tool_choice="none"
    ).choices[0]
    assert choice.message.content == CALLING
    assert choice.message.tool_calls is None
    assert choice.finish_reason == "stop"


def test_an_earlier_call_and_its_result_reach_the_template(server: RunningServer) -> None:
    function = {"name": "weather", "arguments": '{"city": "Rome"}'}
    call = {"id": "c1", "type": "function", "function": function}
    messages = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ]
    answer = post(server.port, "/tokenize", {"messages": messages, "tools": [TOOL]})
    prompt = bytes(answer.json["tokens"]).decode()
    assert '"arguments": {"city": "Rome"}' in prompt, "an object, not a string"
    assert 'tool: sunny "c1"' in prompt
    assert prompt.startswith("tools: [")
    function["arguments"] = "{"
    refused = post(server.port, "/v1/chat/completions", {"messages": messages})
    assert (refused.status, refused.json["error"]["param"]) == (400, "messages[1].tool_calls")


def test_text_becomes_tokens_and_text_again(server: RunningServer) -> None:
    tokens = post(server.port, "/tokenize", {"prompt": "naïve", "return_token_strs": True}).json
    assert tokens == {
        "count": 6,
        "max_model_len": 512,
        "tokens": list("naïve".encode()),
        "token_strs": ["n", "a", "\ufffd", "\ufffd", "v", "e"],
    }
    assert post(server.port, "/detokenize", {"tokens": tokens["tokens"]}).json == {"prompt": "naïve"}
    for path, body in (
        ("/tokenize", {"prompt": 7}),
        ("/tokenize", {"messages": []}),
        ("/tokenize", {"messages": HELLO, "prompt": "naïve"}),
        ("/detokenize", {"tokens": [257]}),
        ("/detokenize", {"tokens": [-1]}),
    ):
        assert post(server.port, path, body).status == 400
    assert post(server.port, "/tokenize", {"prompt": "a", "model": "other"}).status == 404
    assert post(server.port, "/tokenize", {"prompt": "a", "messages": None}).json["count"] == 1
    long = list(b"ab" * 3000)
    assert post(server.port, "/detokenize", {"tokens": long}).json == {"prompt": "ab" * 3000}


def test_the_load_is_what_is_being_answered(server: RunningServer) -> None:
    assert get(server.port, "/load").json == {"server_load": 0}


def test_a_request_id_is_made_where_none_was_sent(server: RunningServer) -> None:
    answer = post(server.port, "/v1/completions", {"prompt": "a", "max_tokens": 1})
    assert answer.json["id"] == "cmpl-" + answer.headers["x-request-id"]


def test_the_description_names_every_route_and_resolves(server: RunningServer) -> None:
    described = get(server.port, "/openapi.json").json
    for path in described["paths"]:
        assert get(server.port, path).status in {200, 405}
    missing = get(server.port, "/none").error
    assert all(path in missing for path in described["paths"])
    schemas = described["components"]["schemas"]
    refs = [
        text.split('"')[0] for text in str(described).replace("'", '"').split("#/components/schemas/")[1:]
    ]
    assert refs
    assert set(refs) <= set(schemas)
    assert schemas["ChatBody"]["properties"]["temperature"]["anyOf"][0]["maximum"] == 2


def test_an_error_in_one_prompt_of_a_batch_refuses_all_and_leaves_nothing(server: RunningServer) -> None:
    refused = post(server.port, "/v1/completions", {"prompt": ["a", "x" * 600], "max_tokens": 5})
    assert refused.status == 400
    assert get(server.port, "/load").json == {"server_load": 0}


def test_a_chat_says_how_likely_its_tokens_were(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=8, logprobs=True, top_logprobs=3
    )
    assert answer.choices[0].logprobs is not None
    tokens = answer.choices[0].logprobs.content or []
    assert bytes(byte for token in tokens for byte in token.bytes or []) == ANSWER.encode()[:8]
    assert tokens[6].token == "\ufffd", "half a character"
    assert [len(token.top_logprobs) for token in tokens] == [3] * 8
    for token in tokens:
        likely = [each.logprob for each in token.top_logprobs]
        assert likely == sorted(likely, reverse=True)
        assert token.logprob <= likely[0] <= 0


def test_logprobs_come_with_their_events(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=5, logprobs=True, stream=True
    )
    named = [chunk.choices[0].logprobs for chunk in stream]
    assert [len(each.content or []) if each else None for each in named] == [1] * 5


@pytest.mark.parametrize("stream", [False, True])
def test_a_completion_names_its_tokens_and_where_they_stand(server: RunningServer, stream: bool) -> None:
    body = {"prompt": "Hello", "max_tokens": 4, "logprobs": 2, "stream": stream}
    answer = post(server.port, "/v1/completions", body)
    parts = [each["choices"][0]["logprobs"] for each in (answer.events[:-1] if stream else [answer.json])]
    told = {name: [item for part in parts for item in part[name]] for name in parts[0]}
    assert told["tokens"] == list("The ")
    assert told["text_offset"] == [0, 1, 2, 3]
    assert all(logprob <= 0 for logprob in told["token_logprobs"])
    assert all(2 <= len(top) <= 3 for top in told["top_logprobs"])
    assert all(token in top for token, top in zip(told["tokens"], told["top_logprobs"], strict=True))
