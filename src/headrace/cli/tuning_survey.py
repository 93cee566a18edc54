"""What is looked at before the first run: the server's own word on its settings, how long its steps take,
what memory is to spare, and, where no workload is given, the load that suits it.

    target --survey_of--> Survey, cost model         kept in the journal, so it is made once
    Survey + cost + requests --site_of, twin_of--> what the search is asked with
"""

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from headrace.capacity.roofline import Roofline
from headrace.cli.calibrate_url import calibrate_url
from headrace.cli.calibrate_url import in_words as url_in_words
from headrace.cli.calibrating import Plan, calibrate_embedded
from headrace.cli.costs import LoadedCost, load_cost
from headrace.cli.memory import available_bytes, total_bytes
from headrace.cli.tuning_judge import ServerJudge
from headrace.cli.tuning_targets import EmbeddedTarget, Startable, TwinTarget
from headrace.cli.tuning_twin import TwinServer
from headrace.cli.tuning_workload import (
    Requests,
    Speeds,
    Traffic,
    Wishes,
    fitted,
    timed,
    traffic_of_mix,
)
from headrace.core.measurement import Measurement
from headrace.core.ports import Overrides
from headrace.executor.cost import FittedCost
from headrace.measure.server_metrics import Quantity, told
from headrace.net.server_facts import ServerFacts, server_facts
from headrace.tune.space import Site
from headrace.tune.twin import Point
from headrace.workload.mixed import MixedWorkload

EMBEDDED_CALIBRATE_S, URL_CALIBRATE_S = 45.0, 140.0
CALIBRATE_SHARE = 0.25
"""Of the whole budget, at most: the rest is for runs."""
LEAST_CALIBRATE_S = 30.0
RESERVE_SHARE, LEAST_RESERVE_BYTES = 0.1, 1 << 30
"""Memory that is left alone, whatever would be faster: of all there is, and at least."""
DRAIN_S = 4.0
"""What the last answers of a run take, roughly."""
KV_BUSY = 0.5
"""Of the KV cache in use, from which on its size is a lever worth trying."""
PLENTY_OF_BLOCKS = 1 << 20
"""Where a server does not tell how large its KV cache is: so many that it never binds."""
MIX_IN_TWIN_S, MIX_IN_TWIN_REQUESTS = 60.0, 3000.0
"""Of the built-in mix at least, and about so many, where only simulating them takes time."""
MOST_MIX_IN_TWIN_S = 300.0
START: Overrides = {}

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Survey:
    """What was found."""

    facts: ServerFacts
    start: Overrides
    """Every lever's value."""
    model: str
    """As the server calls it."""
    mix: MixedWorkload | None
    """The load fitted to it; None where a file says it."""
    headroom_bytes: int
    says: tuple[str, ...]
    """How far the cost model may be trusted, in words."""
    around_s: float
    """What a run takes beside sending requests: starting, warming up, the last answers."""
    took_s: float


@dataclass(frozen=True, slots=True)
class Time:
    """How long it may all take."""

    ends_at: float
    """On `time.monotonic`."""
    budget_s: float
    max_trials: int | None = None

    def calibrate_s(self, usual_s: float) -> float:
        return max(LEAST_CALIBRATE_S, min(usual_s, CALIBRATE_SHARE * self.budget_s))


def survey_of(judge: ServerJudge, time_: Time, wishes: Wishes | None, say: Say) -> tuple[Survey, LoadedCost]:
    """`wishes`: of the built-in mix; None where a file is the workload. Leaves the server running."""
    began = time.monotonic()
    target = judge.target
    cost, says = _cost_of_embedded(target, time_, judge.seed, say)
    say(f"starting {target.name}" if target.restarts else f"asking {target.name} for its settings")
    started = time.monotonic()
    served = judge.serve({})
    start_s = time.monotonic() - started
    facts = asyncio.run(server_facts(served.url, api_key=judge.api_key))
    if cost is None:
        calibrate_s = time_.calibrate_s(URL_CALIBRATE_S)
        say(f"it answers; calibrating its twin from outside, about {calibrate_s:.0f} s")
        found = calibrate_url(served.url, judge.model, judge.seed, say, calibrate_s)
        cost, says = found.cost, tuple(url_in_words(found))
    start = target.start(facts)
    around_s = (start_s if target.restarts else 0.0) + DRAIN_S
    survey = Survey(
        facts=facts,
        start=start,
        model=judge.model,
        mix=None,
        headroom_bytes=_headroom_bytes() if target.restarts else 0,
        says=says,
        around_s=around_s,
        took_s=0.0,
    )
    if wishes is not None:
        left_s = time_.ends_at - time.monotonic()
        mix = timed(_mix_for(survey, cost, wishes), left_s, around_s, time_.max_trials)
        survey = replace(survey, mix=mix)
    return replace(survey, took_s=time.monotonic() - began), cost


