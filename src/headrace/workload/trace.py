"""A workload without text: when requests arrive and how long they are, prefix sharing included.

Instants are seconds from the first row of the trace. What a row cannot say it does not invent:
a trace without prefix information shares nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

LONGEST_S = 366 * 86_400.0
"""From the first request to the last. Beyond it the unit of time is another one, or the run has no end."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace."""

    due_at: float
    prompt_tokens: int
    output_tokens: int
    request_class: str = "trace"
    priority: int = 0
    prefix_ids: tuple[int, ...] = ()
    """One id for each `prefix_block_tokens` tokens of the prompt; equal ids mean equal tokens up to there."""
    prefix_block_tokens: int = 0
    tenant: str = ""
    session: str = ""
    """Requests of one session are turns of one conversation, or calls of one agent."""
    think_s: float | None = None
    """For a turn that waits for the answer before it in its session: how long after that answer it comes.
    `due_at` is then what it would be if answers came at the speed that the workload was made for."""


def turns_before(requests: Sequence[TraceRequest]) -> Iterator[int | None]:
    """For each request the place of the one whose answer it waits for: the turn before it in its session."""
    last: dict[str, int] = {}
    for place, traced in enumerate(requests):
        yield last.get(traced.session) if traced.think_s is not None else None
        if traced.session:
            last[traced.session] = place


@dataclass(frozen=True, slots=True)
class About:
    """What a workload says of itself, beside its requests."""

    made_of: str = ""
    """A recipe, a trace or a log, in words."""
    seed: int | None = None
    slo: str = ""
    """Goals by class, as `core.slo.parse_goals` reads them."""
    prefix_block_tokens: int = 0
    """What one prefix id stands for; 0 where nobody says."""
