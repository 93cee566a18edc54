"""`headrace plan --fit`: cards that hold a model, ranked by what their twins promise within the objectives.

    Plan of each card + requests + objectives --search--> the highest rate that meets
                                              --replicas--> how many of them serve the workload as it is

The engine that serves is simulated on first principles (`capacity/roofline`), so this compares cards more
surely than it predicts one.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from math import ceil

from headrace.capacity.kv import blocks_for_tokens
from headrace.capacity.plan import Plan
from headrace.capacity.roofline import Roofline
from headrace.cli.capacity import probe_of
from headrace.cli.pool import OnDone, Unjudged, judge_in_processes
from headrace.core.errors import BadInput
from headrace.core.measurement import ALL, Measurement
from headrace.core.objective import Objectives
from headrace.core.settings import Settings
from headrace.gateway.router import LeastRequests
from headrace.measure.capacity import Capacity, Found, Probe, find
from headrace.measure.goodput import Verdict
from headrace.measure.summary import summarise
from headrace.report.plan_fit import Fit, ranked
from headrace.sim.measurement import About, measurement_of
from headrace.sim.run import Fleet, simulate
from headrace.workload.generate import generate
from headrace.workload.recipe import recipe_of
from headrace.workload.reshape import scaled
from headrace.workload.trace import TraceRequest

USUAL_SLO = "p95 ttft < 500ms, p95 itl < 60ms"
USUAL_TRAFFIC = "chats of 400 prompt tokens (95th percentile 2,000) and 200 of answer, Poisson"
_RECIPE = {
    "workload": 1,
    "seed": 7,
    "duration": "4m",
    "classes": {"chat": {"rate": 2, "prompt": {"median": 400, "p95": 2000}, "output": {"mean": 200}}},
}
_LEAST_REQUESTS, _MOST_REQUESTS = 200, 400
_LEAST_S = 15.0
"""Of a run: as long as a queue needs to show that it grows, within these numbers of requests."""
_MOST_REPLICAS = 64
_AT_ONCE, _TOKEN_S = 128, 0.03
"""Requests, and seconds a token, of a server that is well used: only where a search begins."""
_ABOUT = About("twin", "", {}, "", {})


def usual_requests() -> tuple[TraceRequest, ...]:
    """What is served where no workload is given."""
    return tuple(generate(recipe_of(_RECIPE, "the usual traffic")))


def rank(
    plans: Sequence[Plan],
    requests: Sequence[TraceRequest],
    objectives: Objectives,
    *,
    counts_replicas: bool,
    on_done: OnDone,
) -> list[Fit]:
    """The best first, found in processes. Raises `BadInput` where nothing can be simulated."""
    judge = FitJudge(tuple(requests), objectives, counts_replicas)
    results = judge_in_processes(judge, plans, os.cpu_count() or 1, on_done)
    found = [each for each in results if isinstance(each, Fit)]
    if not found:
        causes = [each.cause for each in results if isinstance(each, Unjudged)]
        raise BadInput(causes[0] if causes else "no card holds it", "another --workload, or more --gpu")
    return ranked(found)


@dataclass(frozen=True, slots=True)
class FitJudge:
    """What one card's twin promises. Picklable, with the workload in it."""

    requests: tuple[TraceRequest, ...]
    objectives: Objectives
    counts_replicas: bool

    def __call__(self, plan: Plan) -> Fit:
        twin = _Twin(plan, self.requests)
        capacity = twin.search(self.objectives)
        replicas = None
        if self.counts_replicas and capacity.met is not None:
            replicas = twin.replicas(self.objectives, capacity.met)
        return twin.fit(capacity, replicas)


