"""Times single steps of an executor, of shapes chosen to tell apart what a step can contain.

    design -> (Cell, ...) --run, shuffled, over and over until the time is up--> [Timed(cell, shape, ns)]

Plans are made by hand over a pool of KV blocks that was filled once, so that any batch at any context
length is one step away. No two chunks of a step read the same block while the pool lasts: a block that
is read twice would come from the processor's cache. Nothing is scheduled and nobody is served: what
that adds to a step is measured elsewhere.

Lengths of prompt chunks vary a little from round to round, as they do in service, where a length that
was never seen costs some preparation. Batch sizes do not: there are few, and each is soon known.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.core.cost import StepShape, shape_of
from headrace.core.plan import Chunk, Plan, Work
from headrace.core.ports import Executor
from headrace.core.request import Request, SamplingParams
from headrace.measure.neighbours import machine_cpu_s, undisturbed

POOL_TOKENS = 4096
"""Far more than a processor's cache holds, far less than it takes long to fill."""
FILL_TOKENS = 512
"""Of a step that fills the pool."""
_VARIES_BY = 2**0.5
"""A factor, up and down."""
_REPEATS = 2
"""Of a pair of decodes in one round: they are short, so one neighbour's tick weighs much."""
FEWEST_STEPS = 60
"""Timed whatever the budget: without them there is nothing to fit."""
_MOST_DECODE_TOKENS = 32_768
"""Of context in one step: more tells nothing new and takes long."""
_TOKEN_IDS = (300, 10_000)
"""Past the special ones, within every vocabulary."""
_GREEDY = SamplingParams(1, temperature=0.0)

_DECODES = (1, 2, 3, 4, 5, 6, 8, 11, 16, 24, 32, 48, 64)
_CONTEXTS = (48, 320, 1280, 3072)
_PROMPTS = ((24, 0), (48, 0), (96, 0), (192, 0), (384, 0), (768, 0), (1500, 0))
_LATER_CHUNKS = ((64, 1024), (256, 512), (256, 2048), (512, 1024), (512, 2560))
_BESIDE_FEW = ((1, 96, 0), (3, 64, 0), (4, 256, 0), (6, 128, 0), (8, 512, 512))
_BESIDE_MANY = ((10, 64, 0), (16, 96, 0), (16, 256, 512), (24, 64, 0), (32, 200, 0))
_TOGETHER = ((3, 40), (6, 80), (12, 60), (3, 300))


@dataclass(frozen=True, slots=True)
class Cell:
    """One kind of step: `decodes` requests at `context` tokens, and `prompts` chunks beside them."""

    decodes: int = 0
    context: int = 0
    prompts: int = 0
    prompt_tokens: int = 0
    start: int = 0

    def __str__(self) -> str:
        parts: list[str] = []
        if self.decodes:
            parts.append(f"{self.decodes} decodes at {self.context} tokens")
        if self.prompts:
            each = f"{self.prompts} chunks" if self.prompts > 1 else "a chunk"
            after = f" after {self.start}" if self.start else ""
            parts.append(f"{each} of {self.prompt_tokens} tokens{after}")
        return " with ".join(parts)


@dataclass(frozen=True, slots=True)
class Timed:
    """One step that was run."""

    cell: Cell
    shape: StepShape
    ns: int


OnRound = Callable[[int, int, float], None]
"""Told after each round: its number, how many steps were timed so far, how many seconds have gone by."""


def design(max_model_len: int) -> tuple[Cell, ...]:
    """What is worth timing on a model of that context length."""
    cells = [
        Cell(decodes, context)
        for decodes in _DECODES
        for context in _CONTEXTS
        if decodes * context <= _MOST_DECODE_TOKENS
    ]
    cells += [Cell(prompts=1, prompt_tokens=tokens, start=start) for tokens, start in _PROMPTS]
    cells += [Cell(prompts=1, prompt_tokens=tokens, start=start) for tokens, start in _LATER_CHUNKS]
    cells += [Cell(prompts=count, prompt_tokens=tokens) for count, tokens in _TOGETHER]
    cells += [Cell(decodes, 320, 1, tokens, start) for decodes, tokens, start in _BESIDE_FEW + _BESIDE_MANY]
    longest = min(max_model_len, POOL_TOKENS)
    return tuple(c for c in cells if max(c.context, c.start + c.prompt_tokens * _VARIES_BY) <= longest)


