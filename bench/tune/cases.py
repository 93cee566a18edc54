"""Workloads and machines on which tuning is judged, with the objectives that a person would set there.

Public traces keep their arrivals and lengths; each begins at a load that the machine carries with vLLM's
defaults. Prompts are called long or short by their length, so that each trace has two classes. The
limits are round numbers, chosen before any search was run. A workload must last many times the longest limit
at the load that is its capacity, or everything of it is done in time whatever the load: a trace that is
too short is played several times over, its prefixes new each time.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.cli.costs import LoadedCost, load_cost
from headrace.core.goal import Aim, Goal
from headrace.core.objective import parse_objectives
from headrace.core.ports import Overrides
from headrace.tune.space import Lever, Site, Space, demand_of, space_of
from headrace.workload.mixed import MixedWorkload
from headrace.workload.readers import read_trace
from headrace.workload.reshape import scaled, spread
from headrace.workload.slices import Slice
from headrace.workload.trace import TraceRequest

Requests = tuple[TraceRequest, ...]


@dataclass(frozen=True, slots=True)
class Traffic:
    """One workload."""

    read: Callable[[], Requests]
    long_over_tokens: int
    longest_tokens: int
    """Requests with more are left out: the smaller machine could not hold them."""


@dataclass(frozen=True, slots=True)
class Target:
    """One machine: its cost, and vLLM's defaults on it."""

    cost: str
    start: Overrides


@dataclass(frozen=True, slots=True)
class Asked:
    """What is wanted of one workload on one machine."""

    load: float
    """Times the workload's own rate, that the defaults carry."""
    slo: str
    aim: Aim = Aim.CAPACITY


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the benchmark."""

    name: str
    requests: Requests
    cost: LoadedCost
    space: Space
    goal: Goal


def _trace(path: str, first: int, *, is_ticking: bool = False) -> Callable[[], Requests]:
    def read() -> Requests:
        shared = os.environ.get("HEADRACE_SHARED")
        if shared is None:
            sys.exit(f"set HEADRACE_SHARED to the folder that holds traces/{path}")
        requests = read_trace(Path(shared) / "traces" / path, part=Slice(first)).requests
        return spread(requests) if is_ticking else tuple(requests)

    return read


def _documents() -> Requests:
    """Short chats among long documents, as `headrace tune` sends them."""
    mixed = MixedWorkload(short_rps=4.0, long_rps=0.4, duration_s=80.0)
    return tuple(
        TraceRequest(arrival.due_at, arrival.ask.num_prompt_words, arrival.ask.max_tokens)
        for arrival in mixed.arrivals()
    )


def _batch() -> Requests:
    """Short prompts coming evenly, hundreds answered at once: throughput is all that matters."""
    return tuple(
        TraceRequest(0.25 * number, 60 + 37 * number % 240, 50 + 53 * number % 150) for number in range(800)
    )


_CONVERSATION = "azure_2023/AzureLLMInferenceTrace_conv.csv"
_CODE = "azure_2023/AzureLLMInferenceTrace_code.csv"
_MOONCAKE = "mooncake_conversation/slice_head_conversation_trace.jsonl"
_AGENTS = "agents/slice_miniswe_blk64.jsonl"

TRAFFIC: dict[str, Traffic] = {
    "conversation": Traffic(_trace(_CONVERSATION, 300), 1500, 15_000),
    "code": Traffic(_trace(_CODE, 300), 2000, 15_000),
    "mooncake": Traffic(_trace(_MOONCAKE, 250, is_ticking=True), 6000, 15_000),
    "agents": Traffic(_trace(_AGENTS, 400), 4000, 15_000),
    "documents": Traffic(_documents, 500, 15_000),
    "batch": Traffic(_batch, 10_000, 15_000),
}

_CONTEXT = 16_384
_BLOCK = 16
_STEP: Overrides = {"long_prefill_token_threshold": 0, "max_model_len": _CONTEXT}
TARGETS: dict[str, Target] = {
    "h100": Target("llama-3.1-8b/h100", {"max_num_batched_tokens": 8192, "max_num_seqs": 1024, **_STEP}),
    "l4": Target("llama-3.1-8b/l4", {"max_num_batched_tokens": 2048, "max_num_seqs": 256, **_STEP}),
}


def _both(short: str, long: str, itl: str) -> str:
    return f"short: p95 ttft < {short}, p95 itl < {itl}; long: p95 ttft < {long}, p95 itl < {itl}"


ASKED: dict[tuple[str, str], Asked] = {
    ("code", "h100"): Asked(0.6, _both("1s", "3s", "250ms")),
    ("code", "l4"): Asked(0.04, _both("3s", "10s", "400ms")),
    ("documents", "h100"): Asked(5.0, _both("150ms", "1s", "30ms")),
    ("documents", "l4"): Asked(0.5, "short: p95 ttft < 1s; long: p95 ttft < 20s", Aim.LATENCY),
    ("agents", "h100"): Asked(15.0, _both("400ms", "1s", "40ms")),
    ("agents", "l4"): Asked(0.8, _both("4s", "8s", "200ms")),
    ("conversation", "h100"): Asked(3.0, _both("300ms", "1s", "30ms")),
    ("conversation", "l4"): Asked(0.15, _both("2s", "6s", "150ms")),
    ("batch", "h100"): Asked(20.0, "p95 ttft < 500ms, p95 tpot < 30ms"),
    ("batch", "l4"): Asked(2.0, "p95 ttft < 10s, p95 tpot < 120ms"),
    ("mooncake", "h100"): Asked(1.2, _both("500ms", "3s", "50ms")),
    ("mooncake", "l4"): Asked(0.03, _both("4s", "15s", "250ms")),
}


def case_of(traffic_name: str, target_name: str) -> Case:
    traffic, target = TRAFFIC[traffic_name], TARGETS[target_name]
    asked = ASKED[traffic_name, target_name]
    requests = scaled(_classed(traffic), asked.load)
    demand = demand_of((each.prompt_tokens, each.output_tokens) for each in requests)
    cost = load_cost(target.cost)
    assert cost.machine is not None, "a cost of the catalogue knows its machine"
    kv_tokens = _BLOCK * cost.machine.num_gpu_blocks(_BLOCK)
    return Case(
        name=f"{traffic_name}, {target_name}",
        requests=requests,
        cost=cost,
        space=powers_of_two(space_of(Site(target.start, kv_tokens=kv_tokens), demand)),
        goal=Goal(asked.aim, parse_objectives(asked.slo)),
    )


def _classed(traffic: Traffic) -> Requests:
    """From the first that is kept on."""
    kept = [
        each for each in traffic.read() if each.prompt_tokens + each.output_tokens <= traffic.longest_tokens
    ]
    return tuple(
        replace(
            each,
            due_at=each.due_at - kept[0].due_at,
            request_class="long" if each.prompt_tokens > traffic.long_over_tokens else "short",
            priority=0,
        )
        for each in kept
    )


def powers_of_two(space: Space) -> Space:
    """The main levers with every second value, for a grid that can be gone through whole. All who search
    search this one.
    """

    def is_kept(lever: Lever, value: object) -> bool:
        return value == lever.start or (isinstance(value, int) and value & (value - 1) == 0)

    levers = tuple(
        replace(lever, choices=tuple(each for each in lever.choices if is_kept(lever, each.value)))
        for lever in space.levers
        if lever.name != "max_model_len"
    )
    return replace(space, levers=levers)
