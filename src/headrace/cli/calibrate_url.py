"""A cost model of a running server: its client's view, and what it tells of its settings.

url --ask--> ServerFacts, --probe--> BlackBox, together--> FittedCost with a Machine where enough is known
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from headrace import __version__
from headrace.cli.measuring import Target, run_timetable
from headrace.core.cost import Machine
from headrace.executor.cost import FittedCost
from headrace.measure.black_box import BlackBox, calibrate_server
from headrace.net.server_facts import ServerFacts, server_facts

POOR_FIT = 0.10

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class CalibratedUrl:
    """The cost model, and what it is made of."""

    cost: FittedCost
    seen: BlackBox
    facts: ServerFacts


def calibrate_url(url: str, model: str, seed: int, say: Say, budget_s: float) -> CalibratedUrl:
    """Any OpenAI-compatible server, as its client sees it, in about `budget_s` and what a long prompt takes.

    `seed` must be new to it: known prompts are answered from the prefix cache, and few servers say so.
    """
    target = Target(url, model)
    facts = asyncio.run(server_facts(url))
    provenance = {
        "by": "headrace calibrate URL",
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "server": url,
        "model": model,
        "headrace": __version__,
        "seed": str(seed),
    }
    seen = calibrate_server(
        lambda arrivals: asyncio.run(run_timetable(target, arrivals)),
        provenance,
        seed,
        say,
        budget_s=budget_s,
        max_model_len=facts.max_model_len,
    )
    machine = machine_of(facts, seen, url, model)
    return CalibratedUrl(replace(seen.cost, machine=machine), seen, facts)


def machine_of(facts: ServerFacts, seen: BlackBox, url: str, model: str) -> Machine | None:
    """None where its KV cache is not known: then a simulation asks for it."""
    blocks, block_size, kv_bytes = facts.num_gpu_blocks, facts.block_size, facts.kv_cache_memory_bytes
    if blocks is None or block_size is None or kv_bytes is None or facts.max_model_len is None:
        return None
    by_token = max(1, kv_bytes // (blocks * block_size))
    # Not `kv_bytes`: just so many blocks must come out again, and some may have been left over.
    usual = Machine(
        url,
        model,
        facts.max_model_len,
        blocks * block_size * by_token,
        float(by_token),
        async_scheduling=False,
    )
    return replace(
        usual,
        async_scheduling=facts.async_scheduling is True,
        block_size=block_size,
        max_num_batched_tokens=facts.max_num_batched_tokens
        or seen.chunk_tokens
        or max(usual.max_num_batched_tokens, seen.largest_step_tokens),
        max_num_seqs=facts.max_num_seqs or usual.max_num_seqs,
    )


def in_words(calibrated: CalibratedUrl) -> list[str]:
    """How far it may be trusted, what was found, and what must be said by hand."""
    cost, seen = calibrated.cost, calibrated.seen
    residual, front_end = cost.residual, cost.front_end
    lines = [
        f"{residual.observations} steps were seen.",
        f"Half of them are told within {residual.median:.1%}, 19 of 20 within {residual.p95:.1%}.",
    ]
    if front_end is not None:
        lines += [
            f"Outside steps a lone request takes {(front_end.fixed_ns + front_end.answer_ns) / 1e6:.1f} ms,",
            f"  {front_end.ns_per_prompt_token / 1e3:.1f} us more by prompt token.",
        ]
    lines.append(_budget_in_words(calibrated))
    lines += [f"Not seen: {each}." for each in seen.left_out]
    lines += _by_hand(calibrated)
    if residual.median > POOR_FIT:
        lines.append("A poor fit: others used this server, or its machine. Calibrate again when it is quiet.")
    return lines


def _budget_in_words(calibrated: CalibratedUrl) -> str:
    told, seen = calibrated.facts.max_num_batched_tokens, calibrated.seen
    found = (
        f"prompts were cut as by {seen.chunk_tokens:,}"
        if seen.chunk_tokens
        else f"one of {seen.largest_step_tokens:,} was not cut"
    )
    return f"Tokens of a step: {found}" + (f"; the server says {told:,}." if told else ".")


def _by_hand(calibrated: CalibratedUrl) -> list[str]:
    """The settings a simulation needs and the file does not have, or has by assumption."""
    facts, machine = calibrated.facts, calibrated.cost.machine
    if machine is None:
        known = [
            ("--num-gpu-blocks-override", facts.num_gpu_blocks or "N"),
            ("--block-size", facts.block_size or "N"),
            ("--max-model-len", facts.max_model_len or "N"),
            ("--max-num-batched-tokens", facts.max_num_batched_tokens or calibrated.seen.chunk_tokens or "N"),
            ("--max-num-seqs", facts.max_num_seqs or "N"),
        ]
        words = [f"{flag} {value}" for flag, value in known]
        return ["Its KV cache is not known. Simulate with", *(f"  {each}" for each in words)]
    lines = [
        f"Its KV cache: {facts.num_gpu_blocks:,} blocks of {facts.block_size} tokens, as it says itself."
    ]
    if facts.max_num_seqs is None:
        lines.append(
            f"It does not say how many may run at once: --max-num-seqs, {machine.max_num_seqs} taken."
        )
    if facts.async_scheduling is None:
        lines.append("It does not say whether it plans ahead: --async-scheduling, taken as off.")
    return lines