def time_steps(
    executor: Executor,
    cells: Sequence[Cell],
    *,
    block_size: int,
    budget_s: float,
    seed: int = 0,
    on_round: OnRound | None = None,
) -> list[Timed]:
    """Rounds of all `cells`, each in another order, until `budget_s` is over.

    It may be over within a round: since the order is random, what was timed until then is a fair sample.
    Steps during which others used the machine are left out, unless too few would be left.
    The executor's pool must hold `POOL_TOKENS` tokens beside the null block.
    """
    began = time.monotonic()
    bench = _Bench(executor, block_size, np.random.default_rng(seed))
    bench.fill()
    for decodes in sorted({cell.decodes for cell in cells if cell.decodes}):
        bench.time(Cell(decodes, block_size))  # the first batch of a size takes longer
    timed: list[Timed] = []
    marks = [_mark()]
    rounds = 0
    while True:
        for cell in bench.round(cells):
            if len(timed) >= FEWEST_STEPS and time.monotonic() - began > budget_s:
                quiet = [each for each, is_quiet in zip(timed, undisturbed(marks), strict=True) if is_quiet]
                return quiet if len(quiet) >= FEWEST_STEPS else timed
            timed.append(bench.time(cell))
            marks.append(_mark())
        rounds += 1
        if on_round is not None:
            on_round(rounds, len(timed), time.monotonic() - began)


def _mark() -> tuple[float, float]:
    """Now, and the CPU seconds of others until now; 0 where that is not told."""
    machine_s = machine_cpu_s()
    return time.monotonic(), 0.0 if machine_s is None else machine_s - time.process_time()


class _Bench:
    """An executor, and a pool of blocks all of whose tokens have been computed."""

    def __init__(self, executor: Executor, block_size: int, chance: np.random.Generator) -> None:
        self._executor = executor
        self._block_size = block_size
        self._blocks = POOL_TOKENS // block_size
        self._chance = chance
        self._next_block = 0
        self._works = 0
        self._tokens_before = 0  # of the last step

    def fill(self) -> None:
        work = self._work(POOL_TOKENS)
        for start in range(0, POOL_TOKENS, FILL_TOKENS):
            # Each chunk as if it were the first: what is in the pool does not matter, only that it is there.
            part = self._work(FILL_TOKENS)
            part.block_ids = work.block_ids[start // self._block_size :]
            self._executor.run(Plan(chunks=[Chunk(part, 0, FILL_TOKENS, samples=True)]))

    def round(self, cells: Sequence[Cell]) -> list[Cell]:
        """All cells once, decodes in a few pairs, in random order."""
        order = [[cell] for cell in cells if cell.prompts]
        order += [[cell, cell] for cell in cells if not cell.prompts] * _REPEATS
        return [cell for place in self._chance.permutation(len(order)) for cell in order[place]]

    def time(self, cell: Cell) -> Timed:
        plan = self._plan(cell)
        began_ns = time.monotonic_ns()
        self._executor.run(plan)
        took_ns = time.monotonic_ns() - began_ns
        shape = shape_of(plan)
        shape.resized = shape.tokens != self._tokens_before
        self._tokens_before = shape.tokens
        return Timed(cell, shape, took_ns)

    def _plan(self, cell: Cell) -> Plan:
        chunks = [
            Chunk(self._work(cell.context), cell.context - 1, 1, samples=True) for _ in range(cell.decodes)
        ]
        for _ in range(cell.prompts):
            tokens = int(cell.prompt_tokens * _VARIES_BY ** self._chance.uniform(-1, 1))
            chunks.append(Chunk(self._work(cell.start + tokens), cell.start, tokens, samples=True))
        return Plan(chunks=chunks, num_scheduled_tokens=sum(chunk.tokens for chunk in chunks))

    def _work(self, tokens: int) -> Work:
        """A request of so many tokens, in the next blocks of the pool."""
        text = tuple(self._chance.integers(*_TOKEN_IDS, tokens).tolist())
        work = Work(Request("calibration", text, _GREEDY, 0, 0), self._works, tokens + 1)
        self._works += 1
        count = -(-tokens // self._block_size)
        work.block_ids = [1 + (self._next_block + place) % self._blocks for place in range(count)]
        self._next_block = (self._next_block + count) % self._blocks
        return work
