"""What one step computes, and who had to wait for which budget.

    scheduler.schedule() -> Plan -> executor.run(plan) -> tokens -> scheduler.update(plan, tokens)

`Work`, `Chunk` and `Plan` are made or changed for every token, so they are plain slotted
records: freezing would cost a microsecond apiece. The scheduler owns `Work` and is the only
one to change it; an executor reads the slice that its chunk names.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum, auto

from headrace.core.bill import Cause
from headrace.core.request import Request


class Status(Enum):
    """Where a request is in its life inside the scheduler."""

    WAITING = auto()
    RUNNING = auto()
    PREEMPTED = auto()
    FINISHED = auto()


class Work:
    """One admitted request and how far it has got. Owned by the scheduler."""

    __slots__ = (
        "arrival",
        "block_hashes",
        "block_ids",
        "capacity_tokens",
        "expected_tokens",
        "num_cached_blocks",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "num_tokens",
        "owed_by_step",
        "request",
        "sharable_blocks",
        "status",
        "stop_ids",
        "token_ids",
        "token_limit",
    )

    def __init__(self, request: Request, arrival: int, max_model_len: int) -> None:
        self.request = request
        self.arrival = arrival  # running number of the submission: breaks every tie
        self.token_ids = list(request.prompt_token_ids)  # the prompt, then what was generated
        self.num_prompt_tokens = len(self.token_ids)
        self.num_tokens = self.num_prompt_tokens
        self.expected_tokens = self.num_tokens  # and what steps in flight will add
        self.token_limit = min(self.num_prompt_tokens + request.sampling.max_tokens, max_model_len)
        self.stop_ids = request.sampling.ending_token_ids
        self.num_computed_tokens = 0  # scheduled so far, so one step ahead of the KV cache
        self.num_cached_tokens = 0  # of the prompt, found in the prefix cache at first admission
        self.block_ids: list[int] = []
        self.capacity_tokens = 0  # what block_ids can hold
        self.block_hashes: list[Hashable] = []  # one per full block of token_ids
        self.num_cached_blocks = 0  # of block_ids, how many are worth keeping as a prefix
        self.sharable_blocks = 0  # of those it will have, how many another request could ask for
        self.status = Status.WAITING
        self.num_preemptions = 0
        self.owed_by_step = 0  # the step in flight that still owes a token from before a preemption

    @property
    def num_output_tokens(self) -> int:
        return self.num_tokens - self.num_prompt_tokens

    def __repr__(self) -> str:
        return (
            f"Work({self.request.request_id}, {self.status.name}, "
            f"{self.num_computed_tokens}/{self.num_tokens} tokens, {len(self.block_ids)} blocks)"
        )


@dataclass(slots=True)
class Chunk:
    """The tokens `work.token_ids[start : start + tokens]`, to be computed in this step."""

    work: Work
    start: int
    tokens: int
    samples: bool  # it reaches the last expected token, so the model's answer is the next one


@dataclass(slots=True)
class Plan:
    """One step. Chunks are in the scheduler's order: the running first, then admissions."""

    number: int = 0
    """Steps are numbered from 1 in the order of planning."""
    chunks: list[Chunk] = field(default_factory=list[Chunk])
    num_scheduled_tokens: int = 0
    preempted: list[Work] = field(default_factory=list[Work])
    admitted: list[Work] = field(default_factory=list[Work])
    queue_stopped_by: Cause | None = None
    """The budget that stopped the queue's head, and with it everyone behind; None: queue is empty."""
    starved: list[Work] = field(default_factory=list[Work])
    """Running requests that got nothing in this step."""
    starved_by: Cause | None = None
    """The budget that stopped the running loop, and with it everyone in `starved`."""
    capped: set[int] = field(default_factory=set[int])
    """`arrival` of the works whose chunk `long_prefill_token_threshold` cut."""
