"""What clients of the OpenAI API send, and what of it can be asked of the engine.

    body (bytes) --read_chat | read_completion--> Asked | BadField (400)

Field names and defaults are vLLM's. Unknown fields are let pass, as vLLM does; fields that
are known, would change the answer and are not supported are refused: to ignore them in
silence would be a wrong answer. Limits are checked here, so nothing behind has to wonder.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from headrace.core.errors import BadInput
from headrace.core.ports import ChatMessage
from headrace.core.request import SamplingParams

COMPLETION_MAX_TOKENS = 16
"""OpenAI's default for /v1/completions; a chat may fill the context."""
GREEDY_BELOW = 1e-5
"""A temperature under this is 0, as in vLLM."""
MOST_STOPS = 64
LONGEST_STOP = 1024
MOST_STOP_TOKEN_IDS = 1024
LARGEST_INT = 2**63 - 1

Prompt = str | tuple[int, ...] | tuple[ChatMessage, ...]


class BadField(BadInput):
    """A request field that cannot be used; `param` names it."""

    def __init__(self, param: str | None, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.param = param


class BodyTooLarge(BadInput):
    """More bytes than a prompt that fits could need. HTTP 413."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, checked as far as that goes without knowing its tokens."""

    model: str | None
    prompt: Prompt
    max_tokens: int | None
    """None: as much as fits."""
    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    min_tokens: int
    ignore_eos: bool
    stop: tuple[str, ...]
    stop_token_ids: frozenset[int]
    priority: int
    service_tier: str | None
    cache_salt: str
    stream: bool
    include_usage: bool

    def sampling(self, max_tokens: int, seed: int, eos_token_id: int) -> SamplingParams:
        """For the engine, once the room that the prompt leaves is known; `seed` if none was given."""
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=seed if self.seed is None else self.seed,
            min_tokens=min(self.min_tokens, max_tokens),
            eos_token_id=None if self.ignore_eos else eos_token_id,
            stop_token_ids=self.stop_token_ids,
        )


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = False


class _ContentPart(msgspec.Struct):
    type: str
    text: str | None = None


class _Message(msgspec.Struct):
    role: str
    content: str | list[_ContentPart] | None = None


class _Body(msgspec.Struct, kw_only=True):
    """What the two endpoints share."""

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    priority: int | None = None
    service_tier: str | None = None
    cache_salt: str | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    # Known, able to change the answer, and not supported: only their neutral values pass.
    n: int | None = None
    best_of: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: bool | int | None = None
    top_logprobs: int | None = None
    prompt_logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    tools: list[Any] | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    tool_choice: Any = None
    functions: Any = None
    function_call: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    bad_words: Any = None
    allowed_token_ids: Any = None
    truncate_prompt_tokens: Any = None
    use_beam_search: Any = None
    include_stop_str_in_output: Any = None
    skip_special_tokens: Any = None
    add_generation_prompt: Any = None
    continue_final_message: Any = None
    chat_template: Any = None


class _ChatBody(_Body, kw_only=True):
    messages: list[_Message]
    max_completion_tokens: int | None = None


class _CompletionBody(_Body, kw_only=True):
    prompt: str | list[int | str | list[int]]


_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "min_p": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "prompt_logprobs": (),
    "echo": (False,),
    "suffix": ("",),
    "tools": ([],),
    "response_format": ({"type": "text"},),
    "structured_outputs": ({},),
    "top_logprobs": (0,),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "chat_template": (),
}

_chat_decoder = msgspec.json.Decoder(_ChatBody)
_completion_decoder = msgspec.json.Decoder(_CompletionBody)
_AnyBody = TypeVar("_AnyBody", bound=_Body)


def read_chat(raw: bytes) -> Asked:
    """A body of /v1/chat/completions. Raises `BadField`."""
    body = _decode(_chat_decoder, raw)
    if not body.messages:
        raise BadField("messages", "messages is empty", "send at least one message")
    prompt = tuple(ChatMessage(message.role, _text(message)) for message in body.messages)
    limit = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    return _asked(body, prompt, limit)


def read_completion(raw: bytes) -> Asked:
    """A body of /v1/completions. Raises `BadField`."""
    body = _decode(_completion_decoder, raw)
    limit = COMPLETION_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    return _asked(body, _one_prompt(body.prompt), limit)


def _decode(decoder: msgspec.json.Decoder[_AnyBody], raw: bytes) -> _AnyBody:
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `$.")
        raise BadField(place.rstrip("`") or None, f"invalid request: {problem}{_at(place)}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadField(None, f"the body is not valid JSON: {error}") from error
    except RecursionError as error:
        raise BadField(None, "the body is not valid JSON: nested too deeply") from error


def _at(place: str) -> str:
    return f" at {place.rstrip('`')}" if place else ""


