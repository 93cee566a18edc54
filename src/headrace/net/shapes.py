"""What we answer, as types: encoded by msgspec, and published in `/openapi.json`. vLLM's and OpenAI's shapes.

A field that is `UNSET` is left out; one that can only be null is there because vLLM 0.32 sends it as null,
and clients may look for it. Types of which an answer can hold 100,000 are not followed by the
garbage collector, which looked at all of them again and again while they were made.
"""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

Reason = str | None
StopReason = str | int | None


class PromptTokensDetails(msgspec.Struct):
    cached_tokens: int
    created_cache_tokens: None = None
    multimodal_tokens: None = None


class UsageInfo(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptTokensDetails | UnsetType = UNSET
    completion_tokens_details: None = None
    headrace_bill: dict[str, float] | UnsetType = UNSET


class LikelyToken(msgspec.Struct, gc=False):
    token: str
    logprob: float
    bytes: list[int]


class ChatToken(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[LikelyToken]


class ChatLogprobs(msgspec.Struct):
    content: list[ChatToken]


class FunctionCall(msgspec.Struct):
    name: str
    arguments: str


class ToolCall(msgspec.Struct):
    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class FunctionDelta(msgspec.Struct):
    arguments: str
    name: str | UnsetType = UNSET


class ToolCallDelta(msgspec.Struct):
    index: int
    function: FunctionDelta
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class AnswerMessage(msgspec.Struct):
    role: str
    content: str | None
    refusal: None = None
    annotations: None = None
    audio: None = None
    function_call: None = None
    tool_calls: list[ToolCall] | UnsetType = UNSET
    reasoning: None = None


class Delta(msgspec.Struct):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChoice(msgspec.Struct):
    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: Reason
    stop_reason: StopReason
    token_ids: list[int] | None
    routed_experts: None = None


class ChunkChoice(msgspec.Struct):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: Reason = None
    stop_reason: StopReason | UnsetType = UNSET
    token_ids: list[int] | None = None


class CompletionLogprobs(msgspec.Struct):
    """The first token of an echoed prompt has no log probability."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class PromptToken(msgspec.Struct, gc=False):
    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[int, PromptToken] | None]
"""By token id, for each token of a prompt: itself, then the likeliest. Null for the first token."""


class TextChunkChoice(msgspec.Struct):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: Reason = None
    stop_reason: StopReason = None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None


class TextChoice(TextChunkChoice):
    prompt_logprobs: PromptLogprobs | None = None
    routed_experts: None = None


class ChatCompletion(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    service_tier: None = None
    system_fingerprint: None = None
    usage: UsageInfo
    prompt_logprobs: PromptLogprobs | None
    prompt_token_ids: list[int] | None
    prompt_text: str | None
    kv_transfer_params: None = None
    ec_transfer_params: None = None
    metrics: None = None


class ChatCompletionChunk(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: UsageInfo | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType | None = UNSET
    prompt_text: str | UnsetType | None = UNSET


class CompletionChunk(msgspec.Struct, kw_only=True):
    """Only the last one may have `usage`, unless it is continuous."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[TextChunkChoice]
    usage: UsageInfo | UnsetType = UNSET


class Completion(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    service_tier: None = None
    system_fingerprint: None = None
    usage: UsageInfo
    kv_transfer_params: None = None
    ec_transfer_params: None = None
    metrics: None = None


class ErrorInfo(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: int


class ErrorBody(msgspec.Struct):
    error: ErrorInfo


class ModelCard(msgspec.Struct):
    id: str
    created: int
    root: str
    max_model_len: int
    object: Literal["model"] = "model"
    owned_by: str = "headrace"
    parent: str | None = None
    permission: list[None] = []


class ModelList(msgspec.Struct):
    data: list[ModelCard]
    object: Literal["list"] = "list"


class TokenizeAnswer(msgspec.Struct):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeAnswer(msgspec.Struct):
    prompt: str


class VersionAnswer(msgspec.Struct):
    version: str


class LoadAnswer(msgspec.Struct):
    server_load: int
    """Requests that run the model and have not been answered in full."""
