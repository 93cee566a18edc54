"""vLLM's own answers to requests, made by its serving code without a model; run by vLLM's Python.

    requests (JSON, stdin) --> their bodies and events, or what its checks of a request say (JSON, stdout)

What an engine would give is made up here: three tokens, each with its logprob and those beside it.
"""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.responses import JSONResponse
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
from vllm.entrypoints.openai.models.serving import OpenAIModelRegistry
from vllm.entrypoints.serve.engine.protocol import ModelCard, ModelList, ModelPermission
from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
from vllm.entrypoints.serve.exception_handling.handlers.exception import exception_handler
from vllm.entrypoints.serve.exception_handling.handlers.validation import validation_exception_handler
from vllm.entrypoints.serve.instrumentator.basic import show_version
from vllm.entrypoints.serve.tokenize.protocol import DetokenizeResponse, TokenizeResponse
from vllm.entrypoints.serve.utils.api_utils import validate_json_request
from vllm.exceptions import VLLMError
from vllm.logprobs import Logprob
from vllm.outputs import CompletionOutput, RequestOutput

PROMPT = [7, 8, 9]
CONTEXT = 512
MODEL = SimpleNamespace(max_model_len=CONTEXT, max_logprobs=20)
SETTINGS = {
    "parser_cls": None,
    "enable_force_include_usage": False,
    "response_role": "assistant",
    "enable_log_outputs": False,
    "enable_log_deltas": False,
    "request_logger": None,
    "system_fingerprint": None,
    "_include_reasoning_tokens_details": False,
    "enable_prompt_tokens_details": True,
    "enable_per_request_metrics": False,
    "enable_auto_tools": False,
    "return_tokens_as_token_ids": False,
}


def serving(kind: type[Any]) -> Any:
    made = object.__new__(kind)
    for name, value in SETTINGS.items():
        setattr(made, name, value)
    return made


def likely(token_id: int) -> dict[int, Logprob]:
    return {each: Logprob(-0.5, 1, chr(97 + each)) for each in (token_id, token_id + 1)}


def output(request: Any, ids: list[int], finish: str | None) -> RequestOutput:
    logprobs = [likely(each) for each in ids] if request.logprobs else None
    of_prompt = [None, *(likely(each) for each in PROMPT[1:])] if request.prompt_logprobs else None
    text = "".join(chr(97 + each) for each in ids)
    told = CompletionOutput(0, text, ids, None, logprobs, finish_reason=finish)
    return RequestOutput("x", "the prompt", PROMPT, of_prompt, [told], bool(finish), num_cached_tokens=0)


async def outputs(request: Any) -> AsyncGenerator[RequestOutput]:
    if request.stream:
        yield output(request, [1], None)
        yield output(request, [2], None)
        yield output(request, [3], "length")
    else:
        yield output(request, [1, 2, 3], "length")


async def chat_answer(request: ChatCompletionRequest) -> Any:
    of, about = serving(OpenAIServingChat), SimpleNamespace()
    made_for = (request, outputs(request), "chatcmpl-x", "x", [], None, about)
    if request.stream:
        return await events(of.chat_completion_stream_generator(*made_for))
    return (await of.chat_completion_full_generator(*made_for)).model_dump()


async def text_answer(request: CompletionRequest) -> Any:
    of, about = serving(OpenAIServingCompletion), SimpleNamespace()
    if request.stream:
        numbered = ((0, each) async for each in outputs(request))
        return await events(
            of.completion_stream_generator(request, [None], numbered, "cmpl-x", 0, "x", 1, None, about)
        )
    whole = [each async for each in outputs(request)]
    return of.request_output_to_completion_response(
        whole, request, "cmpl-x", 0, "x", None, about
    ).model_dump()


async def events(stream: AsyncGenerator[str]) -> list[Any]:
    data = [event.removeprefix("data: ").strip() async for event in stream]
    return [json.loads(each) for each in data if each != "[DONE]"]


async def refusal(app: FastAPI, path: str, raw: bytes) -> Any:
    """Status and error, or None where the checks let it pass."""
    said: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": raw, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        said.append(message.get("status") or message.get("body"))

    headers = [(b"content-type", b"application/json")]
    where = {
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
    }
    scope = {"type": "http", "http_version": "1.1", "method": "POST", "scheme": "http"} | where
    await app(scope, receive, send)
    return None if said[0] == 200 else [int(said[0]), json.loads(said[1])]


def checking() -> FastAPI:
    """What becomes of a request before its engine sees it, but for its prompt."""
    app = FastAPI()
    app.state.args = SimpleNamespace(log_error_stack=False)
    app.exception_handler(RequestValidationError)(validation_exception_handler)
    for kind in (VLLMError, ValueError):
        app.exception_handler(kind)(exception_handler)
    models = OpenAIModelRegistry(MODEL, [SimpleNamespace(name="scripted")])

    async def check(request: Any) -> Any:
        if (problem := await models.check_model(request.model)) is not None:
            return JSONResponse(problem.model_dump(), problem.error.code)
        of_prompt = request.build_tok_params(MODEL)
        if isinstance(prompt := getattr(request, "prompt", None), list):
            of_prompt._token_len_check(None, prompt)
        most = request.max_tokens
        request.to_sampling_params(10 if most is None else most, {})._validate_logprobs(MODEL)
        return {}

    @app.post("/v1/chat/completions", dependencies=[Depends(validate_json_request)])
    async def chat(request: ChatCompletionRequest) -> Any:
        return await check(request)

    @app.post("/v1/completions", dependencies=[Depends(validate_json_request)])
    async def text(request: CompletionRequest) -> Any:
        return await check(request)

    return app


def others() -> dict[str, Any]:
    card = ModelCard(id="x", root="x", max_model_len=CONTEXT, permission=[ModelPermission()])
    return {
        "/v1/models": ModelList(data=[card]).model_dump(),
        "/tokenize": TokenizeResponse(count=1, max_model_len=CONTEXT, tokens=[7]).model_dump(),
        "/detokenize": DetokenizeResponse(prompt="x").model_dump(),
        "/version": json.loads(asyncio.run(show_version()).body),
        "error": create_error_response("x").model_dump(),
    }


def answered(path: str, body: dict[str, Any]) -> Any:
    if path == "/v1/completions":
        return asyncio.run(text_answer(CompletionRequest(**body)))
    return asyncio.run(chat_answer(ChatCompletionRequest(**body)))


def main() -> None:
    asked, app = json.load(sys.stdin), checking()
    said = {
        "answers": [answered(path, body) for path, body in asked["answers"]],
        "refusals": [asyncio.run(refusal(app, path, raw.encode())) for path, raw in asked["refusals"]],
        "others": others(),
    }
    print("\n" + json.dumps(said, default=lambda each: each.model_dump()))


if __name__ == "__main__":
    main()
