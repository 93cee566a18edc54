"""What clients of the OpenAI API send, and what of it can be asked of the engine.

    body (bytes) --read_chat | read_completion--> Asked | BadField (400)

Field names, defaults and ranges are vLLM's (`bodies.py`). Unknown fields are let pass, as vLLM does;
fields that are known, would change the answer and are not supported are refused: to ignore them in
silence would be a wrong answer. Each kind of field has a reader of its own; here they come together.
"""

from dataclasses import dataclass, replace
from typing import Any

from headrace.core.request import SamplingParams
from headrace.net.bodies import MOST_CHOICES, Body, ChatBody, CompletionBody
from headrace.net.fields import BadField, decode, refuse
from headrace.net.grammar_fields import read_grammar
from headrace.net.prompt_fields import Prompt, read_chat_prompt, read_prompts
from headrace.net.sampling_fields import TokenLimit, read_choices, read_logprobs, read_sampling, read_seed
from headrace.net.tool_fields import ToolUse, read_tools

COMPLETION_MAX_TOKENS = 16
"""OpenAI's default for /v1/completions; a chat may fill the context."""
ASSISTANT = "assistant"
LONGEST_REQUEST_ID = 128


@dataclass(frozen=True, slots=True)
class Truncation:
    """Prompts that are longer lose tokens, in silence: the client asked for it."""

    keep_tokens: int | None
    """None: as many as leave room for one token of answer."""
    keeps_end: bool = True


@dataclass(frozen=True, slots=True)
class Delivery:
    """How tokens become the text of an answer, and in which pieces it goes out."""

    stop: tuple[str, ...]
    include_stop_str_in_output: bool
    skip_special_tokens: bool
    stream: bool
    stream_interval: int
    """Tokens of an event, but for the first and the last one."""
    include_usage: bool
    continuous_usage_stats: bool
    echo: bool
    """The answer begins with the prompt; a chat's, with the message it continues."""
    echo_only: bool = False
    """Nothing but the prompt: a completion with `max_tokens` 0."""
    echoes_logprobs: bool = False
    """The log probabilities of a completion begin with its prompt's too."""
    returns_token_ids: bool = False
    returns_prompt_text: bool = False
    """A chat as its template writes it."""
    tokens_as_ids: bool = False
    """Tokens are called `token_id:7` in log probabilities."""
    role: str = ASSISTANT
    tools: ToolUse | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """One HTTP request, checked as far as that goes without knowing its tokens."""

    model: str | None
    prompts: tuple[Prompt, ...]
    n: int
    """Answers to each prompt."""
    sampling: SamplingParams
    """All but what needs tokens: end, seed, bad words, and `max_tokens` where the body has no limit."""
    limit: TokenLimit
    seed: int | None
    ignore_eos: bool
    bad_words: tuple[str, ...]
    truncation: Truncation | None
    priority: int
    cache_salt: str
    request_id: str
    """Empty: one is made."""
    add_special_tokens: bool
    service_tier: str | None
    delivery: Delivery


_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "use_beam_search": (False,),
    "thinking_token_budget": (-1,),
    "repetition_detection": (),
    "vllm_xargs": ({},),
    "kv_transfer_params": ({},),
}
_UNSUPPORTED_COMPLETION: dict[str, tuple[Any, ...]] = {"suffix": ("",), "prompt_embeds": ([],)}


