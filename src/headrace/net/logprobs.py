"""Log probabilities with their tokens' names, in the shapes of the OpenAI API and of vLLM.

    TokenLogprobs --Names--> NamedToken --chat_logprobs | completion_logprobs--> what is sent
                  --prompt_logprobs-->                                           vLLM's own shape

A token's text is its own bytes: where they are no whole character it shows U+FFFD, and `bytes` has
the truth. (vLLM decodes it after its neighbours, so its tokens' texts add up, and its bytes may not.)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headrace.core.output import TokenLogprobs
from headrace.net.shapes import (
    ChatLogprobs,
    ChatToken,
    CompletionLogprobs,
    LikelyToken,
    PromptLogprobs,
    PromptToken,
)

LEAST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON does not have. vLLM's."""


@dataclass(frozen=True, slots=True)
class NamedToken:
    text: str
    bytes: list[int]
    logprob: float | None
    """None for the first token of a prompt: nothing comes before it."""
    top: tuple[LikelyToken, ...] = ()


@dataclass(frozen=True, slots=True)
class Names:
    """How tokens are called."""

    token_bytes: Callable[[int], bytes]
    as_ids: bool = False
    """`token_id:7`, for tokens that are no text."""
    _known: dict[int, tuple[str, list[int]]] = field(default_factory=dict[int, tuple[str, list[int]]])
    """Text and bytes of the tokens that were named before: the likely ones come again and again."""

    def name(self, logprobs: TokenLogprobs, most: int | None = None) -> NamedToken:
        """`most` of the likeliest; None: all that there are."""
        top = tuple(self._likely(token_id, logprob) for token_id, logprob in logprobs.top[:most])
        drawn = self._likely(logprobs.token_id, logprobs.logprob)
        return NamedToken(drawn.token, drawn.bytes, drawn.logprob, top)

    def name_prompt(self, first: int, others: Sequence[TokenLogprobs], most: int) -> list[NamedToken]:
        likely = self._likely(first, 0.0)
        unknown = NamedToken(likely.token, likely.bytes, None)
        return [unknown, *(self.name(each, most) for each in others)]

    def _likely(self, token_id: int, logprob: float) -> LikelyToken:
        known = self._known.get(token_id)
        if known is None:
            raw = self.token_bytes(token_id)
            text = f"token_id:{token_id}" if self.as_ids else raw.decode(errors="replace")
            known = self._known[token_id] = (text, list(raw))
        return LikelyToken(known[0], _finite(logprob), known[1])


def chat_logprobs(tokens: Sequence[NamedToken]) -> ChatLogprobs:
    return ChatLogprobs([_chat_token(token) for token in tokens])


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


def prompt_logprobs(others: Sequence[TokenLogprobs], token_bytes: Callable[[int], bytes]) -> PromptLogprobs:
    """`others`: of all tokens but the first."""

    def told(token_id: int, logprob: float, rank: int) -> PromptToken:
        return PromptToken(_finite(logprob), rank, token_bytes(token_id).decode(errors="replace"))

    shown: PromptLogprobs = [None]
    for each in others:
        tokens = {each.token_id: told(each.token_id, each.logprob, each.rank)}
        for place, (token_id, logprob) in enumerate(each.top):
            tokens[token_id] = told(token_id, logprob, place + 1)
        shown.append(tokens)
    return shown


def _chat_token(token: NamedToken) -> ChatToken:
    logprob = LEAST_LOGPROB if token.logprob is None else token.logprob
    return ChatToken(token.text, logprob, token.bytes, list(token.top))


def _top(token: NamedToken) -> dict[str, float] | None:
    """The likeliest, and the drawn token beside them where it is not one of them."""
    if token.logprob is None:
        return None
    named: dict[str, float] = {}
    for likely in token.top:
        named.setdefault(likely.token, likely.logprob)
    named.setdefault(token.text, token.logprob)
    return named


def _finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)
