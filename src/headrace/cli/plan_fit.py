"""`headrace plan --fit`: cards that hold a model, ranked by what their twins promise within the objectives.

    Plan of each card + requests + objectives --search--> the highest rate that meets
                                              --replicas--> how many of them serve the workload as it is

The engine that serves is simulated on first principles (`capacity/roofline`), so this compares cards more
surely than it predicts one.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import cycle, islice
from math import ceil

from headrace.capacity.kv import blocks_for_tokens
from headrace.capacity.plan import Plan
from headrace.capacity.roofline import Roofline
from headrace.cli.pool import OnDone, Unjudged, judge_in_processes
from headrace.core.cost import StepShape
from headrace.core.errors import BadInput
from headrace.core.measurement import ALL, Measurement
from headrace.core.objective import Metric, Objectives
from headrace.core.settings import Settings
from headrace.gateway.router import LeastRequests
from headrace.measure.capacity import Capacity, Found, Probe, find
from headrace.measure.goodput import Verdict, meets
from headrace.measure.steady import steadiness
from headrace.measure.summary import summarise
from headrace.report.plan_fit import Fit, ranked
from headrace.sim.lost import goals_of, is_lost
from headrace.sim.measurement import About, measurement_of
from headrace.sim.run import Fleet, simulate_unless
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
_TOKEN_S = 0.05
"""Between tokens, where no objective limits that: only where a search begins."""
_OF_THE_LIKELY = 0.6
_HOPELESS = 64
"""A card that misses at such a part of its likely rate misses with requests one by one."""
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
        self._met: dict[float, Measurement] = {}
        """The last run at each rate that met."""

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

        @cache
        def judge(rate: float, number: int, longer: float) -> Probe:
            run = self._run(objectives, rate, number, longer)
            probe = _judged(rate, run, objectives)
            if run is not None and probe.verdict is Verdict.MET:
                self._met[rate] = run
            return probe

        likely = self._likely_rate(objectives)
        rates = (likely, likely / _HOPELESS)
        if not any(judge(rate, 0, 1.0).verdict is Verdict.MET for rate in rates):
            return Capacity(Found.NEVER_MET, None, rates[-1], ())
        return find(judge, likely)

    def _likely_rate(self, objectives: Objectives) -> float:
        """Where to begin: what the card computes if every step decodes for as many as its goals and its KV
        cache allow, prompts beside them; by the cost model alone, without a queue.
        """
        count = len(self._requests)
        prompt = ceil(sum(r.prompt_tokens for r in self._requests) / count)
        output = ceil(sum(r.output_tokens for r in self._requests) / count)
        plan, context = self._plan, prompt + output // 2
        held = int(plan.num_blocks / plan.layout.blocks_per_request(context, plan.sizing))
        itl_s = [each.limit_s for each in objectives if each.metric is Metric.ITL]
        most_s = min(itl_s, default=_TOKEN_S)
        seqs = max(1, min(held, plan.deployment.max_num_seqs))
        while seqs > 1 and self._decode_s(seqs, context) > most_s / 2:
            seqs = seqs // 2
        pairs = prompt * (prompt + 1) // 2
        alone = StepShape(
            prefill_seqs=1, prefill_tokens=prompt, prefill_attention_pairs=pairs, sampled_seqs=1
        )
        per_request_s = output * self._decode_s(seqs, context) / seqs + self._cost.step_ns(alone) / 1e9
        return _OF_THE_LIKELY / per_request_s

    def _decode_s(self, seqs: int, context: int) -> float:
        return self._cost.step_ns(StepShape(seqs, seqs * context, sampled_seqs=seqs)) / 1e9

    def _run(
        self, objectives: Objectives, rate: float, number: int = 0, longer: float = 1.0, replicas: int = 1
    ) -> Measurement | None:
        """None where it was left because the objectives could no longer be met."""
        count = min(max(_LEAST_REQUESTS, ceil(rate * _LEAST_S * longer)), _MOST_REQUESTS)
        sent = scaled(self._cut(count, number), rate / self._rate)
        fleet, goals = Fleet(replicas, LeastRequests), goals_of(sent, objectives)
        simulated = simulate_unless(
            lambda seen: is_lost(goals, seen), sent, self._settings, self._cost, fleet=fleet
        )
        return None if simulated is None else measurement_of(simulated, _ABOUT)

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
            found = _judged(self._rate, self._run(objectives, self._rate, replicas=count), objectives)
            if found.verdict is Verdict.MET:
                return count
        return None

    def fit(self, capacity: Capacity, replicas: int | None) -> Fit:
        """With the latencies of the last run at the rate that was found."""
        if capacity.met is None:
            return Fit(self._plan, None, capacity.found is Found.NEVER_MISSED, None, None, replicas)
        found = summarise(self._met[capacity.met])[ALL]
        ttft_s = None if found.ttft_s is None else found.ttft_s.p95
        itl_s = None if found.itl_s is None else found.itl_s.p95
        return Fit(self._plan, capacity.met, capacity.found is Found.NEVER_MISSED, ttft_s, itl_s, replicas)


def _judged(rate: float, run: Measurement | None, objectives: Objectives) -> Probe:
    """By the percentiles of the run as they are: a twin can be asked again, and cards are compared by many.

    Intervals would end the search wherever they hold a limit, which for gaps is half of the way.
    """
    if run is None:
        return Probe(rate, Verdict.MISSED, None, "more was late than its percentiles leave room for")
    steady = steadiness(run)
    verdict = Verdict.MET if steady.is_steady is not False and meets(run, objectives) else Verdict.MISSED
    return Probe(rate, verdict, steady.is_steady, steady.why)
