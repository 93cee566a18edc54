"""`headrace plan MODEL`: will it fit, and what does it hold? Exit code 1 where it does not fit."""

import json
from dataclasses import replace
from typing import Unpack

import click
from click.core import ParameterSource
from rich.console import Console

from headrace.capacity.catalogue import catalogue
from headrace.capacity.crowd import Crowd, crowd
from headrace.capacity.deployment import Deployment
from headrace.capacity.gpus import GPUS, Dtype, Gpu
from headrace.capacity.plan import Plan, plan_of
from headrace.capacity.starting import starting_points
from headrace.capacity.together import Life
from headrace.cli.plan_fit import USUAL_TRAFFIC, rank, usual_requests
from headrace.cli.plan_model import PlannedModel, model_from, plain_name
from headrace.cli.plan_options import (
    SECTIONS,
    PlanOptions,
    asked_of,
    deployment_on,
    gpu_asked,
    gpu_of,
    plan_options,
    wants_longest,
)
from headrace.cli.sections import SectionedCommand
from headrace.core.errors import BadInput, NeverFits
from headrace.core.objective import parse_objectives
from headrace.report.plan import flag_of, print_crowd, print_plan, print_starting_points
from headrace.report.plan_cards import cards_json, print_cards
from headrace.report.plan_fit import fits_json, print_fits
from headrace.report.plan_json import plan_json
from headrace.workload.readers import ReadTrace, read_trace
from headrace.workload.slices import Slice

EXIT_DOES_NOT_FIT = 1
_SMALLER = (Dtype.FP8, Dtype.INT4)


@click.command(
    "plan",
    cls=SectionedCommand,
    no_args_is_help=True,
    short_help="Will it fit, on which GPU, with which limits?",
    sections=SECTIONS,
)
@click.argument("model", required=False)
@plan_options
def plan(model: str | None, **options: Unpack[PlanOptions]) -> None:
    """Where the memory of a GPU goes when vLLM serves MODEL, and what is left for requests.

    MODEL is a name of the catalogue, a hub's ORG/NAME, a config.json or its folder, or a
    .gguf file; or leave it out and give --layers, --hidden-size, --heads. No GPU is needed.
    Exit code 1: it does not fit.

    \b
      headrace plan llama-3.1-8b                     cards that hold it
      headrace plan llama-3.1-70b --gpu h100 -tp 2
      headrace plan Qwen/Qwen3-32B --gpu l40s -q fp8 --max-model-len auto
      headrace plan ./config.json --gpu a100-80 --workload chats.jsonl
      headrace plan qwen3-8b --gpu h100 --fit --slo "p95 ttft < 500ms"
    """
    model = None if model is None else plain_name(model)
    planned = model_from(model, options, options["revision"], options["quantization"])
    options["gpu"] = gpu_asked(options)
    trace = _read(options)
    if options["fit"]:
        _fit(planned, trace, options)
        return
    if click.get_current_context().get_parameter_source("slo") is not ParameterSource.DEFAULT:
        raise BadInput(
            "--slo is judged by simulations, which only --fit makes", "add --fit, or leave --slo out"
        )
    if options["gpu"] is None:
        _plan_cards(planned, options)
        return
    found = _plan_on(gpu_of(options["gpu"], options), planned, options)
    console = Console(highlight=False)
    if found.fits:
        print_plan(found, console, fewer=_on_fewer(found, planned, options))
    else:
        print_plan(found, console, remedies(found, planned, options))
    held = None
    if trace is not None and found.kv_cache_bytes > 0:
        held = crowd_of(trace, found)
        assert options["workload"] is not None, "it was read"
        print_crowd(held, options["workload"].name, len(trace.requests), console)
    points = starting_points(found, held.safe if held else None) if found.fits else ()
    if points:
        print_starting_points(points, served_name(model), settings_beside(found, options), console)
    if options["as_json"]:
        click.echo(json.dumps(plan_json(found, held, points)))
    if not found.fits:
        raise SystemExit(EXIT_DOES_NOT_FIT)


def _read(options: PlanOptions) -> ReadTrace | None:
    path = options["workload"]
    if path is None:
        if options["first"] is not None:
            raise BadInput("--first is of a --workload, and none is given", "--workload chats.jsonl")
        return None
    return read_trace(path, part=Slice(options["first"]))


def crowd_of(trace: ReadTrace, plan: Plan) -> Crowd:
    lives = [
        Life(each.prompt_tokens, each.output_tokens, each.prefix_ids, each.prefix_block_tokens)
        for each in trace.requests
    ]
    return crowd(lives, plan.layout, plan.num_blocks, plan.asked.max_model_len, plan.sizing)


def _plan_on(gpu: Gpu, model: PlannedModel, options: PlanOptions) -> Plan:
    """On as many of them as are asked for, or the fewest that hold it; the most, if none do."""
    said = options["tensor_parallel_size"]
    sizes = [said] if said is not None else Deployment.possible_sizes(model.shape.num_heads)[:4]
    plans = (_plan(deployment_on(gpu, size, model, options), model, options) for size in sizes)
    last: Plan | None = None
    for last in plans:
        if last.fits:
            return last
    assert last is not None, "one GPU is always possible"
    return last


