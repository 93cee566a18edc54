"""What a client asks of a server and what it gets: the seam between load and sockets.

    workload -> Arrival(due_at, Ask) -> measure.run -> Sender.send(ask) -> Answer | Broken
                                            '-> Timeline | Failure

Instants (`_at`) are seconds on the clock that the sender was made with.
"""

from dataclasses import dataclass
from typing import Protocol

from headrace.core.bill import Cause
from headrace.core.timeline import FailureKind


@dataclass(frozen=True, slots=True)
class Ask:
    """One request as a client states it."""

    request_id: str
    request_class: str
    prompt: str
    """The user's message of a one-turn chat."""
    max_tokens: int
    ignore_eos: bool = True
    """Answer exactly `max_tokens`, so that runs can be compared. Servers that do not know it ignore it."""
    priority: int = 0
    prompt_tokens: int = 0
    """How many its prompt was made to have, chat template and all; 0 where nobody knows the tokenizer."""

    @property
    def expected_prompt_tokens(self) -> int:
        """Where no server has counted them."""
        return self.prompt_tokens or self.num_prompt_words

    @property
    def num_prompt_words(self) -> int:
        """A word is about a token."""
        return len(self.prompt.split())


@dataclass(frozen=True, slots=True)
class Arrival:
    """An `Ask` and when it is due, in seconds from the run's start."""

    due_at: float
    ask: Ask
    after: str | None = None
    """The request, by its id, whose answer this one waits for: the turn before it in a conversation. It is
    then due `think_s` after that answer has ended, well or not, and `due_at` says only when it was expected.
    """
    think_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Answer:
    """A stream that ended as it should, with at least one token."""

    sent_at: float
    token_at: tuple[float, ...]
    """One instant a token; tokens that came in one event share it."""
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    bill_s: dict[Cause, float] | None
    usage_tokens: int | None = None
    """Output tokens that the server says it sent, right or wrong; None where it says nothing."""
    token_events: int = 0
    """Events of the stream that showed text."""


@dataclass(frozen=True, slots=True)
class Broken:
    """An answer that did not come, or not whole."""

    failed_at: float
    kind: FailureKind
    reason: str
    tokens_received: int = 0
    sent_at: float | None = None
    """None where it was never sent."""


class Sender(Protocol):
    """Sends one request and listens to its stream. Whatever the server does comes back as a value."""

    async def send(self, ask: Ask) -> Answer | Broken: ...
