"""Our scheduler as a `Side`."""

import time

from bench.scheduler.states import VOCABULARY, State
from headrace.core.request import Request, SamplingParams
from headrace.scheduler.scheduler import Scheduler


class Ours:
    def __init__(self, state: State) -> None:
        self._scheduler = Scheduler(state.settings)
        self._steps = 0

    def add(self, number: int, prompt: list[int], max_tokens: int) -> int:
        name, tokens, sampling = str(number), tuple(prompt), SamplingParams(max_tokens)
        began_ns = time.perf_counter_ns()
        self._scheduler.add(Request(name, tokens, sampling, number, number))
        return time.perf_counter_ns() - began_ns

    def step(self) -> int:
        began_ns = time.perf_counter_ns()
        plan = self._scheduler.schedule()
        decided_ns = time.perf_counter_ns() - began_ns
        self._steps += 1
        tokens = [
            (self._steps + chunk.start) % VOCABULARY if chunk.samples else None for chunk in plan.chunks
        ]
        began_ns = time.perf_counter_ns()
        self._scheduler.update(plan, tokens)
        self._scheduler.take_ended()
        return decided_ns + time.perf_counter_ns() - began_ns

    @property
    def num_running(self) -> int:
        return len(self._scheduler.running)

    @property
    def num_waiting(self) -> int:
        return len(self._scheduler.waiting)
