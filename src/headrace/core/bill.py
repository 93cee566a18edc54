"""The bill: where a request's time to first token went, part by part.

    arrived                                                                   first token
    |-- front_end --|-- step_in_flight --|-- tokens|slots|kv ... --|-- steps it took part in --|
                                                                     own_prefill | shared_steps |
                                                                     long_prefill_cap | recompute

Durations are whole nanoseconds, so the parts add up to the TTFT exactly, not nearly.
"""

from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
    """What a request waited for. The first six are waits, the last four are steps it was part of."""

    FRONT_END = "front_end"
    """Parsing, templating, tokenizing: the CPU budget outside the engine."""
    STEP_IN_FLIGHT = "step_in_flight"
    """It came while a step ran; a step is not interrupted."""
    TOKENS = "tokens"
    """`max_num_batched_tokens` was spent on requests before it."""
    DECODE_PACE = "decode_pace"
    """The policy `slo` kept tokens of the step back, for running answers to meet their ITL goal."""
    SLOTS = "slots"
    """`max_num_seqs` requests were running."""
    KV = "kv"
    """Not enough free KV blocks, for it or for the one at the head of the queue."""
    LONG_PREFILL_CAP = "long_prefill_cap"
    """Others' share of steps in which `long_prefill_token_threshold` held its own chunk down."""
    RECOMPUTE = "recompute"
    """Computing again what a preemption threw away."""
    SHARED_STEPS = "shared_steps"
    """Others' share of the steps that computed its prompt."""
    OWN_PREFILL = "own_prefill"
    """Its own share of those steps: what it would cost alone."""


CAUSES: tuple[Cause, ...] = tuple(Cause)


@dataclass(frozen=True, slots=True)
class Bill:
    """Nanoseconds of one request's TTFT by cause, in the order of `CAUSES`."""

    parts_ns: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.parts_ns) != len(CAUSES) or min(self.parts_ns) < 0:
            raise ValueError(f"a bill has {len(CAUSES)} parts, none negative: {self.parts_ns}")

    @property
    def ttft_ns(self) -> int:
        return sum(self.parts_ns)

    def seconds(self) -> dict[Cause, float]:
        """The same bill in seconds, for people and for programs that sum over many."""
        return {cause: part / 1e9 for cause, part in zip(CAUSES, self.parts_ns, strict=True)}
