"""How many requests of a workload run at once where more ask than fit: as planned, and in the twin.

    requests + blocks --crowd--> typical, safe
                      --simulate, all asking at once--> running over time, while most of them still wait

Both get the same pool. The twin's steps last as on an H100 with Llama 3.1 8B. Besides the number itself it is
looked at what `safe` promises: with so many as `max_num_seqs`, waits are for slots and not for blocks, but
for one instant in 20.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.capacity.crowd import Crowd, crowd
from headrace.capacity.kv_groups import KvLayers, Sizing, kv_layout
from headrace.capacity.together import Life
from headrace.cli.costs import load_cost
from headrace.core.bill import Cause
from headrace.core.settings import Settings
from headrace.sim.run import Simulated, Watch, simulate
from headrace.workload.generate import generate
from headrace.workload.readers import read_trace
from headrace.workload.recipe import recipe_of
from headrace.workload.slices import Slice
from headrace.workload.trace import TraceRequest

BLOCK_SIZE = 16
_COST = "llama-3.1-8b/h100"
_STEP_TOKENS = 8192
_WAITING = (0.15, 0.85)
"""Of all requests, while a run is looked at: neither the beginning, when all prompts are new, nor the end."""
_RECIPE = {
    "workload": 1,
    "seed": 5,
    "duration": "40m",
    "classes": {"chat": {"rate": 2, "prompt": {"median": 400, "p95": 2000}, "output": {"mean": 200}}},
}


@dataclass(frozen=True, slots=True)
class AtOnce:
    """One workload on one pool."""

    workload: str
    requests: int
    blocks: int
    planned: Crowd
    twin: float
    """Requests that ran, on average over time."""
    usage: float
    """Share of the blocks that they held."""
    waits_for_blocks: float
    """Of all waiting with `max_num_seqs` at what is planned to be safe, the share for blocks."""

    @property
    def error(self) -> float:
        return self.planned.typical / self.twin - 1


def at_once(name: str, requests: Sequence[TraceRequest], blocks: int) -> AtOnce:
    """Requests that are longer than the pool are left out, by both."""
    most = (blocks - 1) * BLOCK_SIZE
    asked = [
        replace(each, due_at=0.0, think_s=None)
        for each in requests
        if each.prompt_tokens + each.output_tokens <= most
    ]
    planned = planned_for(asked, blocks)
    full = simulate(asked, settings_for(asked, blocks, _STEP_TOKENS), load_cost(_COST), watch=Watch(0.1))
    capped = simulate(asked, settings_for(asked, blocks, max(1, int(planned.safe))), load_cost(_COST))
    running, usage = _while_most_wait(full, len(asked))
    return AtOnce(name, len(asked), blocks, planned, running, usage, _for_blocks(capped))


def planned_for(requests: Sequence[TraceRequest], blocks: int) -> Crowd:
    lives = [
        Life(each.prompt_tokens, each.output_tokens, each.prefix_ids, each.prefix_block_tokens)
        for each in requests
    ]
    layout = kv_layout([KvLayers(32, 4096.0)], BLOCK_SIZE)
    return crowd(lives, layout, blocks, (blocks - 1) * BLOCK_SIZE, Sizing(_STEP_TOKENS))


def settings_for(requests: Sequence[TraceRequest], blocks: int, max_num_seqs: int) -> Settings:
    return Settings(
        num_gpu_blocks=blocks,
        block_size=BLOCK_SIZE,
        max_model_len=max(each.prompt_tokens + each.output_tokens for each in requests),
        max_num_batched_tokens=_STEP_TOKENS,
        max_num_seqs=max_num_seqs,
        async_scheduling=True,
    )


def _while_most_wait(run: Simulated, requests: int) -> tuple[float, float]:
    least, most = (share * requests for share in _WAITING)
    seen = [each for each in run.budgets[0] if least < each.waiting < most]
    busy = sum(each.busy for each in seen)
    return (
        sum(each.running * each.busy for each in seen) / busy,
        sum(each.kv_cache_usage * each.busy for each in seen) / busy,
    )


def _for_blocks(run: Simulated) -> float:
    waited = [life.bill.seconds() for life in run.lives if life.bill is not None]
    for_blocks, for_slots = (sum(each[cause] for each in waited) for cause in (Cause.KV, Cause.SLOTS))
    return for_blocks / (for_blocks + for_slots)


def usual_requests(count: int) -> list[TraceRequest]:
    """Chats of a few hundred tokens, from a recipe."""
    return list(generate(recipe_of(_RECIPE, "chats")))[:count]


def comparisons(shared: Path | None) -> Iterator[AtOnce]:
    """Of the recipe's requests, and of the traces under `shared`; some 60 s of processor time."""
    for blocks in (2000, 11_204):
        yield at_once("chats of a recipe", usual_requests(4000), blocks)
    if shared is None:
        return
    azure, mooncake = shared / "traces" / "azure_2023", shared / "traces" / "mooncake_conversation"
    for name, path, first, pools in (
        ("Azure conversations", azure / "AzureLLMInferenceTrace_conv.csv", 4000, (2000, 11_204, 28_000)),
        ("Azure code", azure / "AzureLLMInferenceTrace_code.csv", 6000, (3000, 11_204)),
        ("Mooncake", mooncake / "slice_head_conversation_trace.jsonl", None, (11_204, 28_000)),
        ("Mooncake, families", mooncake / "slice_families_conversation_trace.jsonl", None, (11_204, 28_000)),
    ):
        requests = read_trace(path, part=Slice(first)).requests
        for blocks in pools:
            yield at_once(name, requests, blocks)
