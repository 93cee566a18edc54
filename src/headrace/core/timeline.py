"""When each thing happened to one request, as its client saw it.

Instants end in `_at` and are seconds on the run's own clock, real or virtual, 0 at the
run's start. Durations end in `_s`. A latency always starts at `due_at`, the moment the
workload meant the request to leave, so a load generator that falls behind cannot flatter
the server.
"""

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from operator import le

from headrace.core.bill import Cause


@dataclass(frozen=True, slots=True)
class Timeline:
    """The life of one request that produced at least one token."""

    request_id: str
    request_class: str
    prompt_tokens: int
    due_at: float
    sent_at: float
    token_at: tuple[float, ...]
    finish_reason: str
    cached_tokens: int = 0
    bill_s: dict[Cause, float] | None = None
    """The server's account of its part of the TTFT; None from servers that keep none."""
    asked_tokens: int = 0
    """The most tokens it was allowed; 0 where that is not on record."""
    usage_tokens: int | None = None
    """Output tokens by the server's own count, right or wrong; None where it gave none."""
    token_events: int = 0
    """Events of its stream that showed text; 0 where there was no stream."""
    asked_prompt_tokens: int = 0
    """How many its prompt was made to have, beside the server's count; 0 where that was not exact."""

    def __post_init__(self) -> None:
        if not self.token_at:
            raise ValueError("a Timeline needs at least one token; record a Failure instead")
        token_at = self.token_at
        # NaN is no order either. `map`, as there may be millions of tokens: a fifth of a generator's time.
        if not (self.due_at <= self.sent_at <= token_at[0] and all(map(le, token_at, token_at[1:]))):
            instants = (self.due_at, self.sent_at, *token_at)
            raise ValueError(f"a Timeline must not run backwards: {instants}")

    @property
    def dispatch_lag_s(self) -> float:
        """How late we were in sending. Ours to fix, not the server's."""
        return self.sent_at - self.due_at

    @property
    def is_short(self) -> bool:
        """It ended before the length asked for, which makes it cheaper than it was meant to be."""
        return len(self.token_at) < self.asked_tokens

    @property
    def ttft_s(self) -> float:
        """Time to first token, from when the request was due."""
        return self.token_at[0] - self.due_at

    @property
    def e2e_s(self) -> float:
        """From when the request was due to its last token."""
        return self.token_at[-1] - self.due_at

    @property
    def itl_s(self) -> tuple[float, ...]:
        """Inter-token latencies; empty for a one-token answer."""
        return tuple(b - a for a, b in pairwise(self.token_at))

    @property
    def tpot_s(self) -> float | None:
        """Time per output token, the mean over this request; None for a one-token answer."""
        gaps = len(self.token_at) - 1
        return (self.token_at[-1] - self.token_at[0]) / gaps if gaps else None


class FailureKind(StrEnum):
    """How a request came to nothing."""

    REFUSED = "refused"  # an answer that is not 200
    CUT = "cut"  # the stream ended before its end
    TIMED_OUT = "timed_out"
    UNREACHABLE = "unreachable"  # no connection
    EMPTY = "empty"  # ended properly, without a token
    MALFORMED = "malformed"  # an answer that does not follow the protocol
    INTERRUPTED = "interrupted"  # we stopped listening: not the server's doing
    CLIENT_ERROR = "client_error"  # our own side broke


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that was due and brought no complete answer. Never dropped from a result."""

    request_id: str
    request_class: str
    prompt_tokens: int
    due_at: float
    failed_at: float
    kind: FailureKind
    reason: str
    tokens_received: int = 0
    sent_at: float | None = None
    """None where it was never sent, or that is not on record."""