def read_chat(raw: bytes) -> Asked:
    """A body of /v1/chat/completions. Raises `BadField`."""
    body = decode(ChatBody, raw)
    chat = read_chat_prompt(body)
    use, forced = read_tools(body)
    limit = TokenLimit(body.max_tokens)
    if body.max_completion_tokens is not None:
        limit = TokenLimit(body.max_completion_tokens, "max_completion_tokens")
    if body.top_logprobs and not body.logprobs:
        raise BadField("top_logprobs", "top_logprobs needs logprobs to be true")
    asked = _asked(body, (chat,), limit)
    grammar = asked.sampling.grammar
    if forced is not None and grammar is not None:
        raise BadField("tool_choice", "both a tool call and another form of answer are demanded")
    delivery = replace(
        asked.delivery,
        role=ASSISTANT if chat.add_generation_prompt else chat.messages[-1].role,
        # The marks around a call are special tokens in some models.
        skip_special_tokens=asked.delivery.skip_special_tokens and use is None,
        returns_prompt_text=bool(body.return_prompt_text),
        tools=use,
    )
    num_logprobs = (body.top_logprobs or 0) if body.logprobs else None
    sampling = read_logprobs(body, replace(asked.sampling, grammar=forced or grammar), num_logprobs)
    if body.echo and body.prompt_logprobs is None:
        sampling = replace(sampling, num_prompt_logprobs=body.top_logprobs)
    return replace(asked, sampling=sampling, delivery=delivery)


def read_completion(raw: bytes) -> Asked:
    """A body of /v1/completions. Raises `BadField`."""
    body = decode(CompletionBody, raw)
    refuse(body, _UNSUPPORTED_COMPLETION)
    limit = COMPLETION_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    echo_only = bool(body.echo) and limit == 0
    asked = _asked(body, read_prompts(body.prompt), TokenLimit(1 if echo_only else limit))
    # A truth value is none of OpenAI's numbers, but 0 and 1 in vLLM's eyes.
    num_logprobs = None if body.logprobs is False or body.logprobs is None else int(body.logprobs)
    sampling = read_logprobs(body, asked.sampling, num_logprobs)
    if body.echo and body.prompt_logprobs is None:
        sampling = replace(sampling, num_prompt_logprobs=num_logprobs)
    if echo_only and sampling.logprob_token_ids:
        raise BadField("logprob_token_ids", "logprob_token_ids is of the answer, and max_tokens is 0")
    delivery = replace(
        asked.delivery, echo_only=echo_only, echoes_logprobs=bool(body.echo) and num_logprobs is not None
    )
    return replace(
        asked, sampling=sampling, delivery=delivery, add_special_tokens=body.add_special_tokens is not False
    )


def _asked(body: Body, prompts: tuple[Prompt, ...], limit: TokenLimit) -> Asked:
    refuse(body, _UNSUPPORTED)
    if limit.tokens == 0:
        raise BadField(limit.field, f"{limit.field} is 0; it must be at least 1")
    return Asked(
        model=body.model or None,
        prompts=prompts,
        n=read_choices(body, len(prompts), MOST_CHOICES),
        sampling=read_sampling(body, limit, read_grammar(body)),
        limit=limit,
        seed=read_seed(body),
        ignore_eos=bool(body.ignore_eos),
        bad_words=tuple(dict.fromkeys(body.bad_words or ())),
        truncation=_truncation(body),
        priority=body.priority or 0,
        cache_salt=body.cache_salt or "",
        request_id=(body.request_id or "")[:LONGEST_REQUEST_ID],
        add_special_tokens=bool(body.add_special_tokens),
        service_tier=body.service_tier,
        delivery=_delivery(body),
    )


def _delivery(body: Body) -> Delivery:
    options = body.stream_options
    if options is not None and not body.stream:
        raise BadField("stream_options", "stream_options needs stream to be true")
    include_usage = options is not None and bool(options.include_usage)
    return Delivery(
        stop=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
        include_stop_str_in_output=bool(body.include_stop_str_in_output),
        skip_special_tokens=body.skip_special_tokens is not False,
        stream=bool(body.stream),
        stream_interval=body.stream_interval or 1,
        include_usage=include_usage,
        continuous_usage_stats=include_usage and options is not None and bool(options.continuous_usage_stats),
        echo=bool(body.echo),
        returns_token_ids=bool(body.return_token_ids),
        tokens_as_ids=bool(body.return_tokens_as_token_ids),
    )


def _truncation(body: Body) -> Truncation | None:
    keep = body.truncate_prompt_tokens
    if keep is None:
        return None
    if keep == 0:
        raise BadField("truncate_prompt_tokens", "truncate_prompt_tokens is 0; the prompt would be empty")
    return Truncation(None if keep == -1 else keep, keeps_end=body.truncation_side != "right")
