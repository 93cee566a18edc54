"""`headrace serve MODEL`: an OpenAI-compatible server, by path or by name."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Unpack

import click

from headrace.capacity.kv import default_kv_cache_memory_bytes, kv_bytes_of_share, max_concurrency
from headrace.cli.budgets import STEP_BUDGETS, BudgetOptions, Limits, Said, budget_options, flags_of
from headrace.cli.config_file import read_config
from headrace.cli.memory import affords_expanded, available_bytes, total_bytes
from headrace.cli.quantity import SECONDS
from headrace.cli.recipe import EngineRecipe, Flags
from headrace.cli.sections import SectionedCommand
from headrace.cli.server_options import refuse_empty, server_options
from headrace.cli.stopping import terminated_like_interrupted
from headrace.cli.vllm_flags import as_vllm_reads, has_model
from headrace.core.errors import BadInput
from headrace.core.settings import SchedulingPolicy
from headrace.executor.graph import KvCacheDtype
from headrace.executor.models import locate
from headrace.executor.tokenizer import OpenVinoTokenizer
from headrace.net.admission import Bounds
from headrace.net.listening import Listener, Tls, bind, bind_uds
from headrace.net.server import Service, Serving
from headrace.net.server import serve as serve_until_stopped
from headrace.net.stats_log import log_to_stderr

DEFAULTS = Limits(batched_tokens=2048, num_seqs=128)
MIB = 1 << 20
API_KEY_VARIABLES = ("HEADRACE_API_KEY", "VLLM_API_KEY")


class Options(BudgetOptions):
    """What the command line says beside the model. None: to be decided."""

    host: str
    port: int
    uds: str | None
    revision: str | None
    served_model_name: tuple[str, ...]
    api_key: tuple[str, ...]
    ssl_certfile: str | None
    ssl_keyfile: str | None
    ssl_ca_certs: str | None
    ssl_cert_reqs: int
    shutdown_timeout: float
    warmup: bool
    max_num_queued_reqs: int | None
    max_num_queued_tokens: int | None
    queue_timeout: float | None
    request_timeout: float | None
    gpu_memory_utilization: float | None
    kv_cache_dtype: str
    expand_weights: bool | None
    kv_cache_metrics: bool
    kv_cache_metrics_sample: float
    disable_log_stats: bool
    stream_interval: int


class _ServeCommand(SectionedCommand):
    """Reads flags as vLLM does, from a configuration too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options = {
            name: not (each.is_flag or each.count or name in ctx.help_option_names)
            for each in self.get_params(ctx)
            if isinstance(each, click.Option)
            for name in (*each.opts, *each.secondary_opts)
        }
        return super().parse_args(ctx, _with_config(as_vllm_reads(args, options, ctx), options))


def _with_config(args: list[str], options: dict[str, bool]) -> list[str]:
    """What `--config FILE` says comes first, so that the command line has the last word."""
    given = {arg.partition("=")[0] for arg in args}
    if "--config" not in given:
        return args
    place = next(place for place, arg in enumerate(args) if arg.partition("=")[0] == "--config")
    _, equals, path = args[place].partition("=")
    if not equals:
        path = args[place + 1] if place + 1 < len(args) else ""
    model, said = read_config(Path(path), options, given)
    return [*said, *args, *([model] if model and not has_model(args, options) else [])]


