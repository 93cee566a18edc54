"""The real model, held to a form and asked what it thinks of a text, by the `openai` package's own calls."""

import json
import re
from collections.abc import Generator
from typing import Literal

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from pydantic import BaseModel

from headrace.cli.recipe import EngineRecipe
from headrace.executor.models import locate
from headrace.executor.tokenizer import OpenVinoTokenizer
from headrace.net.server import Service
from tests.net.serving import running
from tests.net.test_clients import FLAGS

pytestmark = [pytest.mark.slow, pytest.mark.model]

ASKED: list[ChatCompletionMessageParam] = [
    {"role": "user", "content": "What is the weather like in Paris today?"}
]
WEATHER: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "maximum": 9}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def api() -> Generator[openai.OpenAI, None, None]:
    files = locate("smollm2")
    of = Service(("smollm2",), EngineRecipe(files, FLAGS), lambda: OpenVinoTokenizer(files), 5.0)
    with (
        running(of) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as made,
    ):
        yield made


def assert_weather(name: str | None, arguments: str) -> None:
    told = json.loads(arguments)
    assert name == "weather"
    assert set(told) == {"city", "days"}
    assert told["city"] in {"Paris", "Rome"}
    assert isinstance(told["days"], int)


def test_a_call_that_is_required_is_made_and_its_arguments_fit(api: openai.OpenAI) -> None:
    answer = api.chat.completions.create(
        model="smollm2",
        messages=ASKED,
        tools=[WEATHER],
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=0,
        max_tokens=80,
    ).choices[0]
    (call,) = answer.message.tool_calls or []
    assert call.type == "function"
    assert_weather(call.function.name, call.function.arguments)
    assert answer.finish_reason == "tool_calls"
    assert not answer.message.content


def test_required_calls_are_streamed_with_their_arguments(api: openai.OpenAI) -> None:
    stream = api.chat.completions.create(
        model="smollm2",
        messages=ASKED,
        tools=[WEATHER],
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=0.8,
        seed=5,
        max_tokens=80,
        stream=True,
    )
    chunks = [chunk.choices[0] for chunk in stream]
    parts = [part for chunk in chunks for part in chunk.delta.tool_calls or () if part.function]
    assert {part.index for part in parts} == {0}
    names = [part.function.name for part in parts if part.function and part.function.name]
    arguments = "".join(part.function.arguments or "" for part in parts if part.function)
    assert len(names) == 1
    assert_weather(names[0], arguments)
    assert chunks[-1].finish_reason == "tool_calls"


def test_a_named_function_is_called(api: openai.OpenAI) -> None:
    answer = api.chat.completions.create(
        model="smollm2",
        messages=ASKED,
        tools=[WEATHER],
        tool_choice={"type": "function", "function": {"name": "weather"}},
        temperature=0,
        max_tokens=60,
    ).choices[0]
    (call,) = answer.message.tool_calls or []
    assert call.type == "function"
    assert_weather(call.function.name, call.function.arguments)


class River(BaseModel):
    name: Literal["Rhine", "Danube", "Seine"]
    navigable: bool
    bridges: int


def test_an_answer_is_parsed_into_the_type_that_was_asked_for(api: openai.OpenAI) -> None:
    answer = api.chat.completions.parse(
        model="smollm2",
        messages=[{"role": "user", "content": "Describe a river of Europe in JSON."}],
        response_format=River,
        temperature=0,
        max_tokens=80,
    ).choices[0]
    assert isinstance(answer.message.parsed, River)
    assert answer.finish_reason == "stop"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_an_answer_matches_its_regular_expression(api: openai.OpenAI, seed: int) -> None:
    form = r"(January|May|October) [1-9][0-9]?, (18|19|20)[0-9]{2}"
    stream = api.completions.create(
        model="smollm2",
        prompt="He was born on",
        max_tokens=40,
        temperature=1.2,
        seed=seed,
        stream=True,
        extra_body={"structured_outputs": {"regex": form}},
    )
    text = "".join(chunk.choices[0].text for chunk in stream)
    assert re.fullmatch(form, text)


def test_a_grammar_that_other_settings_leave_no_token_is_the_clients_mistake(api: openai.OpenAI) -> None:
    """It was a 500, which alerts take for a broken server."""
    with pytest.raises(openai.BadRequestError, match="no token is left"):
        api.completions.create(
            model="smollm2",
            prompt="x",
            max_tokens=5,
            extra_body={"structured_outputs": {"regex": "a{5}"}, "allowed_token_ids": [99]},
        )


def test_the_likelier_of_two_texts_is_known_by_their_log_probabilities(api: openai.OpenAI) -> None:
    """As evaluation harnesses do: echo with logprobs and nothing new."""
    texts = ["The capital of France is Paris", "The capital of France is Tokyo"]
    answer = api.completions.create(model="smollm2", prompt=texts, max_tokens=0, echo=True, logprobs=1)
    said = [choice.logprobs for choice in answer.choices]
    assert [choice.text for choice in answer.choices] == texts
    paris, tokyo = ((each.token_logprobs or [])[1:] for each in said if each)
    assert paris[:-1] == pytest.approx(tokyo[:-1], abs=1e-3), "the same words before"
    assert paris[-1] > tokyo[-1] + 1


def test_a_long_prompt_is_as_likely_at_once_as_in_chunks_beside_others(api: openai.OpenAI) -> None:
    """Chunks of 512, passes of 170, prompts of others in the same steps and in the prefix cache."""
    text = "The river was wide and slow, and nobody on its banks knew where it came from. " * 60
    alone = api.completions.create(model="smollm2", prompt=text, max_tokens=1, echo=True, logprobs=2)
    batch = api.completions.create(
        model="smollm2", prompt=[text[:900], text, text[:2000]], max_tokens=1, echo=True, logprobs=2
    )
    said = [choice.logprobs for choice in (alone.choices[0], batch.choices[1])]
    first, second = ((each.token_logprobs or [])[1:-1] for each in said if each)
    assert len(first) > 900
    assert first == pytest.approx(second, abs=1e-3)
