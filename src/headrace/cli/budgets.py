"""The scheduler's budgets on a command line: vLLM's names, the same for serving and for simulating.

@budget_options(said) on a command  ->  BudgetOptions  --flags_of-->  Flags, defaults filled in
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar

import click

from headrace.cli.quantity import AUTO, LENGTH, QUANTITY
from headrace.cli.recipe import Flags
from headrace.core.errors import BadInput
from headrace.core.settings import SchedulingPolicy
from headrace.core.versions import KNOWN, VLLM_VERSION

Command = TypeVar("Command", bound=Callable[..., Any])


class BudgetOptions(TypedDict):
    """What the command line says of budgets. None: to be decided."""

    max_model_len: int | str | None
    """`auto`: the most that fits."""
    max_num_batched_tokens: int | None
    max_num_seqs: int | None
    long_prefill_token_threshold: int
    enable_chunked_prefill: bool
    enable_prefix_caching: bool
    scheduling_policy: str
    slo: tuple[str, ...]
    scheduler_reserve_full_isl: bool
    watermark: float
    kv_cache_memory_bytes: int | None
    block_size: int | None
    num_gpu_blocks_override: int | None
    vllm_version: str


@dataclass(frozen=True, slots=True)
class Limits:
    """Those two of vLLM's defaults that depend on the device."""

    batched_tokens: int
    num_seqs: int


@dataclass(frozen=True, slots=True)
class Said:
    """How a help page says the defaults that depend on the command."""

    batched_tokens: str
    num_seqs: str
    kv_cache_memory_bytes: str
    block_size: str


STEP_BUDGETS = (
    *("max_num_batched_tokens", "max_num_seqs", "long_prefill_token_threshold"),
    *("enable_chunked_prefill", "scheduling_policy", "slo", "vllm_version"),
)
"""For sections of a help page."""

_SAME_EVERYWHERE = (
    click.option(
        "--max-model-len",
        type=LENGTH,
        metavar="TOKENS",
        help="Longest prompt and answer together; auto: as much of the model's as fits.  "
        "[default: the model's]",
    ),
    click.option(
        "--long-prefill-token-threshold",
        type=QUANTITY,
        default=0,
        show_default=True,
        metavar="TOKENS",
        help="Most tokens of one prompt in a step, while others wait or run. 0: no cap.",
    ),
    click.option(
        "--enable-chunked-prefill/--no-enable-chunked-prefill",
        default=True,
        help="Whether a prompt may be computed over several steps.  [default: on]",
    ),
    click.option(
        "--enable-prefix-caching/--no-enable-prefix-caching",
        default=True,
        help="Whether prompts that begin alike share KV blocks.  [default: on]",
    ),
    click.option(
        "--scheduling-policy",
        type=click.Choice([policy.value for policy in SchedulingPolicy]),
        default=SchedulingPolicy.FCFS.value,
        show_default=True,
        help="Who comes first: by arrival; by the request's priority, smaller first; least prompt left; "
        "least slack to its goal. The last two are not vLLM's, and nobody starves (docs/policies.md).",
    ),
    click.option(
        "--slo",
        multiple=True,
        metavar="GOAL",
        help='Goal of a class, for the policy slo: "chat: ttft 500ms, itl 60ms". May be given several times; '
        "without a class it is everybody else's.  [default: ttft 500ms + 2ms/token, itl 200ms]",
    ),
    click.option(
        "--scheduler-reserve-full-isl/--no-scheduler-reserve-full-isl",
        default=True,
        help="Admit a request only when blocks for its whole prompt are free.  [default: on]",
    ),
    click.option(
        "--watermark",
        default=0.0,
        show_default=True,
        metavar="SHARE",
        help="Share of the blocks that admissions leave free while others run.",
    ),
    click.option(
        "--num-gpu-blocks-override",
        type=int,
        metavar="N",
        help="This many blocks, whatever the memory (for testing).",
    ),
    click.option(
        "--vllm-version",
        default=VLLM_VERSION,
        show_default=True,
        metavar="0.N",
        help=f"Decide as this version of vLLM does: {KNOWN[0]} to {KNOWN[-1]}.",
    ),
)


def budget_options(said: Said) -> Callable[[Command], Command]:
    """Add the options of `BudgetOptions` to a command."""
    options = (
        *_SAME_EVERYWHERE,
        click.option(
            "--max-num-batched-tokens",
            type=QUANTITY,
            metavar="TOKENS",
            help="Tokens one step may compute, prefill and decode together.  "
            f"[default: {said.batched_tokens}]",
        ),
        click.option(
            "--max-num-seqs",
            type=int,
            metavar="N",
            help=f"Requests that may run at once.  [default: {said.num_seqs}]",
        ),
        click.option(
            "--kv-cache-memory-bytes",
            type=QUANTITY,
            metavar="BYTES",
            help=f"Memory for keys and values, such as 2G.  [default: {said.kv_cache_memory_bytes}]",
        ),
        click.option(
            "--block-size",
            type=int,
            metavar="TOKENS",
            help=f"Tokens in a KV block.  [{said.block_size}]",
        ),
    )

    def add(command: Command) -> Command:
        for option in options:
            command = option(command)
        return command

    return add


def flags_of(options: BudgetOptions, model_max_len: int, defaults: Limits) -> Flags:
    """Fill in vLLM's defaults. Raises `BadInput` for budgets that contradict each other."""
    given = options["max_model_len"]
    max_model_len = given if isinstance(given, int) else model_max_len
    if max_model_len < 2:
        raise BadInput(
            f"--max-model-len is {max_model_len}; a prompt and its answer need a token each",
            f"give at least 2, at most {model_max_len}",
        )
    if max_model_len > model_max_len:
        raise BadInput(
            f"--max-model-len is {max_model_len}; the model was trained for {model_max_len} tokens",
            f"--max-model-len {model_max_len}, or leave it out",
        )
    seqs, batched = options["max_num_seqs"], options["max_num_batched_tokens"]
    if batched is None:
        most_at_once = (seqs or defaults.num_seqs) * max_model_len  # no requests at all is refused as such
        batched = min(defaults.batched_tokens, most_at_once)
        if not options["enable_chunked_prefill"]:
            batched = max(batched, max_model_len)
    flags = Flags(
        max_model_len=max_model_len,
        shrink_max_model_len=given == AUTO,
        max_num_batched_tokens=batched,
        max_num_seqs=min(defaults.num_seqs, batched) if seqs is None else seqs,
        long_prefill_token_threshold=options["long_prefill_token_threshold"],
        enable_chunked_prefill=options["enable_chunked_prefill"],
        enable_prefix_caching=options["enable_prefix_caching"],
        scheduling_policy=SchedulingPolicy(options["scheduling_policy"]),
        slo="; ".join(options["slo"]),
        scheduler_reserve_full_isl=options["scheduler_reserve_full_isl"],
        watermark=options["watermark"],
        block_size=options["block_size"],
        kv_cache_memory_bytes=options["kv_cache_memory_bytes"],
        num_gpu_blocks_override=options["num_gpu_blocks_override"],
        vllm_version=options["vllm_version"],
    )
    # Contradictions are found now, before anything is loaded; only the number of blocks is still open.
    blocks = options["num_gpu_blocks_override"]
    flags.settings(num_gpu_blocks=2 if blocks is None else blocks, block_size=1)
    return flags