@click.command(
    cls=_ServeCommand,
    short_help="An OpenAI-compatible server, from one file.",
    sections={
        "Server": (
            *("host", "port", "uds", "revision", "served_model_name", "api_key", "config"),
            *("ssl_certfile", "ssl_keyfile", "ssl_ca_certs", "ssl_cert_reqs", "shutdown_timeout", "warmup"),
            *("stream_interval", "tool_call_parser", "enable_auto_tool_choice"),
        ),
        "What it tells": ("disable_log_stats", "kv_cache_metrics", "kv_cache_metrics_sample"),
        "Budgets of the queue": (
            *("max_num_queued_reqs", "max_num_queued_tokens", "queue_timeout", "request_timeout"),
        ),
        "Budgets of a step": STEP_BUDGETS,
        "Budget of memory": (
            *("max_model_len", "kv_cache_memory_bytes", "gpu_memory_utilization", "kv_cache_dtype"),
            *("expand_weights",),
            *("enable_prefix_caching",),
            *("scheduler_reserve_full_isl", "watermark", "block_size", "num_gpu_blocks_override"),
        ),
    },
)
@click.argument("model", default="smollm2")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. Unlike vLLM's, for this machine only; 0.0.0.0: for all, then with --api-key.",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 takes any free one."
)
@click.option(
    "--served-model-name",
    multiple=True,
    callback=refuse_empty,
    metavar="NAME",
    help="What clients call the model; may be given several times.  [default: MODEL as on the hub, "
    "or the file's own name]",
)
@click.option(
    "--shutdown-timeout",
    type=SECONDS,
    default=8.0,
    show_default=True,
    metavar="SECONDS",
    help="After SIGTERM or Ctrl-C, how long answers under way may take to end. vLLM's default, 0, cuts them; "
    "this one lets most end within the 10 s that `docker stop` grants. A second signal ends at once.",
)
@server_options
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
@click.option(
    "--expand-weights/--no-expand-weights",
    default=None,
    help="Keep the weights as float32 too: faster, at 15 times their memory.  "
    "[default: where that is an eighth of all memory at most]",
)
@click.option(
    "--gpu-memory-utilization",
    "--device-memory-utilization",
    type=float,
    metavar="SHARE",
    help="Share of all memory that weights and KV cache may take, instead of --kv-cache-memory-bytes.",
)
def serve(model: str, **options: Unpack[Options]) -> None:
    """Serve MODEL behind an OpenAI-compatible API, with vLLM's scheduling.

    MODEL is `smollm2` (built in, fetched once), the path of a .gguf file or of a folder with OpenVINO IR,
    or a name on Hugging Face: ORG/NAME, ORG/NAME:QUANT, ORG/NAME/FILE.gguf. Flags have vLLM's names and
    defaults.

    \b
      headrace serve smollm2
      headrace serve Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q8_0
      headrace serve ./qwen2.5-0.5b-instruct-q8_0.gguf --max-model-len 4096
      headrace serve smollm2 --long-prefill-token-threshold 192

    \b
      curl -N localhost:8000/v1/chat/completions -d \\
        '{"messages": [{"role": "user", "content": "Hello!"}], "stream": true}'
    """
    tls = _tls(options)
    with _bind(options) as listener:
        with terminated_like_interrupted():  # it may be converting: that takes a process and a folder
            files = locate(model, options["revision"])
        asked = options["expand_weights"]
        expands = affords_expanded(files) if asked is None else asked
        weights_bytes = files.expanded_bytes if expands else files.weights_bytes
        flags = replace(decide(options, files.max_model_len, weights_bytes), expand_weights=expands)
        names = options["served_model_name"] or (files.name,)
        service = Service(
            model_names=names,
            recipe=EngineRecipe(files, flags),
            load_tokenizer=lambda: OpenVinoTokenizer(files),
            shutdown_timeout_s=options["shutdown_timeout"],
            bounds=_bounds(options),
            tls=tls,
            api_keys=_api_keys(options),
            stream_interval=options["stream_interval"],
            logs_stats=not options["disable_log_stats"],
            warmup=options["warmup"],
        )
        log_to_stderr()
        asks_for_key = bool(service.api_keys)
        click.echo(f"headrace: loading {files.name}", err=True)
        serve_until_stopped(
            service,
            listener,
            lambda serving: click.echo(announcement(names[0], serving, asks_for_key=asks_for_key)),
        )


def _bind(options: Options) -> Listener:
    return bind_uds(options["uds"]) if options["uds"] else bind(options["host"], options["port"])


def _tls(options: Options) -> Tls | None:
    certificate = options["ssl_certfile"]
    if certificate is None:
        if options["ssl_keyfile"] or options["ssl_ca_certs"]:
            raise BadInput(
                "there is no --ssl-certfile, so nothing would be encrypted", "give --ssl-certfile too"
            )
        return None
    tls = Tls(certificate, options["ssl_keyfile"], options["ssl_ca_certs"], options["ssl_cert_reqs"])
    tls.check()
    return tls