def _text(message: _Message) -> str:
    if message.content is None:
        return ""
    if isinstance(message.content, str):
        return message.content
    for part in message.content:
        if part.type not in {"text", "input_text"} or part.text is None:
            raise BadField(
                "messages",
                f"content parts of type {part.type!r} are not supported",
                "send parts of type text",
            )
    return "".join(part.text or "" for part in message.content)


def _one_prompt(prompt: str | list[int | str | list[int]]) -> str | tuple[int, ...]:
    if isinstance(prompt, str):
        return prompt
    ids = tuple(item for item in prompt if isinstance(item, int))
    if len(ids) == len(prompt):
        return ids
    if len(prompt) == 1:
        only = prompt[0]
        return only if isinstance(only, str) else tuple(only) if isinstance(only, list) else ids
    raise BadField(
        "prompt",
        f"prompt is a list of {len(prompt)}: a request holds one prompt",
        "send one request for each prompt; they run side by side",
    )


def _asked(body: _Body, prompt: Prompt, max_tokens: int | None) -> Asked:
    _refuse_unsupported(body)
    asked = Asked(
        model=body.model or None,
        prompt=prompt,
        max_tokens=max_tokens,
        temperature=_temperature(body.temperature),
        top_p=_top_p(body.top_p),
        top_k=_top_k(body.top_k),
        seed=_seed(body.seed),
        min_tokens=_within("min_tokens", body.min_tokens or 0, 0, LARGEST_INT),
        ignore_eos=bool(body.ignore_eos),
        stop=_stops(body.stop),
        stop_token_ids=_stop_token_ids(body.stop_token_ids or ()),
        priority=_within("priority", body.priority or 0, -LARGEST_INT, LARGEST_INT),
        service_tier=body.service_tier,
        cache_salt=_cache_salt(body.cache_salt),
        stream=bool(body.stream),
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
    )
    if max_tokens is not None:
        _within("max_tokens", max_tokens, 1, LARGEST_INT)
        if asked.min_tokens > max_tokens:
            raise BadField(
                "min_tokens", f"min_tokens ({asked.min_tokens}) is more than max_tokens ({max_tokens})"
            )
    if body.stream_options is not None and not asked.stream:
        raise BadField("stream_options", "stream_options needs stream to be true")
    return asked


def _refuse_unsupported(body: _Body) -> None:
    for name, neutral in _NEUTRAL.items():
        value = getattr(body, name)
        if value is not None and not any(_is_same(value, each) for each in neutral):
            raise BadField(name, f"{name}={value!r:.80} is not supported", f"leave {name} out")


def _is_same(value: object, neutral: object) -> bool:
    """Equal, and a truth value or none of them: `logprobs` 0 asks for something, False does not."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def _within(name: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise BadField(name, f"{name} is {_shown(value)}; it must be between {low} and {high}")
    return value


def _shown(value: int) -> str:
    return str(value) if abs(value) < 10**30 else "a number of more than 30 digits"


def _temperature(value: float | None) -> float:
    if value is None:
        return 1.0
    if value < 0:
        raise BadField("temperature", f"temperature is {value}; it must be 0 (greedy) or more")
    return 0.0 if value < GREEDY_BELOW else value


def _top_p(value: float | None) -> float:
    if value is None:
        return 1.0
    if not 0 < value <= 1:
        raise BadField("top_p", f"top_p is {value}; it must be more than 0 and at most 1")
    return value


def _top_k(value: int | None) -> int:
    """0 and -1 both mean all, on the wire; 0 behind it."""
    return max(0, _within("top_k", value or 0, -1, LARGEST_INT))


def _seed(value: int | None) -> int | None:
    """-1 is none, as in vLLM; generators behind want it unsigned."""
    if value is None or value == -1:
        return None
    return _within("seed", value, -LARGEST_INT - 1, LARGEST_INT) & LARGEST_INT


def _stops(value: str | list[str] | None) -> tuple[str, ...]:
    stops = (value,) if isinstance(value, str) else tuple(value or ())
    if len(stops) > MOST_STOPS:
        raise BadField("stop", f"{len(stops)} stop strings; at most {MOST_STOPS} are allowed")
    if "" in stops:
        raise BadField("stop", "a stop string is empty", "leave it out")
    if longest := max((len(stop) for stop in stops if len(stop) > LONGEST_STOP), default=0):
        raise BadField("stop", f"a stop string of {longest} characters; at most {LONGEST_STOP} are allowed")
    return stops


def _stop_token_ids(ids: Iterable[int]) -> frozenset[int]:
    found = frozenset(_within("stop_token_ids", token_id, 0, LARGEST_INT) for token_id in ids)
    if len(found) > MOST_STOP_TOKEN_IDS:
        raise BadField(
            "stop_token_ids", f"{len(found)} stop tokens; at most {MOST_STOP_TOKEN_IDS} are allowed"
        )
    return found


def _cache_salt(value: str | None) -> str:
    if value == "":
        raise BadField("cache_salt", "cache_salt is empty", "leave it out to share prefix blocks")
    return value or ""
