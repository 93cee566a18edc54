"""`headrace serve MODEL`: an OpenAI-compatible server, from one file."""

from typing import TypedDict, Unpack

import click

from headrace.cli.quantity import QUANTITY
from headrace.cli.recipe import EngineRecipe, Flags
from headrace.cli.sections import SectionedCommand
from headrace.core.errors import BadInput
from headrace.core.settings import SchedulingPolicy
from headrace.executor.graph import KvCacheDtype
from headrace.executor.models import locate
from headrace.executor.tokenizer import OpenVinoTokenizer
from headrace.net.server import Service, Serving, bind
from headrace.net.server import serve as serve_until_stopped

DEFAULT_BATCHED_TOKENS = 2048
DEFAULT_NUM_SEQS = 128
MIB = 1 << 20


class Options(TypedDict):
    """What the command line says beside the model. None: to be decided."""

    host: str
    port: int
    served_model_name: tuple[str, ...]
    shutdown_timeout: float
    max_model_len: int | None
    max_num_batched_tokens: int | None
    max_num_seqs: int | None
    long_prefill_token_threshold: int
    enable_chunked_prefill: bool
    enable_prefix_caching: bool
    scheduling_policy: str
    scheduler_reserve_full_isl: bool
    watermark: float
    kv_cache_memory_bytes: int | None
    kv_cache_dtype: str
    block_size: int | None
    num_gpu_blocks_override: int | None


@click.command(
    cls=SectionedCommand,
    no_args_is_help=True,
    short_help="An OpenAI-compatible server, from one file.",
    sections={
        "Server": ("host", "port", "served_model_name", "shutdown_timeout"),
        "Budgets of a step": (
            *("max_num_batched_tokens", "max_num_seqs", "long_prefill_token_threshold"),
            *("enable_chunked_prefill", "scheduling_policy"),
        ),
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
@click.option(
    "--max-model-len",
    type=QUANTITY,
    metavar="TOKENS",
    help="Longest prompt and answer together.  [default: the model's]",
)
@click.option(
    "--max-num-batched-tokens",
    type=QUANTITY,
    metavar="TOKENS",
    help=f"Tokens one step may compute, prefill and decode together.  [default: {DEFAULT_BATCHED_TOKENS}]",
)
@click.option(
    "--max-num-seqs",
    type=int,
    metavar="N",
    help=f"Requests that may run at once.  [default: {DEFAULT_NUM_SEQS}]",
)
@click.option(
    "--long-prefill-token-threshold",
    type=QUANTITY,
    default=0,
    show_default=True,
    metavar="TOKENS",
    help="Most tokens of one prompt in a step, while others wait or run. 0: no cap.",
)
@click.option(
    "--enable-chunked-prefill/--no-enable-chunked-prefill",
    default=True,
    show_default="on",
    help="Whether a prompt may be computed over several steps.",
)
@click.option(
    "--enable-prefix-caching/--no-enable-prefix-caching",
    default=True,
    show_default="on",
    help="Whether prompts that begin alike share KV blocks.",
)
@click.option(
    "--scheduling-policy",
    type=click.Choice([policy.value for policy in SchedulingPolicy]),
    default=SchedulingPolicy.FCFS.value,
    show_default=True,
    help="Who is next: by arrival, or by the request's priority (smaller first).",
)
@click.option(
    "--scheduler-reserve-full-isl/--no-scheduler-reserve-full-isl",
    default=True,
    show_default="on",
    help="Admit a request only when blocks for its whole prompt are free.",
)
@click.option(
    "--watermark",
    default=0.0,
    show_default=True,
    metavar="SHARE",
    help="Share of the blocks that admissions leave free while others run.",
)
@click.option(
    "--kv-cache-memory-bytes",
    type=QUANTITY,
    metavar="BYTES",
    help="Memory for keys and values, such as 2G.  [default: 4G, at most half of what is available]",
)
@click.option(
    "--kv-cache-dtype",
    type=click.Choice([dtype.value for dtype in KvCacheDtype]),
    default=KvCacheDtype.AUTO.value,
    show_default=True,
    help="How they are kept: auto is f32; u8 takes a third of the memory and is slightly less exact.",
)
@click.option(
    "--block-size",
    type=int,
    metavar="TOKENS",
    help="Tokens in a KV block.  [default and only choice: the device's]",
)
@click.option(
    "--num-gpu-blocks-override",
    type=int,
    metavar="N",
    help="This many blocks, whatever the memory (for testing).",
)
def serve(model: str, **options: Unpack[Options]) -> None:
    """Serve MODEL behind an OpenAI-compatible API, with vLLM's scheduling.

    MODEL is `smollm2` (built in, fetched once), the path of a .gguf file, or a folder with OpenVINO IR.
    Flags have vLLM's names and defaults.

    \b
      headrace serve smollm2
      headrace serve ./qwen2.5-0.5b-instruct-q8_0.gguf --max-model-len 4096
      headrace serve smollm2 --max-num-batched-tokens 256 --long-prefill-token-threshold 192

    \b
      curl -N localhost:8000/v1/chat/completions -d
        '{"messages": [{"role": "user", "content": "Hello!"}], "stream": true}'
    """
    with bind(options["host"], options["port"]) as listener:
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
    given = options["max_model_len"]
    max_model_len = model_max_len if given is None else given
    if max_model_len > model_max_len:
        raise BadInput(
            f"--max-model-len is {max_model_len}; the model was trained for {model_max_len} tokens",
            f"--max-model-len {model_max_len}, or leave it out",
        )
    seqs, batched = options["max_num_seqs"], options["max_num_batched_tokens"]
    if batched is None:
        batched = min(DEFAULT_BATCHED_TOKENS, (DEFAULT_NUM_SEQS if seqs is None else seqs) * max_model_len)
        if not options["enable_chunked_prefill"]:
            batched = max(batched, max_model_len)
    flags = Flags(
        max_model_len=max_model_len,
        max_num_batched_tokens=batched,
        max_num_seqs=min(DEFAULT_NUM_SEQS, batched) if seqs is None else seqs,
        long_prefill_token_threshold=options["long_prefill_token_threshold"],
        enable_chunked_prefill=options["enable_chunked_prefill"],
        enable_prefix_caching=options["enable_prefix_caching"],
        scheduling_policy=SchedulingPolicy(options["scheduling_policy"]),
        scheduler_reserve_full_isl=options["scheduler_reserve_full_isl"],
        watermark=options["watermark"],
        block_size=options["block_size"],
        kv_cache_memory_bytes=options["kv_cache_memory_bytes"],
        kv_cache_dtype=options["kv_cache_dtype"],
        num_gpu_blocks_override=options["num_gpu_blocks_override"],
    )
    # Contradictions are found now, before the model is loaded; only the number of blocks is still open.
    blocks = options["num_gpu_blocks_override"]
    flags.settings(num_gpu_blocks=2 if blocks is None else blocks, block_size=1)
    return flags


def announcement(name: str, serving: Serving) -> str:
    """The budgets, for a person; then the line that programs wait for."""
    settings, budget = serving.settings, serving.budget
    blocks, length = settings.usable_blocks, settings.max_model_len
    at_once = blocks / -(-length // settings.block_size)
    cap = settings.long_prefill_token_threshold
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
    )
    lines = (f"  {what:<9}{amount:>16}   {note}".rstrip() for what, amount, note in rows)
    return "\n".join((*lines, f"serving {name} at {serving.url}"))
