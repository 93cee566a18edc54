"""vLLM's own answers to requests, made by its serving code without a model; run by vLLM's Python.

    {"answers": [path, body, text or null]}  -->  bodies and events, as if the model had said `text`
    {"others": [method, path, raw body]}     -->  status and body: what its checks of a request say, and
                                                  what it says of itself

What an engine would give is made up here: the characters of a text, or else three tokens, each with its
logprob and those beside it.
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
from vllm.entrypoints.openai.models.api_router import router as models_router
from vllm.entrypoints.openai.models.serving import OpenAIModelRegistry
from vllm.entrypoints.serve.exception_handling.handlers.exception import exception_handler
from vllm.entrypoints.serve.exception_handling.handlers.validation import validation_exception_handler
from vllm.entrypoints.serve.instrumentator.basic import router as basic_router
from vllm.entrypoints.serve.tokenize.api_router import router as tokenize_router
from vllm.entrypoints.serve.tokenize.serving import ServingTokenization
from vllm.entrypoints.serve.utils.api_utils import validate_json_request
from vllm.exceptions import VLLMError
from vllm.inputs import tokens_input
from vllm.logprobs import Logprob
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.parser import ParserManager

PROMPT = [7, 8, 9]
CONTEXT = 512
MODEL = SimpleNamespace(max_model_len=CONTEXT, max_logprobs=20, is_encoder_decoder=False)
TOKENIZER = SimpleNamespace(convert_ids_to_tokens=lambda ids: [chr(97 + each) for each in ids])
HERMES = ParserManager.get_parser(
    tool_parser_name="hermes", enable_auto_tools=True, model_name="x", tokenizer=TOKENIZER
)
SETTINGS = {
    "parser_cls": None,
    "model_config": None,
    "enable_force_include_usage": False,
    "response_role": "assistant",
    "enable_log_outputs": False,
    "enable_log_deltas": False,
    "request_logger": None,
    "system_fingerprint": None,
    "_include_reasoning_tokens_details": False,
    "enable_prompt_tokens_details": True,
    "enable_per_request_metrics": False,
    "enable_auto_tools": True,
    "return_tokens_as_token_ids": False,
}


def serving(kind: type[Any]) -> Any:
    made = object.__new__(kind)
    for name, value in SETTINGS.items():
        setattr(made, name, value)
    return made


def likely(token_id: int) -> dict[int, Logprob]:
    return {each: Logprob(-0.5, 1, chr(97 + each)) for each in (token_id, token_id + 1)}


def output(request: Any, text: str, ids: list[int], finish: str | None) -> RequestOutput:
    logprobs = [likely(each) for each in ids] if request.logprobs else None
    of_prompt = [None, *(likely(each) for each in PROMPT[1:])] if request.prompt_logprobs else None
    told = CompletionOutput(0, text, ids, None, logprobs, finish_reason=finish)
    return RequestOutput("x", "the prompt", PROMPT, of_prompt, [told], bool(finish), num_cached_tokens=0)


async def outputs(request: Any, says: str | None) -> AsyncGenerator[RequestOutput]:
    text, finish = ("bcd", "length") if says is None else (says, "stop")
    ids = [place + 1 for place in range(len(text))]
    if not request.stream:
        yield output(request, text, ids, finish)
        return
    for character, token_id in zip(text, ids, strict=True):
        yield output(request, character, [token_id], finish if token_id == len(text) else None)


async def chat_answer(request: ChatCompletionRequest, says: str | None) -> Any:
    of, about = serving(OpenAIServingChat), SimpleNamespace()
    of.parser_cls = HERMES if request.tools else None
    made_for = (request, outputs(request, says), "chatcmpl-x", "x", [], TOKENIZER, about)
    if request.stream:
        return await events(of.chat_completion_stream_generator(*made_for))
    parser = HERMES(TOKENIZER, request.tools) if request.tools else None
    return (await of.chat_completion_full_generator(*made_for, parser=parser)).model_dump()


async def text_answer(request: CompletionRequest, says: str | None) -> Any:
    of, about = serving(OpenAIServingCompletion), SimpleNamespace()
    if request.stream:
        numbered = ((0, each) async for each in outputs(request, says))
        return await events(
            of.completion_stream_generator(request, [None], numbered, "cmpl-x", 0, "x", 1, None, about)
        )
    whole = [each async for each in outputs(request, says)]
    return of.request_output_to_completion_response(
        whole, request, "cmpl-x", 0, "x", None, about
    ).model_dump()


async def events(stream: AsyncGenerator[str]) -> list[Any]:
    data = [event.removeprefix("data: ").strip() async for event in stream]
    return [json.loads(each) for each in data if each != "[DONE]"]


async def asked_of(app: FastAPI, method: str, path: str, raw: bytes) -> tuple[int, Any]:
    """Status and body."""
    said: list[Any] = []
    to_come = iter([{"type": "http.request", "body": raw, "more_body": False}])

    async def receive() -> dict[str, Any]:
        return next(to_come, None) or await asyncio.Future()  # the client stays

    async def send(message: dict[str, Any]) -> None:
        said.append(message.get("status") or message.get("body"))

    where = {"path": path, "raw_path": path.encode(), "query_string": b"", "root_path": ""}
    headers = [(b"content-type", b"application/json")]
    how = {"type": "http", "http_version": "1.1", "method": method, "scheme": "http", "headers": headers}
    await app(where | how, receive, send)
    return int(said[0]), json.loads(said[1])


def server() -> FastAPI:
    """What becomes of a request before its engine sees it, but for its prompt; and what needs no engine."""
    app = FastAPI()
    app.state.args = SimpleNamespace(log_error_stack=False)
    app.exception_handler(RequestValidationError)(validation_exception_handler)
    for kind in (VLLMError, ValueError):
        app.exception_handler(kind)(exception_handler)
    models = OpenAIModelRegistry(MODEL, [SimpleNamespace(name="scripted", model_path="x")])
    app.state.openai_serving_models = models
    app.state.server_load_metrics = 0
    app.state.serving_tokenization = tokenization(models)
    for router in (models_router, basic_router, tokenize_router):
        app.include_router(router)
    add_checks(app, models)
    return app


def tokenization(models: OpenAIModelRegistry) -> ServingTokenization:
    made = serving(ServingTokenization)

    async def of_text(*_: Any, **__: Any) -> list[Any]:
        return [tokens_input(PROMPT)]

    async def of_chat(*_: Any, **__: Any) -> tuple[Any, list[Any]]:
        return None, [tokens_input(PROMPT)]

    async def text(*_: Any) -> Any:
        return {"prompt": "the prompt"}

    made.models, made.model_config = models, MODEL
    made.renderer = SimpleNamespace(get_tokenizer=lambda: TOKENIZER, tokenize_prompt_async=text)
    made.online_renderer = SimpleNamespace(
        preprocess_completion=of_text, preprocess_chat=of_chat, validate_chat_template=lambda **_: None
    )
    made.chat_template = made.chat_template_content_format = None
    made.default_chat_template_kwargs, made.trust_request_chat_template = {}, False
    return made


def add_checks(app: FastAPI, models: OpenAIModelRegistry) -> None:
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


def answered(path: str, body: dict[str, Any], says: str | None) -> Any:
    if path == "/v1/completions":
        return asyncio.run(text_answer(CompletionRequest(**body), says))
    return asyncio.run(chat_answer(ChatCompletionRequest(**body), says))


def main() -> None:
    asked, app = json.load(sys.stdin), server()
    said = {
        "answers": [answered(*each) for each in asked["answers"]],
        "others": [
            asyncio.run(asked_of(app, method, path, raw.encode())) for method, path, raw in asked["others"]
        ],
    }
    print("\n" + json.dumps(said, default=lambda each: each.model_dump()))


if __name__ == "__main__":
    main()
