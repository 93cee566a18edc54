"""What somebody asks for, in tokens: text has been left behind at the border."""

from dataclasses import dataclass, field
from enum import StrEnum


class FinishReason(StrEnum):
    """Why a request ended; vLLM's labels."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class GrammarKind(StrEnum):
    """In which language a `Grammar` is written; vLLM's names of structured outputs."""

    JSON = "json"
    """A JSON schema. `{}` allows any JSON."""
    REGEX = "regex"
    GRAMMAR = "grammar"
    """Lark or EBNF."""
    CHOICE = "choice"
    """A JSON list of the strings that are allowed."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """What the text of an answer must conform to."""

    kind: GrammarKind
    text: str = field(repr=False)  # a user's words


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is drawn and when to stop.

    Logits are changed in vLLM's order: grammar, allowed tokens, bad words, `min_tokens`, bias, penalties,
    temperature, then min_p, top_k and top_p.

    Stop *strings* are not here: they are found in text, by the front end, which then cancels.
    """

    max_tokens: int
    temperature: float = 1.0
    """0 means greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 means no limit."""
    min_p: float = 0.0
    """Tokens less likely than this share of the likeliest are left out; 0 leaves none out."""
    repetition_penalty: float = 1.0
    """Over 1: what the prompt or the answer already has becomes less likely."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    """Taken off the logit of a token once, and once for every time, that the answer has it."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, what to add to its logit)."""
    allowed_token_ids: frozenset[int] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences that must not appear in the answer."""
    grammar: Grammar | None = None
    num_logprobs: int | None = None
    """How many of the likeliest tokens to report beside each drawn one; None: report nothing."""
    logprob_token_ids: tuple[int, ...] = ()
    """Report these beside each drawn token, in this order, instead of the likeliest."""
    num_prompt_logprobs: int | None = None
    """The same for the tokens of the prompt. Such a request reads no prefix from the cache, as in vLLM."""
    seed: int = 0
    """Drives this request's own random stream; the front end draws one where the caller gave none."""
    min_tokens: int = 0
    """Outputs before `eos_token_id` or `stop_token_ids` may end it."""
    eos_token_id: int | None = None
    """None when the end-of-sequence token is to be ignored (`ignore_eos`)."""
    stop_token_ids: frozenset[int] = frozenset()

    @property
    def ending_token_ids(self) -> frozenset[int]:
        """Those that end it: its stop tokens, and the end of the sequence unless that is ignored."""
        return self.stop_token_ids if self.eos_token_id is None else self.stop_token_ids | {self.eos_token_id}


@dataclass(frozen=True, slots=True)
class Request:
    """One request as the engine sees it. Instants are nanoseconds on the run's own clock."""

    request_id: str
    prompt_token_ids: tuple[int, ...] = field(repr=False)  # prompts stay out of logs
    sampling: SamplingParams
    arrived_ns: int
    """When its first byte was ours: before parsing and tokenizing."""
    handed_ns: int
    """When it was put before the engine; from here the wait is for a budget, not for the front end."""
    priority: int = 0
    """Smaller runs first; only the `priority` policy looks."""
    cache_salt: str = ""
    """Requests share prefix blocks only with requests of the same salt."""
    request_class: str = ""
    """Whose goals are its own; only the `slo` policy looks."""