def survey_of_twin(target: TwinTarget, wishes: Wishes | None) -> tuple[Survey, LoadedCost]:
    """Nothing is started: the cost model's own machine is the server."""
    cost = load_cost(target.cost)
    facts = _facts_of(cost)
    survey = Survey(facts, target.start(facts), target.cost, None, 0, (), 0.0, 0.0)
    if wishes is not None:
        mix = _mix_for(survey, cost, wishes)
        lasts_s = min(MOST_MIX_IN_TWIN_S, MIX_IN_TWIN_REQUESTS / max(1e-9, mix.short_rps + mix.long_rps))
        survey = replace(survey, mix=replace(mix, duration_s=max(MIX_IN_TWIN_S, round(lasts_s))))
    return survey, cost


def twin_server(survey: Survey, cost: LoadedCost, requests: Requests, said: str) -> TwinServer:
    blocks = survey.facts.num_gpu_blocks
    if blocks is None and cost.machine is None:
        blocks = PLENTY_OF_BLOCKS
    return TwinServer(cost, survey.start, requests, said, blocks)


def kv_binds(measurement: Measurement, preemptions: int | None) -> bool:
    """Whether more KV cache could change anything: most of it was in use, or somebody gave way for it."""
    used = told(measurement.server, Quantity.KV_USED) if measurement.server is not None else None
    most = max((share for share in used or () if share is not None), default=0.0)
    return bool(preemptions) or most > KV_BUSY


def site_of(survey: Survey, cost: LoadedCost, policies: tuple[str, ...], *, with_kv: bool) -> Site:
    """Levers with values that may be tried on this server. Without `with_kv` its KV cache is left alone."""
    facts, machine = survey.facts, cost.machine
    tokens = facts.num_gpu_blocks * facts.block_size if facts.num_gpu_blocks and facts.block_size else None
    start = dict(survey.start)
    if not survey.headroom_bytes or not with_kv:
        start.pop("kv_cache_memory_bytes", None)
    return Site(
        start=start,
        policies=policies,
        kv_tokens=tokens,
        kv_bytes_per_token=None if machine is None else machine.kv_bytes_per_token,
        headroom_bytes=survey.headroom_bytes,
    )


def _cost_of_embedded(
    target: Startable, time_: Time, seed: int, say: Say
) -> tuple[LoadedCost | None, tuple[str, ...]]:
    """Its steps are timed in this process, before its server needs the processors."""
    if not isinstance(target, EmbeddedTarget) or not target.steps_are_timed:
        return None, ()
    plan = Plan(target.model, target.files, budget_s=time_.calibrate_s(EMBEDDED_CALIBRATE_S), seed=seed)
    cost: FittedCost = calibrate_embedded(plan, say).cost
    residual = cost.residual
    told = f"half of them are told within {residual.median:.1%}, 19 of 20 within {residual.p95:.1%}"
    return cost, (f"{residual.observations:,} steps were timed", told)


def _mix_for(survey: Survey, cost: LoadedCost, wishes: Wishes) -> MixedWorkload:
    def simulated(requests: Requests) -> tuple[float, float]:
        measurement, _ = twin_server(survey, cost, requests, "").run(Point(START))
        timelines = measurement.timelines
        return timelines[0].ttft_s, max(timeline.token_at[-1] for timeline in timelines)

    speeds = Speeds(
        first_token_s=lambda requests: simulated(requests)[0],
        all_at_once_s=lambda requests: simulated(requests)[1],
    )
    return fitted(speeds, int(survey.start.get("max_model_len", 1 << 20)), wishes)


def traffic_of(survey: Survey) -> Traffic | None:
    """None where a file is the workload."""
    return None if survey.mix is None else traffic_of_mix(survey.mix)


def _headroom_bytes() -> int:
    reserve = max(LEAST_RESERVE_BYTES, int(RESERVE_SHARE * total_bytes()))
    return max(0, available_bytes() - reserve)


def spare_cpus(busy_cores: float | None) -> int:
    """Processors that nobody used while the baseline was measured."""
    return 0 if busy_cores is None else max(0, int((os.cpu_count() or 1) - busy_cores - 0.5))


def _facts_of(cost: LoadedCost) -> ServerFacts:
    machine = cost.machine
    if machine is None:
        return ServerFacts()
    limits = cost.deployment if isinstance(cost, Roofline) else machine
    blocks = machine.num_gpu_blocks(machine.block_size)
    return ServerFacts(
        max_model_len=min(machine.max_model_len, max(1, blocks - 1) * machine.block_size),  # vLLM's `auto`
        num_gpu_blocks=blocks,
        block_size=machine.block_size,
        kv_cache_memory_bytes=machine.kv_cache_bytes,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_num_seqs=limits.max_num_seqs,
        async_scheduling=machine.async_scheduling,
    )
