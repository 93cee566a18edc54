"""The stored run: vLLM 0.19 on a GPU, 300 requests, and what the twin makes of the same workload.

    reference_run/workload.jsonl --simulate--> Lives     reference_run/requests.jsonl --observed--> Lives

Arrivals and lengths are the workload, of all requests. Of what happened to them, calibration is
given the first 100 and nothing else.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.capacity.catalogue import model_named
from headrace.capacity.deployment import Deployment
from headrace.capacity.gpus import GPUS, GUESSED_BANDWIDTH_EFFICIENCY, GUESSED_COMPUTE_EFFICIENCY
from headrace.capacity.roofline import Multipliers, Roofline
from headrace.core.cost import CostModel
from headrace.core.settings import Settings
from headrace.sim.run import Simulated, simulate
from headrace.workload.readers import read_trace
from headrace.workload.trace import TraceRequest

Floats = npt.NDArray[np.float64]

HERE = Path(__file__).parent / "reference_run"
CALIBRATED_ON = 100
AUTHORS_ERROR_PCT = 8.6
"""By how much LLMServingSim's own simulator is off on this run's median TTFT (all 300 requests)."""


class Lives(NamedTuple):
    """One entry for each request, in order of arrival; instants in seconds from the first arrival."""

    due_at: Floats
    first_token_at: Floats
    last_token_at: Floats
    output_tokens: Floats

    def part(self, which: slice) -> "Lives":
        return Lives(*(column[which] for column in self))

    @property
    def ttft_s(self) -> Floats:
        return self.first_token_at - self.due_at

    @property
    def decode_s(self) -> Floats:
        return self.last_token_at - self.first_token_at

    @property
    def tpot_s(self) -> Floats:
        return self.decode_s / (self.output_tokens - 1)


@dataclass(frozen=True, slots=True)
class Reference:
    """The workload, the settings of the server, and what it did."""

    trace: tuple[TraceRequest, ...]
    deployment: Deployment
    settings: Settings
    observed: Lives


def load() -> Reference:
    """What `meta.json` says of the server, and vLLM 0.19's defaults for the rest.

    Those are 0.9 of the memory, blocks of 16 and async scheduling. Where 0.19's rules differ from the
    twin's 0.32 (the order of freed blocks, perhaps the full-prompt gate), this run cannot tell: its KV
    cache is never a third full.
    """
    arguments = json.loads((HERE / "meta.json").read_text(encoding="utf-8"))["engine_kwargs"]
    deployment = Deployment(
        model_named("llama-3.1-8b"),
        GPUS["rtx-pro-6000-server"],
        gpu_memory_utilization=0.9,
        max_num_batched_tokens=arguments["max_num_batched_tokens"],
        max_num_seqs=arguments["max_num_seqs"],
    )
    machine = Roofline(deployment).machine
    settings = Settings(
        max_model_len=machine.max_model_len,
        num_gpu_blocks=machine.num_gpu_blocks(16),
        block_size=16,
        max_num_batched_tokens=deployment.max_num_batched_tokens,
        max_num_seqs=deployment.max_num_seqs,
        async_scheduling=True,
    )
    trace = read_trace(HERE / "workload.jsonl").requests
    return Reference(trace, deployment, settings, _observed())


def _observed() -> Lives:
    """Arrivals are told on the wall clock, tokens on the monotonic one.

    The smallest time from arrival to the engine's queue, of those in the calibration, is taken as none: that
    is a millisecond too little.
    """
    rows = [json.loads(line) for line in (HERE / "requests.jsonl").read_text(encoding="utf-8").splitlines()]
    due, queued, first, last, tokens = (
        np.array([row[name] for row in rows], dtype=np.float64)
        for name in ("arrival_time", "queued_ts", "first_token_ts", "last_token_ts", "output_toks")
    )
    between_clocks = float(np.min((queued - due)[:CALIBRATED_ON]))
    begin = due[0]
    return Lives(due - begin, first - between_clocks - begin, last - between_clocks - begin, tokens)


def predict(reference: Reference, cost: CostModel) -> Lives:
    simulated = simulate(reference.trace, reference.settings, cost)
    return _lives(reference.trace, simulated)


def _lives(trace: Sequence[TraceRequest], simulated: Simulated) -> Lives:
    ends_s = np.asarray(simulated.step_ends_ns[0], dtype=np.float64) / 1e9
    firsts = [life.token_steps[0][0] for life in simulated.lives]
    lasts = [life.token_steps[-1][0] + life.token_steps[-1][1] - 1 for life in simulated.lives]
    return Lives(
        np.array([traced.due_at for traced in trace]),
        ends_s[firsts],
        ends_s[lasts],
        np.array([traced.output_tokens for traced in trace], dtype=np.float64),
    )


def roofline(reference: Reference, multipliers: Multipliers) -> Roofline:
    """The card as if nobody had measured it: its catalogue entry knows this run."""
    gpu = replace(
        reference.deployment.gpu,
        compute_efficiency=GUESSED_COMPUTE_EFFICIENCY,
        bandwidth_efficiency=GUESSED_BANDWIDTH_EFFICIENCY,
    )
    return Roofline(replace(reference.deployment, gpu=gpu), multipliers)
