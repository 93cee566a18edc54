"""What is worth trying, most promising first, from where the slow requests' time went.

    Start + bill  ->  Proposal(choices, notes)

Why a cap on long prompts comes before smaller steps: a prompt in prefill keeps its place in the
running list and takes the whole remaining token budget of every step, so a smaller
`max_num_batched_tokens` alone makes more and shorter steps that are still all its own. Only
`long_prefill_token_threshold` *below* the budget leaves room for newcomers in each step.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.core.bill import Cause
from headrace.core.ports import Overrides

_STEPS = (Cause.STEP_IN_FLIGHT, Cause.TOKENS, Cause.DECODE_PACE, Cause.SHARED_STEPS, Cause.LONG_PREFILL_CAP)
_MEMORY = (Cause.KV, Cause.RECOMPUTE)

# (max_num_batched_tokens, long_prefill_token_threshold); None leaves the starting value.
# The last is the reflex of lowering the budget alone: it is there to be seen, not to win.
_STEP_LADDER: tuple[tuple[int | None, int | None], ...] = (
    (None, 256),
    (512, 128),
    (None, 128),
    (256, 64),
    (512, 256),
    (256, None),
)

_OUT_OF_REACH = {
    "memory": "for KV memory, which this search does not change: raise kv_cache_memory_bytes",
    "front end": "before the engine (parsing, tokenizing): no scheduler setting shortens that",
    "own prefill": "computing their own prompts: no scheduler setting shortens that",
}


@dataclass(frozen=True, slots=True)
class Start:
    """The starting values of the levers, and the longest request the server takes (None: not known)."""

    max_num_batched_tokens: int
    max_num_seqs: int
    long_prefill_token_threshold: int
    max_model_len: int | None = None

    def levers(self) -> Overrides:
        """The three settings that are searched, as the server has them at the start."""
        return {
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "max_num_seqs": self.max_num_seqs,
            "long_prefill_token_threshold": self.long_prefill_token_threshold,
        }


@dataclass(frozen=True, slots=True)
class Proposal:
    choices: tuple[Overrides, ...]
    notes: tuple[str, ...]


def propose(start: Start, bill: Mapping[Cause, float] | None) -> Proposal:
    """Order the levers by what the slow requests waited for; without a bill, steps come first."""
    seconds = dict.fromkeys(Cause, 0.0) | dict(bill or {})
    by_group = {
        "steps": sum(seconds[cause] for cause in _STEPS),
        "slots": seconds[Cause.SLOTS],
        "memory": sum(seconds[cause] for cause in _MEMORY),
        "front end": seconds[Cause.FRONT_END],
        "own prefill": seconds[Cause.OWN_PREFILL],
    }
    most = max(by_group, key=lambda group: by_group[group])
    steps, more, fewer = _step_choices(), _more_slots(start), _fewer_slots(start)
    ordered = {
        "slots": [*more, *steps],
        "memory": [*fewer, *steps, *more],
    }.get(most, [*steps, *fewer])
    return Proposal(_worth_trying(ordered, start), _notes(most, by_group[most], seconds))


def _step_choices() -> list[Overrides]:
    choices: list[Overrides] = []
    for tokens, cap in _STEP_LADDER:
        choice: Overrides = {}
        if tokens is not None:
            choice["max_num_batched_tokens"] = tokens
        if cap is not None:
            choice["long_prefill_token_threshold"] = cap
        choices.append(choice)
    return choices


def _more_slots(start: Start) -> list[Overrides]:
    return [{"max_num_seqs": start.max_num_seqs * factor} for factor in (2, 4)]


def _fewer_slots(start: Start) -> list[Overrides]:
    return [{"max_num_seqs": start.max_num_seqs // 4}]


def _worth_trying(choices: list[Overrides], start: Start) -> tuple[Overrides, ...]:
    """Only what a server would accept, differs from the start and from those before it."""
    kept: list[Overrides] = []
    seen = [start.levers()]
    for choice in choices:
        full = start.levers() | choice
        if full not in seen and _is_acceptable(full, choice, start.max_model_len):
            seen.append(full)
            kept.append(choice)
    return tuple(kept)


def _is_acceptable(full: Overrides, choice: Overrides, max_model_len: int | None) -> bool:
    tokens, seqs = int(full["max_num_batched_tokens"]), int(full["max_num_seqs"])
    cap = int(full["long_prefill_token_threshold"])
    cap_would_bind = "long_prefill_token_threshold" not in choice or cap < tokens
    return 1 <= seqs <= tokens and cap_would_bind and (max_model_len is None or cap <= max_model_len)


def _notes(most: str, most_s: float, seconds: Mapping[Cause, float]) -> tuple[str, ...]:
    if most_s == 0.0:
        return ("the server keeps no bill of its waits, so the levers were tried in their usual order",)
    if most not in _OUT_OF_REACH:
        return ()
    share = most_s / sum(seconds.values())
    return (f"{share:.0%} of the slow requests' wait was {_OUT_OF_REACH[most]}",)
