"""Log probabilities with their tokens' names, in the two shapes of the OpenAI API.

    TokenLogprobs --name--> NamedToken --chat_logprobs | completion_logprobs--> what is sent

A token's text is its own bytes: where they are no whole character it shows U+FFFD, and `bytes` has
the truth. (vLLM decodes it after its neighbours, so its tokens' texts add up, and its bytes may not.)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.core.output import TokenLogprobs
from headrace.net.shapes import ChatLogprobs, ChatToken, CompletionLogprobs, LikelyToken

LEAST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON does not have. vLLM's."""


@dataclass(frozen=True, slots=True)
class NamedToken:
    raw: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...]

    @property
    def text(self) -> str:
        return self.raw.decode(errors="replace")


def name(logprobs: TokenLogprobs, token_bytes: Callable[[int], bytes]) -> NamedToken:
    top = tuple((token_bytes(token_id), _finite(logprob)) for token_id, logprob in logprobs.top)
    return NamedToken(token_bytes(logprobs.token_id), _finite(logprobs.logprob), top)


def chat_logprobs(tokens: Sequence[NamedToken]) -> ChatLogprobs:
    return ChatLogprobs(
        [
            ChatToken(
                token.text,
                token.logprob,
                list(token.raw),
                [LikelyToken(raw.decode(errors="replace"), logprob, list(raw)) for raw, logprob in token.top],
            )
            for token in tokens
        ]
    )


def completion_logprobs(tokens: Sequence[NamedToken], offset: int) -> CompletionLogprobs:
    """`offset`: characters of the text before these tokens."""
    offsets: list[int] = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.text)
    return CompletionLogprobs(
        text_offset=offsets,
        token_logprobs=[token.logprob for token in tokens],
        tokens=[token.text for token in tokens],
        top_logprobs=[_top(token) for token in tokens],
    )


def _top(token: NamedToken) -> dict[str, float]:
    """The likeliest, and the drawn token beside them where it is not one of them."""
    named: dict[str, float] = {}
    for raw, logprob in token.top:
        named.setdefault(raw.decode(errors="replace"), logprob)
    named.setdefault(token.text, token.logprob)
    return named


def _finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)