class _Twin:
    """One card's replica, and requests to send it."""

    def __init__(self, plan: Plan, requests: Sequence[TraceRequest]) -> None:
        self._plan = plan
        longest = plan.asked.max_model_len
        self._requests = [r for r in requests if r.prompt_tokens + r.output_tokens <= longest]
        span_s = requests[-1].due_at - requests[0].due_at
        if len(self._requests) < 2 or span_s <= 0:
            raise BadInput(
                "the workload has no rate: it needs two requests or more at different instants that fit into "
                f"max_model_len {longest:,}",
                "another --workload, or none",
            )
        self._rate = len(requests) / span_s
        self._cost = Roofline(plan.deployment)
        self._settings = self._of_vllm()

    def _of_vllm(self) -> Settings:
        """vLLM's, with as many plain blocks as hold what the plan's groups hold of this traffic."""
        plan, block_size = self._plan, self._plan.asked.block_size
        tokens = sum(r.prompt_tokens + r.output_tokens for r in self._requests) // len(self._requests)
        at_once = plan.num_blocks / plan.layout.blocks_per_request(tokens, plan.sizing)
        blocks = max(2, int(at_once * blocks_for_tokens(tokens, block_size)))
        longest = min(plan.asked.max_model_len, (blocks - 1) * block_size)
        return Settings(
            num_gpu_blocks=blocks,
            block_size=block_size,
            max_model_len=longest,
            max_num_batched_tokens=plan.deployment.max_num_batched_tokens,
            max_num_seqs=plan.deployment.max_num_seqs,
            enable_prefix_caching=plan.deployment.enable_prefix_caching,
            async_scheduling=plan.deployment.async_scheduling,
        )

    def search(self, objectives: Objectives) -> Capacity:
        """The highest rate of one replica."""

        def judge(rate: float, number: int, longer: float) -> Probe:
            return probe_of(rate, self._run(rate, number, longer), objectives)

        return find(judge, self._usual_rate())

    def _usual_rate(self) -> float:
        """Where to begin: with the KV cache full of requests whose tokens take a while each."""
        output_tokens = sum(r.output_tokens for r in self._requests) / len(self._requests)
        tokens = sum(r.prompt_tokens + r.output_tokens for r in self._requests) // len(self._requests)
        plan = self._plan
        held = plan.num_blocks / plan.layout.blocks_per_request(tokens, plan.sizing)
        return min(held, plan.deployment.max_num_seqs, _AT_ONCE) / (output_tokens * _TOKEN_S)

    def _run(self, rate: float, number: int = 0, longer: float = 1.0, replicas: int = 1) -> Measurement:
        count = min(max(_LEAST_REQUESTS, ceil(rate * _LEAST_S * longer)), _MOST_REQUESTS)
        sent = scaled(self._cut(count, number), rate / self._rate)
        fleet = Fleet(replicas, LeastRequests)
        return measurement_of(simulate(sent, self._settings, self._cost, fleet=fleet), _ABOUT)

    def _cut(self, count: int, number: int) -> tuple[TraceRequest, ...]:
        """So many in a row, from another place for each number; a short workload over and over."""
        known = self._requests
        start = number * count % len(known)
        chosen = islice(cycle(known), start, start + count)
        begin_s, end_s, turn_s = known[0].due_at, known[-1].due_at, 1 / self._rate
        period_s = end_s - begin_s + turn_s
        rounds = ((start + index) // len(known) for index in range(count))
        due = [replace(r, due_at=r.due_at + period_s * turn) for r, turn in zip(chosen, rounds, strict=True)]
        return tuple(replace(r, due_at=r.due_at - due[0].due_at) for r in due)

    def replicas(self, objectives: Objectives, met: float) -> int | None:
        """The fewest that meet at the workload's own rate; None where too many would be needed."""
        fewest = max(1, ceil(self._rate / met))
        for count in range(fewest, min(2 * fewest + 2, _MOST_REPLICAS + 1)):
            found = probe_of(self._rate, self._run(self._rate, replicas=count), objectives)
            if found.verdict is Verdict.MET:
                return count
        return None

    def fit(self, capacity: Capacity, replicas: int | None) -> Fit:
        """With the latencies at the rate that was found."""
        if capacity.met is None:
            return Fit(self._plan, None, capacity.found is Found.NEVER_MISSED, None, None, replicas)
        found = summarise(self._run(capacity.met))[ALL]
        ttft_s = None if found.ttft_s is None else found.ttft_s.p95
        itl_s = None if found.itl_s is None else found.itl_s.p95
        return Fit(self._plan, capacity.met, capacity.found is Found.NEVER_MISSED, ttft_s, itl_s, replicas)
