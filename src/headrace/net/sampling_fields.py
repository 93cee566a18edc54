"""The fields of a body that say how tokens are drawn and when an answer ends.

    Body --read_sampling--> SamplingParams      logit_bias, allowed tokens, penalties, stop tokens, ...

What needs the tokenizer or the length of the prompt is the front end's to fill in: `max_tokens`, the
seed, the end token and the bad words.
"""

from dataclasses import dataclass, replace

from headrace.core.request import Grammar, SamplingParams
from headrace.net.bodies import LARGEST_INT, Body
from headrace.net.fields import BadField, shown

LEAST_TEMPERATURE = 0.01
"""vLLM raises smaller ones, other than 0, to this: they could only overflow."""
LARGEST_BIAS = 100.0
"""vLLM's and OpenAI's; larger ones are cut to it."""
LEAST_PENALTY = 1e-6
"""A smaller repetition penalty would overflow the logits it divides."""


@dataclass(frozen=True, slots=True)
class TokenLimit:
    """The most tokens of an answer."""

    tokens: int | None
    """None: as many as fit."""
    field: str = "max_tokens"
    """Where the client wrote it: a refusal names that."""


def read_sampling(body: Body, limit: TokenLimit, grammar: Grammar | None) -> SamplingParams:
    """Raises `BadField`."""
    min_tokens = body.min_tokens or 0
    if limit.tokens is not None and min_tokens > limit.tokens:
        raise BadField("min_tokens", f"min_tokens ({min_tokens}) is more than {limit.field} ({limit.tokens})")
    temperature = 1.0 if body.temperature is None else body.temperature
    allowed = body.allowed_token_ids
    return SamplingParams(
        max_tokens=LARGEST_INT if limit.tokens is None else limit.tokens,
        temperature=max(LEAST_TEMPERATURE, temperature) if temperature else 0.0,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=max(0, body.top_k or 0),
        min_p=body.min_p or 0.0,
        repetition_penalty=max(LEAST_PENALTY, body.repetition_penalty or 1.0),
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logit_bias=_logit_bias(body.logit_bias or {}),
        allowed_token_ids=None if allowed is None else frozenset(allowed),
        grammar=grammar,
        min_tokens=min_tokens,
        stop_token_ids=frozenset(body.stop_token_ids or ()),
    )


def read_logprobs(body: Body, sampling: SamplingParams, num_logprobs: int | None) -> SamplingParams:
    """`num_logprobs`: what the endpoint's own field asks for. Raises `BadField`."""
    named = tuple(dict.fromkeys(body.logprob_token_ids or ()))
    if named and num_logprobs is None:
        raise BadField("logprob_token_ids", "logprob_token_ids needs logprobs")
    if body.stream and body.prompt_logprobs:
        raise BadField(
            "prompt_logprobs",
            "prompt_logprobs do not come with a stream",
            "leave stream out, or stream a completion with echo and logprobs",
        )
    return replace(
        sampling,
        num_logprobs=num_logprobs,
        logprob_token_ids=named,
        num_prompt_logprobs=body.prompt_logprobs,
    )


def read_seed(body: Body) -> int | None:
    """None where none was given; -1 is none too, as in vLLM."""
    return None if body.seed == -1 else body.seed


def read_choices(body: Body, num_prompts: int, most: int) -> int:
    """`n`: how many answers to each prompt."""
    n = body.n or 1
    if n > 1 and body.temperature == 0:
        raise BadField("n", f"n is {n} and temperature is 0: all answers would be the same", "set n to 1")
    if n * num_prompts > most:
        raise BadField(
            "n" if num_prompts == 1 else "prompt",
            f"{num_prompts} prompts with {n} answers each; one request may ask for {most} answers",
            "send several requests",
        )
    return n


def _logit_bias(bias: dict[str, float]) -> tuple[tuple[int, float], ...]:
    return tuple(
        (_token_id(key), min(LARGEST_BIAS, max(-LARGEST_BIAS, amount))) for key, amount in bias.items()
    )


def _token_id(key: str) -> int:
    if not (key.isascii() and key.isdigit() and len(key) < 20):
        raise BadField("logit_bias", f"logit_bias has the key {shown(key)}, which is no token id")
    return int(key)
