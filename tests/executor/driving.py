"""An engine and an executor, driven to the end of a list of requests, without sockets or clocks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headrace.core.output import EngineStats
from headrace.core.plan import Chunk, Plan, Work
from headrace.core.ports import Executor
from headrace.core.request import Request, SamplingParams
from headrace.core.settings import Settings
from headrace.engine.engine import Engine


@dataclass
class Run:
    answers: dict[str, list[int]]
    stats: EngineStats
    plans: list[list[tuple[str, int, int]]] = field(default_factory=list[list[tuple[str, int, int]]])
    """Each step's chunks: request, start, tokens."""


def request(name: str, prompt: Sequence[int], sampling: SamplingParams) -> Request:
    return Request(name, tuple(prompt), sampling, arrived_ns=0, handed_ns=0)


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens, temperature=0.0)


def serve(
    executor: Executor,
    settings: Settings,
    requests: Sequence[Request],
    engine: Engine | None = None,
    before_step: Callable[[Engine, int], None] | None = None,
) -> Run:
    engine = Engine(settings) if engine is None else engine
    run = Run({each.request_id: [] for each in requests}, engine.stats())
    for each in requests:
        engine.submit(each, 0)
    now_ns = 1
    while True:
        if before_step:
            before_step(engine, len(run.plans))
        plan = engine.plan(now_ns)
        if plan is None:
            break
        run.plans.append([(c.work.request.request_id, c.start, c.tokens) for c in plan.chunks])
        result = executor.run(plan)
        for output in engine.finish(plan, result, now_ns + 1):
            run.answers[output.request_id] += output.token_ids
        for work in engine.take_ended():
            executor.forget(work)
        now_ns += 2
    engine.check()
    run.stats = engine.stats()
    return run


def work(name: str, prompt: Sequence[int], sampling: SamplingParams, block_ids: Sequence[int]) -> Work:
    """A work as the scheduler would hand it over, with a block table of the test's choice."""
    made = Work(request(name, prompt, sampling), 0, 1 << 20)
    made.block_ids = list(block_ids)
    return made


def chunks_of(of: Work, *lengths: int) -> list[Chunk]:
    """Consecutive chunks of a work's tokens; the one that reaches the end samples."""
    chunks: list[Chunk] = []
    start = of.num_computed_tokens
    for length in lengths:
        end = start + length
        chunks.append(Chunk(of, start, length, samples=end == of.num_tokens))
        start = end
    return chunks


def step(executor: Executor, *chunks: Chunk) -> list[int | None]:
    return executor.run(Plan(chunks=list(chunks))).token_ids


def append(to: Work, token: int) -> None:
    """What the scheduler does with a drawn token."""
    to.token_ids.append(token)
    to.num_tokens += 1


def answer(executor: Executor, of: Work, tokens: int) -> list[int]:
    """Run a work alone: its whole prompt, then decode by decode."""
    answered: list[int] = []
    computed = 0
    while len(answered) < tokens:
        chunk = Chunk(of, computed, of.num_tokens - computed, samples=True)
        computed = of.num_tokens
        (token,) = step(executor, chunk)
        assert token is not None
        append(of, token)
        answered.append(token)
    return answered
