"""Flags are read as vLLM reads them, and refused with what to do instead where they have no counterpart.

    serve ARGS --as_vllm_reads--> ARGS that click reads: dashes, whole names, one value a flag

Those of vLLM 0.32 are in `vllm_strangers`; where older ones went was checked in its own parser.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence

import click

from headrace.cli.vllm_strangers import SHORT, STRANGERS

_ONE_CPU = "one process computes, on one CPU"
_AS_IN_THE_FILE = "weights are kept as the model's file has them"
_RECOMPUTE = (
    "a preempted request is computed again, not swapped out: more --kv-cache-memory-bytes preempts less"
)
_ONE_STEP = "leave it out: steps are planned one at a time"

NOWHERE = {
    # llama.cpp's, Docker's and uvicorn's
    "--ctx-size": "--max-model-len",
    "--batch-size": "--max-num-batched-tokens",
    "--parallel": "--max-num-seqs",
    "--alias": "--served-model-name",
    "--n-gpu-layers": _ONE_CPU,
    "--gpus": _ONE_CPU,
    "--threads": "leave it out: all processors compute",
    "--workers": "leave it out: one process speaks HTTP, one computes",
    "--verbose": "leave it out: one line every 10 s goes to stderr",
    # older vLLM's
    "--priority-scheduler": "--scheduling-policy priority",
    "--swap-space": _RECOMPUTE,
    "--preemption-mode": _RECOMPUTE,
    "--worker-use-ray": _ONE_CPU,
    "--engine-use-ray": _ONE_CPU,
    "--num-scheduler-steps": _ONE_STEP,
    "--multi-step-stream-outputs": _ONE_STEP,
    "--use-v2-block-manager": "leave it out: KV blocks are always paged and shared",
    "--num-lookahead-slots": "leave it out: there is no speculation",
    "--scheduler-delay-factor": "--long-prefill-token-threshold, to keep long prompts from delaying others",
    "--disable-async-output-proc": "leave it out",
    "--max-num-on-the-fly-requests": "--max-num-seqs for what runs, --max-num-queued-reqs for what waits too",
    "--max-waiting-queue-length": "--max-num-queued-reqs, which counts running requests too",
    "--max-num-partial-prefills": "--long-prefill-token-threshold",
    "--max-long-partial-prefills": "--long-prefill-token-threshold",
    "--disable-log-requests": "leave it out: requests are not logged",
    "--max-context-len-to-capture": "leave it out: there are no graphs to capture",
    "--max-seq-len-to-capture": "leave it out: there are no graphs to capture",
    "--cuda-graph-sizes": "leave it out: there are no graphs to capture",
    "--guided-decoding-backend": "leave it out: one backend does all formats",
    "--task": "leave it out: models generate",
    "--device": "leave it out: the CPU computes",
    "--speculative-model": "leave it out: there is no speculation",
    "--num-speculative-tokens": "leave it out: there is no speculation",
    "--max-paddings": "leave it out: nothing is padded",
    "--tokenizer-pool-size": "leave it out: long prompts are tokenized in threads",
    "--disable-frontend-multiprocessing": "leave it out: the engine has a process of its own",
    "--rope-scaling": "leave it out: the model's file says it",
    "--quantization-param-path": _AS_IN_THE_FILE,
    "--calculate-kv-scales": "--kv-cache-dtype u8, which finds its scales itself",
    "--enable-reasoning": "leave it out",
}
"""In old articles, no longer (or never) in vLLM."""

SEVERAL = frozenset({"--served-model-name", "--api-key"})
"""vLLM's take several values after one flag."""


def refuse_unknown(name: str, ctx: click.Context) -> None:
    """Raises `click.UsageError` with what to do instead, if `name` is a known stranger."""
    name = name.partition(".")[0].removesuffix("+")  # vLLM's --json-flag.key VALUE
    asserted = name if name in STRANGERS else "--" + name.removeprefix("--no-")
    if instead := STRANGERS.get(asserted):
        raise click.UsageError(f"vLLM's {name} is not here: {instead}", ctx)
    if instead := NOWHERE.get(name):
        raise click.UsageError(f"{name} is no flag of vLLM 0.32, and not here: {instead}", ctx)


def as_vllm_reads(args: Sequence[str], options: Mapping[str, bool], ctx: click.Context) -> list[str]:
    """Underscores become dashes, unique prefixes whole names, several values several flags.

    `options` says of each known flag whether it takes a value. Raises `click.UsageError` for a
    flag that is none, or that could be two.
    """
    read: list[str] = []
    waiting = list(args)
    while waiting:
        arg = waiting.pop(0)
        if arg == "--":
            return [*read, arg, *waiting]
        if not arg.startswith("--"):
            _refuse_short(arg, ctx)
            read.append(arg)
            continue
        written, equals, value = arg.partition("=")
        if written in ctx.help_option_names:
            equals = value = ""  # vLLM's --help=all; here --help shows all
        name = _whole_name(written, options, ctx)
        read.append(f"{name}{equals}{value}")
        if equals or not options[name] or not waiting:
            continue
        read.append(waiting.pop(0))
        # With MODEL before it, what follows can only be more of the same.
        while name in SEVERAL and has_model(read, options) and waiting and not waiting[0].startswith("-"):
            read += (name, waiting.pop(0))
    return read


def has_model(args: Sequence[str], options: Mapping[str, bool]) -> bool:
    """Whether an argument stands among whole flags."""
    is_value = False
    for arg in args:
        if not is_value and not arg.startswith("-"):
            return True
        is_value = not is_value and options.get(arg, False)
    return False


def _whole_name(written: str, options: Iterable[str], ctx: click.Context) -> str:
    name = written.replace("_", "-")
    known = set(options)
    if name in known:
        return name
    refuse_unknown(name, ctx)
    meant = sorted(each for each in known if each.startswith(name))
    if len(meant) > 1:
        raise click.UsageError(f"{written} could be {', '.join(meant)}", ctx)
    if not meant:
        _refuse_abbreviated(name, ctx)
        raise click.NoSuchOption(written, possibilities=_close(name, known), ctx=ctx)
    return meant[0]


def _refuse_short(arg: str, ctx: click.Context) -> None:
    """Such as `-tp 2` and `-O3`, of which click would only say that there is no `-t` and no `-O`."""
    short = "-O" if arg.startswith("-O") else arg.partition("=")[0]
    if name := SHORT.get(short):
        refuse_unknown(name, ctx)


def _refuse_abbreviated(name: str, ctx: click.Context) -> None:
    meant = [each for each in STRANGERS if each.startswith(name)]
    if len(meant) == 1:
        refuse_unknown(meant[0], ctx)


def _close(name: str, known: Iterable[str]) -> list[str]:
    return difflib.get_close_matches(name, known)
