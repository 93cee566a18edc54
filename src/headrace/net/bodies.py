"""What clients may send, as types: decoded by msgspec, and published in `/openapi.json`.

Names, defaults and ranges are vLLM 0.32's. `null` means what leaving a field out means. What no type
can say (that one field excludes another, say) is checked by the readers.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

LARGEST_INT = 2**63 - 1
MOST_CHOICES = 1024
"""Answers one request may ask for, prompts times `n`. vLLM allows 1,024 prompts and an `n` of 16,384."""
MOST_LOGPROBS = 20
"""vLLM's default of --max-logprobs."""
MOST_STOPS = 64
LONGEST_STOP = 1024
MOST_TOKEN_IDS = 1024
MOST_BAD_WORDS = 128
MOST_LOGPROB_TOKEN_IDS = 128
"""vLLM's."""
LONGEST_CACHE_SALT = 1024

Count = Annotated[int, Meta(ge=0, le=LARGEST_INT)]
TokenId = Annotated[int, Meta(ge=0, le=LARGEST_INT)]
AnyInt = Annotated[int, Meta(ge=-LARGEST_INT, le=LARGEST_INT)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Share = Annotated[float, Meta(ge=0, le=1)]
Words = Annotated[str, Meta(min_length=1, max_length=LONGEST_STOP)]
NumLogprobs = Annotated[int, Meta(ge=0, le=MOST_LOGPROBS)]


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class ContentPart(msgspec.Struct):
    type: str
    text: str | None = None
    refusal: str | None = None


class CalledFunction(msgspec.Struct):
    name: str
    arguments: str | dict[str, Any] | None = None


class CalledTool(msgspec.Struct):
    """A call that the assistant made in an earlier turn."""

    function: CalledFunction
    id: str | None = None
    type: Literal["function"] = "function"


class Message(msgspec.Struct):
    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[CalledTool] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class FunctionDefinition(msgspec.Struct):
    name: Annotated[str, Meta(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(msgspec.Struct):
    function: FunctionDefinition
    type: Literal["function"] = "function"


class NamedFunction(msgspec.Struct):
    name: str


class NamedTool(msgspec.Struct):
    function: NamedFunction
    type: Literal["function"] = "function"


class JsonSchema(msgspec.Struct):
    name: str
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(msgspec.Struct):
    """Exactly one of the first five."""

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: Any = None
    whitespace_pattern: str | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None


class Body(msgspec.Struct, kw_only=True):
    """What the two endpoints that run the model share."""

    model: str | None = None
    max_tokens: Count | None = None
    n: Annotated[int, Meta(ge=1, le=MOST_CHOICES)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=LARGEST_INT)] | None = None
    min_p: Share | None = None
    repetition_penalty: Annotated[float, Meta(gt=0)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: Annotated[list[TokenId], Meta(min_length=1)] | None = None
    bad_words: Annotated[list[Words], Meta(max_length=MOST_BAD_WORDS)] | None = None
    seed: Annotated[int, Meta(ge=-LARGEST_INT - 1, le=LARGEST_INT)] | None = None
    stop: Words | Annotated[list[Words], Meta(max_length=MOST_STOPS)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=MOST_TOKEN_IDS)] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    min_tokens: Count | None = None
    ignore_eos: bool | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=LARGEST_INT)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    echo: bool | None = None
    priority: AnyInt | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=LONGEST_CACHE_SALT)] | None = None
    service_tier: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stream_interval: Annotated[int, Meta(ge=1, le=LARGEST_INT)] | None = None
    request_id: str | None = None
    add_special_tokens: bool | None = None
    prompt_logprobs: NumLogprobs | None = None
    logprob_token_ids: Annotated[list[TokenId], Meta(max_length=MOST_LOGPROB_TOKEN_IDS)] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    # Known, able to change the answer, and not supported: only their neutral values pass.
    use_beam_search: Any = None
    thinking_token_budget: Any = None
    repetition_detection: Any = None
    vllm_xargs: Any = None
    kv_transfer_params: Any = None
    # Gone from vLLM, which only warns: what they ask for is then missing from the answer.
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    guided_decoding_backend: Any = None
    guided_whitespace_pattern: Any = None


class ChatBody(Body, kw_only=True):
    """A request to /v1/chat/completions."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    tools: Annotated[list[Tool], Meta(min_length=1)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, str]] | None = None
    reasoning_effort: str | None = None
    return_prompt_text: bool | None = None
    chat_template: Any = None
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: NumLogprobs | None = None
    tool_choice: str | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    functions: Any = None
    function_call: Any = None


class CompletionBody(Body, kw_only=True):
    """A request to /v1/completions. A list of strings, or of lists of token ids, is one prompt each."""

    prompt: str | list[str | int | list[int]]
    logprobs: bool | NumLogprobs | None = None
    suffix: Any = None
    prompt_embeds: Any = None


class TokenizeBody(msgspec.Struct, kw_only=True):
    """A request to /tokenize for a text."""

    prompt: str
    add_special_tokens: bool | None = None
    model: str | None = None
    return_token_strs: bool | None = None


class TokenizeChatBody(msgspec.Struct, kw_only=True):
    """A request to /tokenize for a conversation."""

    # As in ChatBody: types of msgspec have one base.
    messages: Annotated[list[Message], Meta(min_length=1)]
    tools: Annotated[list[Tool], Meta(min_length=1)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, str]] | None = None
    reasoning_effort: str | None = None
    add_special_tokens: bool | None = None
    chat_template: Any = None
    model: str | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """A request to /detokenize."""

    tokens: list[TokenId]
    model: str | None = None
