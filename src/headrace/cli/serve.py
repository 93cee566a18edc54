"""`headrace serve MODEL`: an OpenAI-compatible server, from one file."""

from dataclasses import replace
from typing import Unpack

import click

from headrace.cli.budgets import STEP_BUDGETS, BudgetOptions, Limits, Said, budget_options, flags_of
from headrace.cli.recipe import EngineRecipe, Flags
from headrace.cli.sections import SectionedCommand
from headrace.cli.stopping import terminated_like_interrupted
from headrace.core.settings import SchedulingPolicy
from headrace.executor.graph import KvCacheDtype
from headrace.executor.models import locate
from headrace.executor.tokenizer import OpenVinoTokenizer
from headrace.net.server import Service, Serving, bind
from headrace.net.server import serve as serve_until_stopped

DEFAULTS = Limits(batched_tokens=2048, num_seqs=128)
MIB = 1 << 20

VLLM_ONLY = {
    "--gpu-memory-utilization": "the KV cache gets its memory from --kv-cache-memory-bytes",
    "--swap-space": "a preempted request is computed again, not swapped out",
    "--tensor-parallel-size": "one process computes, on one CPU",
    "--dtype": "weights are kept as the model's file has them",
    "--quantization": "weights are kept as the model's file has them",
    "--model": "give the model without a flag: headrace serve MODEL",
}
"""Flags that people bring from vLLM, and what takes their place."""


class Options(BudgetOptions):
    """What the command line says beside the model. None: to be decided."""

    host: str
    port: int
    served_model_name: tuple[str, ...]
    shutdown_timeout: float
    kv_cache_dtype: str


class _ServeCommand(SectionedCommand):
    """Knows the flags of vLLM that have no counterpart here."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if instead := VLLM_ONLY.get(error.option_name):
                raise click.UsageError(f"vLLM's {error.option_name} is not here: {instead}", ctx) from error
            raise


@click.command(
    cls=_ServeCommand,
    no_args_is_help=True,
    short_help="An OpenAI-compatible server, from one file.",
    sections={
        "Server": ("host", "port", "served_model_name", "shutdown_timeout"),
        "Budgets of a step": STEP_BUDGETS,
        "Budget of memory": (
            *("max_model_len", "kv_cache_memory_bytes", "kv_cache_dtype", "enable_prefix_caching"),
            *("scheduler_reserve_full_isl", "watermark", "block_size", "num_gpu_blocks_override"),
        ),
    },
)
@click.argument("model")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. Unlike vLLM's, for this machine only: there is no password. 0.0.0.0: for all",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 takes any free one."
)
@click.option(
    "--served-model-name",
    multiple=True,
    metavar="NAME",
    help="What clients call the model; may be given several times.  [default: its own name]",
)
@click.option(
    "--shutdown-timeout",
    type=click.FloatRange(0),
    default=8.0,
    show_default=True,
    metavar="SECONDS",
    help="After SIGTERM or Ctrl-C, how long answers under way may take to end. vLLM's default, 0, cuts them; "
    "this one lets most end within the 10 s that `docker stop` grants. A second signal ends at once.",
)
@budget_options(
    Said(
        batched_tokens=str(DEFAULTS.batched_tokens),
        num_seqs=str(DEFAULTS.num_seqs),
        kv_cache_memory_bytes="4G, at most half of what is available",
        block_size="default and only choice: the device's",
    )
)
@click.option(
    "--kv-cache-dtype",
    type=click.Choice([dtype.value for dtype in KvCacheDtype]),
    default=KvCacheDtype.AUTO.value,
    show_default=True,
    help="How they are kept: auto is f32; u8 takes a third of the memory and is slightly less exact.",
)
def serve(model: str, **options: Unpack[Options]) -> None:
    """Serve MODEL behind an OpenAI-compatible API, with vLLM's scheduling.

    MODEL is `smollm2` (built in, fetched once), the path of a .gguf file, or a folder with OpenVINO IR.
    Flags have vLLM's names and defaults.

    \b
      headrace serve smollm2
      headrace serve ./qwen2.5-0.5b-instruct-q8_0.gguf --max-model-len 4096
      headrace serve smollm2 --long-prefill-token-threshold 192

    \b
      curl -N localhost:8000/v1/chat/completions -d \\
        '{"messages": [{"role": "user", "content": "Hello!"}], "stream": true}'
    """
    with bind(options["host"], options["port"]) as listener:
        with terminated_like_interrupted():  # it may be converting: that takes a process and a folder
            files = locate(model)
        flags = decide(options, files.max_model_len)
        names = options["served_model_name"] or (files.name,)
        service = Service(
            model_names=names,
            recipe=EngineRecipe(files, flags),
            load_tokenizer=lambda: OpenVinoTokenizer(files),
            shutdown_timeout_s=options["shutdown_timeout"],
        )
        serve_until_stopped(service, listener, lambda serving: click.echo(announcement(names[0], serving)))


def decide(options: Options, model_max_len: int) -> Flags:
    """Fill in vLLM's defaults. Raises `BadInput` for budgets that contradict each other."""
    return replace(flags_of(options, model_max_len, DEFAULTS), kv_cache_dtype=options["kv_cache_dtype"])


def announcement(name: str, serving: Serving) -> str:
    """The budgets, for a person; then the line that programs wait for."""
    settings, budget = serving.settings, serving.budget
    blocks, length = settings.usable_blocks, settings.max_model_len
    at_once = blocks / -(-length // settings.block_size)
    cap, policy = settings.long_prefill_token_threshold, settings.scheduling_policy
    rows = (
        ("weights", f"{budget.weights_bytes / MIB:,.0f} MiB", ""),
        (
            "KV cache",
            f"{budget.kv_cache_bytes / MIB:,.0f} MiB",
            f"kept as {budget.kv_cache_dtype}; memory is taken as it fills",
        ),
        (
            "",
            f"{blocks:,} blocks",
            f"of {settings.block_size} tokens: {blocks * settings.block_size:,} tokens",
        ),
        ("context", f"{length:,} tokens", f"{at_once:,.1f} requests of that length fit at once"),
        ("a step", f"{settings.max_num_batched_tokens:,} tokens", "--max-num-batched-tokens"),
        ("", f"{settings.max_num_seqs:,} requests", "--max-num-seqs"),
        *([("", f"{cap:,} tokens", "of one prompt: --long-prefill-token-threshold")] if cap else []),
        *([("", policy.value, settings.slo)] if policy is not SchedulingPolicy.FCFS else []),
    )
    lines = (f"  {what:<9}{amount:>16}   {note}".rstrip() for what, amount, note in rows)
    return "\n".join((*lines, f"serving {name} at {serving.url}"))
