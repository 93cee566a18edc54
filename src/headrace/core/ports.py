"""The seams: what other parts promise, so that the pure ones need not know them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.core.output import TokenLogprobs
from headrace.core.plan import Plan, Work
from headrace.core.request import Grammar


@dataclass(slots=True)
class StepResult:
    """What a forward pass gave. `token_ids[i]` belongs to `plan.chunks[i]`; None if it does not sample."""

    token_ids: list[int | None]
    logprobs: dict[int, TokenLogprobs] | None = None
    """By place in `plan.chunks`, for those who asked; None where nobody did."""
    prompt_logprobs: dict[int, list[TokenLogprobs]] | None = None
    """Likewise, beside a request's first token: of its whole prompt but the first token."""
    failed: dict[int, str] | None = None
    """By place, why a chunk that samples got no token: its request cannot go on; the others can."""
    forward_ns: int = 0
    sample_ns: int = 0


class Executor(Protocol):
    """Carries out plans over real block tables.

    Same `Work` state and same chunk: same token, whatever else shares the step.
    """

    def run(self, plan: Plan) -> StepResult:
        """Compute every chunk of `plan` in one pass and draw a token for each that samples."""
        ...

    def forget(self, work: Work) -> None:
        """`work` has ended for good: drop whatever is kept for it."""
        ...


@dataclass(frozen=True, slots=True)
class ChatMessage:
    role: str
    content: str = field(repr=False)
    more: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    """What only templates look at: `tool_calls`, `tool_call_id`, `name`, `reasoning`."""


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation, and how its template is to be filled in."""

    messages: tuple[ChatMessage, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    """Functions that the model may call, in OpenAI's shape."""
    add_generation_prompt: bool = True
    """End with the opening of the assistant's next turn."""
    continue_final_message: bool = False
    """Leave the last message open, for the model to go on with."""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])


class Tokenizer(Protocol):
    """Text to tokens and back, as the served model was trained."""

    @property
    def eos_token_id(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Tokens of `text`, special tokens written in it recognised.

        Those that the model wants around every text are added on demand.
        """
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `token_ids`; an unfinished character at the end shows as U+FFFD."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """What `token_id` adds to a text, in UTF-8: perhaps half a character. Special tokens as written."""
        ...

    @property
    def takes_tools(self) -> bool:
        """Whether the chat template tells the model of tools."""
        ...

    def apply_chat_template(self, chat: Chat) -> str:
        """The prompt. Raises `BadInput` where the template refuses."""
        ...

    def check_grammar(self, grammar: Grammar) -> None:
        """Raises `BadInput` for a grammar that the engine could not follow. Takes up to a second or so."""
        ...


Overrides = dict[str, int | float | bool | str]
"""Settings that differ from a target's defaults, under vLLM's names."""
