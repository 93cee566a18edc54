"""The clients that people use: the `openai` package and `curl -N`."""

import asyncio
import json
import subprocess
from collections.abc import Generator, Mapping

import openai
import pytest

from headrace.cli.recipe import EngineRecipe, Flags
from headrace.core.settings import SchedulingPolicy
from headrace.executor.models import locate
from headrace.executor.tokenizer import OpenVinoTokenizer
from headrace.net.server import Service
from tests.net.scripted import ANSWER
from tests.net.serving import RunningServer, running

HELLO = "Name three rivers of Europe."

FLAGS = Flags(
    max_model_len=2048,
    max_num_batched_tokens=512,
    max_num_seqs=32,
    long_prefill_token_threshold=0,
    enable_chunked_prefill=True,
    enable_prefix_caching=True,
    scheduling_policy=SchedulingPolicy.FCFS,
    scheduler_reserve_full_isl=True,
    watermark=0.0,
    block_size=None,
    kv_cache_memory_bytes=200 << 20,
    kv_cache_dtype="auto",
    num_gpu_blocks_override=None,
)
"""Of the real model: a small pool."""


def client(server: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60)


def curl(server: RunningServer, path: str, body: Mapping[str, object]) -> str:
    command = ["curl", "-sN", "--max-time", "60", f"{server.url}{path}", "-d", json.dumps(body)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_openai_package_chats(server: RunningServer) -> None:
    with client(server) as api:
        answer = api.chat.completions.create(model="scripted", messages=[{"role": "user", "content": HELLO}])
    assert answer.choices[0].message.content == ANSWER
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.completion_tokens == len(ANSWER.encode()) + 1


def test_the_openai_package_streams_a_chat(server: RunningServer) -> None:
    with client(server) as api:
        stream = api.chat.completions.create(
            model="scripted",
            messages=[{"role": "user", "content": HELLO}],
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True, "min_tokens": 5},
            max_completion_tokens=30,
        )
        chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == ANSWER.encode()[:30].decode()
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 30


def test_the_openai_package_completes_whole_and_streamed(server: RunningServer) -> None:
    with client(server) as api:
        whole = api.completions.create(model="scripted", prompt=[72, 105], max_tokens=20)
        parts = list(api.completions.create(model="scripted", prompt="Hi", max_tokens=20, stream=True))
    assert whole.choices[0].text == ANSWER.encode()[:20].decode()
    assert "".join(part.choices[0].text for part in parts) == whole.choices[0].text


def test_the_openai_package_understands_our_errors(server: RunningServer) -> None:
    with client(server) as api:
        with pytest.raises(openai.BadRequestError, match="temperature"):
            api.completions.create(model="scripted", prompt="Hi", temperature=-1)
        with pytest.raises(openai.NotFoundError, match="nobody"):
            api.completions.create(model="nobody", prompt="Hi")
        assert [model.id for model in api.models.list()] == ["scripted", "alias"]


def test_curl_shows_a_stream_event_by_event(server: RunningServer) -> None:
    body = {"messages": [{"role": "user", "content": HELLO}], "stream": True, "max_tokens": 4}
    out = curl(server, "/v1/chat/completions", body)
    assert out.count("data: {") == 4
    assert out.endswith("data: [DONE]\n\n")


@pytest.fixture(scope="module")
def real() -> Generator[RunningServer, None, None]:
    """The built-in model, with a small pool."""
    files = locate("smollm2")
    of = Service(("smollm2",), EngineRecipe(files, FLAGS), lambda: OpenVinoTokenizer(files), 5.0)
    with running(of) as started:
        yield started


@pytest.mark.slow
@pytest.mark.model
def test_the_real_model_answers_the_same_alone_streamed_and_in_a_crowd(real: RunningServer) -> None:
    async def ask(api: openai.AsyncOpenAI) -> str | None:
        answer = await api.chat.completions.create(
            model="smollm2", messages=[{"role": "user", "content": HELLO}], temperature=0, max_tokens=24
        )
        return answer.choices[0].message.content

    async def crowd() -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=f"{real.url}/v1", api_key="none", timeout=60) as api:
            return await asyncio.gather(*(ask(api) for _ in range(8)))

    with client(real) as api:
        stream = api.chat.completions.create(
            model="smollm2",
            messages=[{"role": "user", "content": HELLO}],
            temperature=0,
            max_tokens=24,
            stream=True,
        )
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert len(streamed.split()) > 5
    assert "�" not in streamed
    assert set(asyncio.run(crowd())) == {streamed}


@pytest.mark.slow
@pytest.mark.model
def test_the_real_model_completes_and_repeats_what_a_seed_gave(real: RunningServer) -> None:
    with client(real) as api:
        texts = [
            api.completions.create(model="smollm2", prompt="Once upon a time", max_tokens=12, seed=seed)
            .choices[0]
            .text
            for seed in (3, 3, 4)
        ]
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]


@pytest.mark.slow
@pytest.mark.model
def test_curl_streams_from_the_real_model(real: RunningServer) -> None:
    body = {"prompt": "The capital of France is", "temperature": 0, "max_tokens": 6, "stream": True}
    out = curl(real, "/v1/completions", body)
    events = [json.loads(line[6:]) for line in out.splitlines() if line.startswith("data: {")]
    assert "Paris" in "".join(event["choices"][0]["text"] for event in events)
    assert len(events) == 6