def _bounds(options: Options) -> Bounds:
    return Bounds(
        max_num_queued_reqs=options["max_num_queued_reqs"],
        max_num_queued_tokens=options["max_num_queued_tokens"],
        queue_timeout_s=options["queue_timeout"],
        request_timeout_s=options["request_timeout"],
    )


def _api_keys(options: Options) -> tuple[str, ...]:
    """As in vLLM, the command line's, else the environment's."""
    given = options["api_key"] or tuple(os.environ.get(name, "") for name in API_KEY_VARIABLES)
    return tuple(key for key in given if key)


def decide(options: Options, model_max_len: int, weights_bytes: int = 0) -> Flags:
    """Fill in vLLM's defaults. Raises `BadInput` for budgets that contradict each other.

    The memory is decided here and not in the engine's process: one that is started again must get
    the same, whatever is free by then.
    """
    flags = flags_of(options, model_max_len, DEFAULTS)
    memory = flags.kv_cache_memory_bytes
    if memory is None and (share := options["gpu_memory_utilization"]) is not None:
        memory = kv_bytes_of_share(share, total_bytes(), available_bytes(), weights_bytes)
    if memory is None:
        memory = default_kv_cache_memory_bytes(available_bytes() - weights_bytes)
    return replace(
        flags,
        kv_cache_dtype=options["kv_cache_dtype"],
        kv_cache_memory_bytes=max(memory, 0),
        warmup=options["warmup"],
        block_sample=options["kv_cache_metrics_sample"] if options["kv_cache_metrics"] else 0.0,
    )


def announcement(name: str, serving: Serving, *, asks_for_key: bool = False) -> str:
    """The budgets, for a person; the line that programs wait for; and what to try."""
    settings, budget = serving.settings, serving.budget
    blocks, length = settings.usable_blocks, settings.max_model_len
    at_once = max_concurrency(settings.num_gpu_blocks, settings.block_size, length)
    cap, policy = settings.long_prefill_token_threshold, settings.scheduling_policy
    rows = (
        ("weights", f"{budget.weights_bytes / MIB:,.0f} MiB", ""),
        ("context", f"{length:,} tokens", "prompt and answer together (--max-model-len)"),
        (
            "KV cache",
            f"{budget.kv_cache_bytes / MIB:,.0f} MiB",
            f"as {budget.kv_cache_dtype}, taken as it fills (--kv-cache-memory-bytes)",
        ),
        (
            "",
            f"{blocks:,} blocks",
            f"of {settings.block_size} tokens: {blocks * settings.block_size:,} tokens",
        ),
        ("", f"{at_once:,.2f}x", f"maximum concurrency for {length:,} tokens per request"),
        ("a step", f"{settings.max_num_batched_tokens:,} tokens", "at most (--max-num-batched-tokens)"),
        ("", f"{settings.max_num_seqs:,} requests", "at most (--max-num-seqs)"),
        *([("", f"{cap:,} tokens", "of one prompt (--long-prefill-token-threshold)")] if cap else []),
        *([("policy", policy.value, settings.slo)] if policy is not SchedulingPolicy.FCFS else []),
    )
    lines = (f"  {what:<8}{amount:>15}   {note}".rstrip() for what, amount, note in rows)
    return "\n".join((*lines, f"serving {name} at {serving.url}", *_try_it(serving.url, asks_for_key)))


def _try_it(url: str, asks_for_key: bool) -> tuple[str, str]:
    """One line may be copied; the quotes are a shell's."""
    where = url
    if url.startswith("unix:"):
        where = f"--unix-socket {url.removeprefix('unix:')} http://localhost"
    key = ' -H "Authorization: Bearer $KEY"' if asks_for_key else ""
    return (
        f"  curl -N {where}/v1/chat/completions{key} -d \\",
        """    '{"messages": [{"role": "user", "content": "Hello!"}], "stream": true}'""",
    )
