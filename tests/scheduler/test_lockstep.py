"""vLLM's own scheduler beside ours, and the harness that compares them: it must see what differs."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from bench.parity.__main__ import lockstep, trace_of
from bench.parity.decisions import OurScheduler
from bench.parity.peer import VllmScheduler, whole
from bench.parity.shrink import keep_smallest
from headrace.core.plan import Work
from headrace.core.settings import Settings
from headrace.core.versions import VLLM_VERSION
from headrace.scheduler.blocks import BlockPool
from headrace.scheduler.scheduler import Scheduler
from tests.traces import make_trace, read_trace

VLLM = Path(os.environ.get("HEADRACE_VLLM", ".vllm"))
needs_vllm = pytest.mark.skipif(
    not (VLLM / "model" / "config.json").exists(),
    reason=f"no vLLM in {VLLM}: `make vllm` builds it; HEADRACE_VLLM names another folder",
)


@needs_vllm
@pytest.mark.slow
@pytest.mark.timeout(900)  # vLLM alone takes up to a minute to import
def test_vllm_itself_decides_the_same_in_every_step() -> None:
    with VllmScheduler(VLLM) as peer:
        traces = (trace_of(seed, VLLM_VERSION) for seed in (*range(20), *range(400, 440)))
        steps = 0
        for compared in lockstep(traces, [peer]):
            assert compared.ours == compared.theirs, (
                f"`python -m bench.parity --traces 1 --seed {compared.trace.seed}` shrinks it"
            )
            steps += len(compared.theirs)
    assert steps > 10_000, "so few steps compare little"


class GivesWayInTheWrongOrder(Scheduler):
    def _victim(self) -> Work:
        return self.running[0]


class CutsLoneRequests(Scheduler):
    def __init__(self, settings: Settings) -> None:
        super().__init__(replace(settings, vllm_version="0.30"))


class UsesFreedBlocksLast(Scheduler):
    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.ledger.pool = BlockPool(settings.num_gpu_blocks, worthless_first=False)


class AdmitsHalfAPrompt(Scheduler):
    def __init__(self, settings: Settings) -> None:
        super().__init__(replace(settings, scheduler_reserve_full_isl=False))


BROKEN = [GivesWayInTheWrongOrder, CutsLoneRequests, UsesFreedBlocksLast, AdmitsHalfAPrompt]


@pytest.mark.slow
@pytest.mark.parametrize("broken", BROKEN)
def test_a_scheduler_with_one_rule_broken_is_found_and_its_trace_made_small(
    broken: type[Scheduler], tmp_path: Path
) -> None:
    sound, ours = OurScheduler(), OurScheduler(broken)
    seed = next(seed for seed in range(100) if ours.play(make_trace(seed)) != sound.play(make_trace(seed)))
    stored = read_trace(keep_smallest(ours, sound, make_trace(seed), tmp_path))
    assert len(stored.trace.requests) <= 4
    assert whole(sound.play(stored.trace)) == stored.vllm, "the kept trace passes once the rule is mended"
    assert whole(ours.play(stored.trace)) != stored.vllm, "and fails as long as it is broken"