def _on_fewer(plan: Plan, model: PlannedModel, options: PlanOptions) -> Plan | None:
    """On the size before the one that `_plan_on` chose; None where it chose none, or there is none less."""
    size = plan.deployment.tensor_parallel_size
    if options["tensor_parallel_size"] is not None or size == 1:
        return None
    less = max(each for each in Deployment.possible_sizes(model.shape.num_heads) if each < size)
    fewer = _plan(replace(plan.deployment, tensor_parallel_size=less), model, options)
    return None if fewer.fatal else fewer


def _plan(deployment: Deployment, model: PlannedModel, options: PlanOptions) -> Plan:
    plan = plan_of(deployment, asked_of(model, options))
    if wants_longest(options) and plan.longest:
        plan = plan_of(deployment, replace(plan.asked, max_model_len=plan.longest))
    return plan


def _fit(model: PlannedModel, trace: ReadTrace | None, options: PlanOptions) -> None:
    """Every card on the fewest GPUs that hold it, or one card on all numbers that do, or as many as said."""
    objectives = parse_objectives(options["slo"])
    if options["gpu"] is None or options["tensor_parallel_size"] is not None:
        names = GPUS if options["gpu"] is None else [options["gpu"]]
        plans = [_plan_on(gpu_of(name, options), model, options) for name in names]
    else:
        gpu, sizes = gpu_of(options["gpu"], options), Deployment.possible_sizes(model.shape.num_heads)[:4]
        plans = [_plan(deployment_on(gpu, size, model, options), model, options) for size in sizes]
    plans = [each for each in plans if each.fits]
    if not plans:
        raise NeverFits(
            f"{model.shape.name} fits on none of these cards at max_model_len "
            f"{options['max_model_len'] or model.shape.max_model_len}",
            "the same without --fit says by how much; --max-model-len auto takes what fits",
        )
    requests = usual_requests() if trace is None else trace.requests
    name = options["workload"].name if options["workload"] is not None else ""
    traffic = f"{name}, {len(requests):,} requests" if name else USUAL_TRAFFIC
    with Console(stderr=True).status(f"simulating {len(plans)} deployments") as status:
        found = rank(
            plans,
            requests,
            objectives,
            counts_replicas=trace is not None,
            on_done=lambda done: status.update(f"{done} of {len(plans)} deployments simulated"),
        )
    said = "; ".join(map(str, objectives))
    print_fits(found, said, traffic, Console(highlight=False))
    if options["as_json"]:
        click.echo(json.dumps(fits_json(found, said, traffic)))
    if all(each.rate is None for each in found):
        raise SystemExit(EXIT_DOES_NOT_FIT)


def _plan_cards(model: PlannedModel, options: PlanOptions) -> None:
    """Every card of the catalogue, on the fewest GPUs that hold it."""
    plans = [_plan_on(gpu_of(name, options), model, options) for name in GPUS]
    plans.sort(key=lambda each: (not each.fits, each.deployment.num_gpus, each.memory.total))
    print_cards(plans, Console(highlight=False))
    if options["as_json"]:
        click.echo(json.dumps(cards_json(plans)))
    if not any(each.fits for each in plans):
        raise SystemExit(EXIT_DOES_NOT_FIT)


def remedies(plan: Plan, model: PlannedModel, options: PlanOptions) -> tuple[str, ...]:
    """Changes, each alone, under which it fits."""
    deployment = plan.deployment
    found: list[str] = []
    if not plan.has_room and plan.longest > 1:
        found.append(f"{flag_of('max_model_len', str(plan.longest))}: the longest that fits here")
    found += [
        f"{flag_of('quantization', str(dtype))}: smaller weights, in a checkpoint of that format"
        for dtype in _SMALLER
        if dtype.bytes < deployment.weight_dtype.bytes
        and _plan(replace(deployment, weight_dtype=dtype), model, options).fits
    ][:1]
    for size in Deployment.possible_sizes(model.shape.num_heads):
        if size > deployment.tensor_parallel_size:
            larger = _plan(replace(deployment, tensor_parallel_size=size), model, options)
            if larger.fits:
                found.append(f"{flag_of('tensor_parallel_size', str(size))}: {size} x {deployment.gpu.name}")
                break
    return tuple(found)


def served_name(model: str | None) -> str:
    """By which vLLM would find it."""
    entry = catalogue().get((model or "").partition("@")[0].lower())
    return entry.hub[0] if entry else model or "MODEL"


def settings_beside(plan: Plan, options: PlanOptions) -> dict[str, str]:
    """What was asked for, under vLLM's names; starting points may choose otherwise."""
    deployment = plan.deployment
    sizes = {
        "tensor_parallel_size": deployment.tensor_parallel_size,
        "pipeline_parallel_size": deployment.pipeline_parallel_size,
        "data_parallel_size": deployment.data_parallel_size,
    }
    said = {name: str(size) for name, size in sizes.items() if size > 1}
    if options["quantization"] is not None:
        said["quantization"] = options["quantization"]
    if options["kv_cache_dtype"] != "auto":
        said["kv_cache_dtype"] = options["kv_cache_dtype"]
    if options["gpu_memory_utilization"] is not None:
        said["gpu_memory_utilization"] = f"{options['gpu_memory_utilization']:g}"
    if plan.asked.max_model_len != deployment.model.max_model_len:
        said["max_model_len"] = str(plan.asked.max_model_len)
    return said
