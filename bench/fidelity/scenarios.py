"""What the embedded engine is asked in `bench.fidelity --target embedded`: workloads and settings.

    Kind --requests(rps, seed)--> (Arrival, ...) --as_trace(tokenizer)--> (TraceRequest, ...)

The trace is what the server is going to see: the chat template is in it, tokens are counted by the
model's own tokenizer, and equal beginnings are told by the tokens themselves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.core.exchange import Arrival, Ask
from headrace.core.ports import Chat, ChatMessage, Tokenizer
from headrace.workload.trace import TraceRequest
from headrace.workload.words import WORDS

Budgets = Mapping[str, int]
"""Settings that differ from the defaults, under vLLM's names."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of traffic. Lengths are (fewest, most)."""

    name: str
    short_words: tuple[int, int] = (20, 90)
    long_words: tuple[int, int] = (400, 1000)
    long_share: float = 0.0
    output_tokens: tuple[int, int] = (12, 40)
    shared_words: int = 0
    """Of a beginning that a quarter of the requests has in common with each other."""


SHORT = Kind("short")
LONG = Kind("long", long_share=1.0, output_tokens=(8, 24))
MIXED = Kind("mixed", long_share=0.15)
SHARED = Kind("shared prefixes", shared_words=360)

_PREFIXES = 4


@dataclass(frozen=True, slots=True)
class Scenario:
    """One point at which prediction and reality are compared."""

    kind: Kind
    load: float
    """Of what the twin says the machine can do with these settings: 1 is the knee."""
    budgets: Budgets

    def __str__(self) -> str:
        said = ", ".join(f"{name} {value}" for name, value in self.budgets.items())
        return f"{self.kind.name} at {self.load:g} of the knee, {said or 'defaults'}"


_SMALL_STEPS: Budgets = {"max_num_batched_tokens": 256, "max_num_seqs": 16}
_CAPPED: Budgets = {"max_num_batched_tokens": 512, "long_prefill_token_threshold": 128}
_FEW_BLOCKS: Budgets = {"max_model_len": 1536, "num_gpu_blocks_override": 60}
"""1,888 tokens: some requests must give way to others."""

QUICK = (
    Scenario(SHORT, 0.6, {}),
    Scenario(MIXED, 0.9, _SMALL_STEPS),
    Scenario(SHARED, 0.9, {}),
    Scenario(SHORT, 1.4, _FEW_BLOCKS),
)
FULL = (
    *QUICK,
    Scenario(SHORT, 1.0, {}),
    Scenario(LONG, 0.6, {}),
    Scenario(LONG, 1.2, _CAPPED),
    Scenario(MIXED, 0.9, {}),
)

RANKED_KIND, RANKED_LOAD = MIXED, 0.9
RANKED: tuple[Budgets, ...] = (
    {"max_num_batched_tokens": 2048, "max_num_seqs": 2},
    {},
    {"max_num_batched_tokens": 128, "max_num_seqs": 32},
    {"max_num_batched_tokens": 2048, "max_num_seqs": 6},
    {"max_num_batched_tokens": 256, "max_num_seqs": 32},
    {"max_num_batched_tokens": 512, "long_prefill_token_threshold": 64},
    {"max_num_batched_tokens": 64, "max_num_seqs": 32},
    {"max_num_batched_tokens": 512, "max_num_seqs": 4},
    {"max_num_batched_tokens": 1024, "long_prefill_token_threshold": 256},
    {"max_num_batched_tokens": 2048, "max_num_seqs": 1},
    {"max_num_batched_tokens": 512, "max_num_seqs": 3},
    {"max_num_batched_tokens": 256, "max_num_seqs": 8},
)


def requests(kind: Kind, rps: float, duration_s: float, seed: int) -> tuple[Arrival, ...]:
    """Poisson arrivals over `duration_s`; another rate squeezes the same requests together."""
    chance = np.random.default_rng(seed)
    beginnings = [_text(chance, kind.shared_words) for _ in range(_PREFIXES)]
    arrivals: list[Arrival] = []
    due_at = 0.0
    while (due_at := due_at + chance.exponential() / rps) < duration_s or not arrivals:
        number = len(arrivals)
        is_long = chance.random() < kind.long_share
        words = int(chance.integers(*(kind.long_words if is_long else kind.short_words), endpoint=True))
        beginning = beginnings[int(chance.integers(_PREFIXES))]
        prompt = f"{beginning} {_text(chance, words)}".strip()
        tokens = int(chance.integers(*kind.output_tokens, endpoint=True))
        arrivals.append(Arrival(due_at, Ask(f"r{number}", "long" if is_long else "short", prompt, tokens)))
    return tuple(arrivals)


def as_trace(arrivals: Sequence[Arrival], tokenizer: Tokenizer, block_size: int) -> tuple[TraceRequest, ...]:
    """What a server of that tokenizer makes of the requests."""
    known: dict[tuple[int, ...], int] = {}
    traced: list[TraceRequest] = []
    for arrival in arrivals:
        ask = arrival.ask
        prompt = tokenizer.apply_chat_template(Chat((ChatMessage("user", ask.prompt),)))
        tokens = tuple(tokenizer.encode(prompt))
        ends = range(block_size, len(tokens) + 1, block_size)
        traced.append(
            TraceRequest(
                due_at=arrival.due_at,
                prompt_tokens=len(tokens),
                output_tokens=ask.max_tokens,
                request_class=ask.request_class,
                prefix_ids=tuple(known.setdefault(tokens[:end], len(known)) for end in ends),
                prefix_block_tokens=block_size,
            )
        )
    return tuple(traced)


def _text(chance: np.random.Generator, words: int) -> str:
    return " ".join(WORDS[index] for index in chance.integers(0, len(WORDS), words))
