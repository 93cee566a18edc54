"""The states in which deciding is timed, and how a scheduler is brought into them and kept there.

    decode    all run and generate: one token each, nobody ends within the measurement
    prefill   prompts stream through: each step admits what 8,192 tokens hold, and as many end

With `waiting`, so many more stand in the queue. Both sides run this very code; only `Side` differs.
"""

import gc
from dataclasses import dataclass
from typing import Protocol

from headrace.core.settings import Settings

BATCHED_TOKENS = 8192
BLOCK_SIZE = 16
VOCABULARY = 50_000


@dataclass(frozen=True, slots=True)
class State:
    """`kind` is decode or prefill."""

    kind: str
    running: int
    waiting: int

    @property
    def prompt_tokens(self) -> int:
        return 512 if self.kind == "decode" else 256

    @property
    def output_tokens(self) -> int:
        """Decodes outlast the measurement; prefills last as long as it takes to fill the slots."""
        admitted_a_step = BATCHED_TOKENS // self.prompt_tokens
        return 1536 if self.kind == "decode" else max(2, self.running // admitted_a_step)

    @property
    def settings(self) -> Settings:
        tokens = self.prompt_tokens + self.output_tokens
        return Settings(
            max_model_len=4096,
            num_gpu_blocks=1 + (self.running + 64) * -(-tokens // BLOCK_SIZE),
            block_size=BLOCK_SIZE,
            max_num_batched_tokens=BATCHED_TOKENS,
            max_num_seqs=self.running,
        )

    def prompt(self, number: int) -> list[int]:
        """No two begin alike."""
        first = number * 7919
        return [
            number % VOCABULARY,
            *((first + place * 31) % VOCABULARY for place in range(1, self.prompt_tokens)),
        ]


class Side(Protocol):
    """A scheduler, in a state."""

    def add(self, number: int, prompt: list[int], max_tokens: int) -> int:
        """Take a request in, once its tokens are there; the nanoseconds of that."""
        ...

    def step(self) -> int:
        """Plan a step, and book a token for all that sample; nanoseconds of deciding, both together."""
        ...

    @property
    def num_running(self) -> int: ...

    @property
    def num_waiting(self) -> int: ...


class Player:
    """Keeps one side in one state."""

    def __init__(self, side: Side, state: State) -> None:
        self._side = side
        self._state = state
        self._added = 0
        self._bring_about()

    def steps(self, count: int) -> list[int]:
        """Nanoseconds of each, with those of taking in the requests that came before it."""
        took_ns: list[int] = []
        for _ in range(count):
            fed_ns = self._feed()
            took_ns.append(fed_ns + self._side.step())
        # Between two steps of prefill those that have just ended are missing.
        assert self._side.num_running > self._state.running * 0.4, (
            f"{self._side.num_running} of {self._state}"
        )
        return took_ns

    def _bring_about(self) -> None:
        state = self._state
        if state.kind == "decode":
            self._add(state.running)
            for _ in range(state.running * state.prompt_tokens // BATCHED_TOKENS + 20):
                self._side.step()
            self._add(state.waiting)
        else:
            for _ in range(3 * state.output_tokens + 20):
                self._feed()
                self._side.step()
        # A server's engine does this too, once it is up.
        gc.collect()
        gc.freeze()

    def _feed(self) -> int:
        if self._state.kind != "prefill":
            return 0
        enough = max(self._state.waiting, BATCHED_TOKENS // self._state.prompt_tokens + 8)
        return self._add(enough - self._side.num_waiting)

    def _add(self, count: int) -> int:
        took_ns = 0
        for _ in range(count):
            prompt = self._state.prompt(self._added)
            took_ns += self._side.add(self._added, prompt, self._state.output_tokens)
            self._added += 1
        return took_ns
