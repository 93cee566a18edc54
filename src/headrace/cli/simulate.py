"""`headrace simulate WORKLOAD`: what would happen under other settings, another load, another machine."""

import json
import time
from dataclasses import asdict, replace
from math import inf
from pathlib import Path
from typing import Unpack

import click
from rich.console import Console

from headrace import __version__
from headrace.cli.budgets import STEP_BUDGETS, Said, budget_options
from headrace.cli.costs import CostType, load_cost
from headrace.cli.quantity import Duration
from headrace.cli.sections import SectionedCommand
from headrace.cli.sweep import SimulationJudge, choices_of, sweep
from headrace.cli.twin import BLOCK_SIZE, Twin, TwinOptions, front_end_of, refuse_what_fits_nowhere, twin_of
from headrace.core.errors import BadInput
from headrace.core.settings import SchedulingPolicy
from headrace.gateway.router import LeastRequests, LeastTokens, PrefixAffine, RoundRobin, Router
from headrace.measure import record
from headrace.report.simulated import print_simulated, simulated_json
from headrace.report.sweep import print_sweep, sweep_json
from headrace.report.units import seconds
from headrace.sim.measurement import About, measurement_of
from headrace.sim.overload import judge_load
from headrace.sim.run import Fleet, Watch
from headrace.sim.run import simulate as run_simulation
from headrace.workload.alone import shared_share
from headrace.workload.forms import TraceFormat
from headrace.workload.readers import ReadTrace, read_trace
from headrace.workload.reshape import conversing, scaled, spread
from headrace.workload.slices import Slice

ROUTERS: dict[str, type[Router]] = {
    "round-robin": RoundRobin,
    "least-requests": LeastRequests,
    "least-tokens": LeastTokens,
    "prefix-affine": PrefixAffine,
}
SILENT_S = 2.0
MOST_BINS = 400
EVEN_WIDTHS_S = tuple(digit * 10.0**exponent for exponent in range(-3, 8) for digit in (1, 2, 5))


class Options(TwinOptions):
    """What the command line says beside the workload."""

    trace_format: str | None
    prefix_block_tokens: int | None
    first: int | None
    until: float | None
    scale: float
    spread: bool
    think: float | None
    cost: str
    model: str | None
    replicas: int
    router: str
    sweep: tuple[str, ...]
    workers: int | None
    ray: str | None
    output: Path | None
    as_json: bool


def settings_file(context: click.Context, parameter: click.Parameter, path: Path | None) -> None:
    """Make a file's settings the defaults of this run: the command line still wins."""
    del parameter
    if path is None:
        return
    known = set(TwinOptions.__annotations__)
    try:
        said = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise BadInput(
            f"--settings {path} cannot be read: {error}", "it should be one JSON object"
        ) from error
    if not isinstance(said, dict):
        raise BadInput(f"--settings {path} holds no JSON object", f"names are {', '.join(sorted(known))}")
    if strangers := sorted(set(said) - known):
        raise BadInput(
            f"--settings {path}: {', '.join(strangers)} is no setting here",
            f"known: {', '.join(sorted(known))}",
        )
    context.default_map = {**(context.default_map or {}), **said}


@click.command(
    "simulate",
    cls=SectionedCommand,
    no_args_is_help=True,
    short_help="What would happen under other settings, load or hardware.",
    sections={
        "Workload": ("trace_format", "prefix_block_tokens", "first", "until", "scale", "spread", "think"),
        "Machine": ("cost", "model", "replicas", "router", "async_scheduling"),
        "Many at once": ("sweep", "workers", "ray"),
        "Budgets of a step": STEP_BUDGETS,
        "Budget of memory": (
            *("max_model_len", "kv_cache_memory_bytes", "enable_prefix_caching"),
            *("scheduler_reserve_full_isl", "watermark", "block_size", "num_gpu_blocks_override"),
        ),
    },
)
@click.argument("workload", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "trace_format",
    type=click.Choice([form.value for form in TraceFormat]),
    metavar="FORM",  # all of them would be one line of 110 characters
    help=f"{', '.join(TraceFormat)}.  [default: told from how the file begins]",
)
@click.option(
    "--prefix-block-tokens",
    type=click.IntRange(1),
    metavar="TOKENS",
    help="What one prefix id stands for.  [default: the power of two that agrees with every row]",
)
@click.option("--first", type=int, metavar="N", help="Only so many requests.")
@click.option("--until", type=float, metavar="SECONDS", help="Only what is due before, in the file's time.")
@click.option(
    "--scale", type=float, default=1.0, show_default=True, help="Times the load: 2 halves the time between."
)
@click.option(
    "--spread/--no-spread",
    default=False,
    help="Spread requests that share an instant up to the next one: for clocks that tick, as Mooncake's."
    "  [default: off]",
)
@click.option(
    "--think",
    type=Duration(),
    metavar="DURATION",
    help="Turns of a session wait for the answer before them, then so long.  [default: as it says]",
)
@click.option(
    "--cost",
    required=True,
    type=CostType(),
    metavar="NAME|FILE.json",
    help="How long steps take: a model and a GPU of the catalogue, such as llama-3.1-8b/h100, or a file of "
    "`headrace calibrate`.",
)
@click.option("--model", metavar="NAME", help="Refuse a cost of any other model.")
@click.option("--replicas", type=int, default=1, show_default=True, help="Servers behind one router.")
@click.option(
    "--router",
    type=click.Choice(list(ROUTERS)),
    default="least-requests",
    show_default=True,
    help="Who of them gets a request: each in turn, the one with the fewest unfinished requests or prompt "
    "tokens, or the one that has prompts which begin alike.",
)
@click.option(
    "--async-scheduling/--no-async-scheduling",
    default=None,
    help="Whether a step is planned while the one before runs.  [default: as the machine does]",
)
@click.option(
    "--settings",
    type=click.Path(path_type=Path),
    is_eager=True,
    expose_value=False,
    callback=settings_file,
    metavar="FILE.json",
    help="Settings under vLLM's names, as one object. Flags win over it.",
)
@budget_options(
    Said(
        batched_tokens="the device's: 2048, 8192, 16384",
        num_seqs="the device's: 256, 1024",
        kv_cache_memory_bytes="what the machine has left",
        block_size=f"default: {BLOCK_SIZE}",
    )
)
@click.option(
    "--sweep",
    multiple=True,
    metavar="NAME=V,V",
    help="Every combination of these values instead of one run; may be given again for another setting.",
)
@click.option("--workers", type=int, metavar="N", help="Simulations at once.  [default: one per core]")
@click.option("--ray", metavar="ADDRESS", help="Spread a sweep over a Ray cluster, such as 10.0.0.1:6379.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.jsonl",
    help="Keep the record: one line per request, as `headrace bench` does.",
)
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object on a line of its own.")
def simulate(workload: Path, **options: Unpack[Options]) -> None:
    """Predict how WORKLOAD would be served, by the scheduler that serves, in virtual time.

    WORKLOAD is any file that `headrace workload describe` reads: our own, Azure's or BurstGPT's CSV,
    Mooncake's JSON lines, results of `vllm bench serve`, records of `headrace bench`, logs, ServeGen's
    folders. Settings have vLLM's names and defaults.

    \b
      headrace simulate azure_conv.csv --cost llama-3.1-8b/h100
      headrace simulate azure_conv.csv --cost llama-3.1-8b/h100 --scale 4 \\
        --max-num-seqs 256
      headrace simulate run.jsonl --cost here.json --replicas 2 \\
        --output twin.jsonl --json
      headrace simulate run.jsonl --cost here.json --sweep max_num_seqs=64,128,256
    """
    output = options["output"]
    if output is not None and not output.parent.is_dir():
        raise BadInput(f"--output {output}: there is no folder {output.parent}")
    trace = _read(workload, options)
    if options["scheduling_policy"] == SchedulingPolicy.SLO and trace.about.slo and not options["slo"]:
        options["slo"] = (trace.about.slo,)
    if options["sweep"] or options["workers"] is not None or options["ray"] is not None:
        _sweep(trace, options)
        return
    twin = twin_of(load_cost(options["cost"], options["model"]), options, trace.requests)
    watch = Watch(even_width_s(trace.requests[-1].due_at), _Progress(len(trace.requests)))
    fleet = Fleet(options["replicas"], ROUTERS[options["router"]], front_end_of(twin.cost))
    simulated = run_simulation(trace.requests, twin.settings, twin.cost, fleet=fleet, watch=watch)
    refuse_what_fits_nowhere(simulated)
    measurement = measurement_of(simulated, _about(workload, trace, twin, options))
    load = judge_load(measurement.timelines)
    if output is not None:
        record.write(measurement, output)
    print_simulated(measurement, simulated, load, twin.settings, Console(highlight=False))
    if output is not None:
        click.echo(f"Record: {output}")
    if options["as_json"]:
        click.echo(json.dumps(simulated_json(measurement, simulated, load)))


def _sweep(trace: ReadTrace, options: Options) -> None:
    if not options["sweep"] or options["output"] is not None:
        raise BadInput(
            "--workers and --ray are of a --sweep, and --output is not: it has no record of one run",
            "--sweep max_num_seqs=64,128 --json",
        )
    choices = choices_of(options["sweep"], click.get_current_context())
    cost, router = load_cost(options["cost"], options["model"]), ROUTERS[options["router"]]
    judge = SimulationJudge(trace.requests, cost, options, options["replicas"], router)
    swept = sweep(judge, choices, options["workers"], options["ray"])
    print_sweep(swept, Console(highlight=False))
    if options["as_json"]:
        click.echo(json.dumps(sweep_json(swept)))


def _read(workload: Path, options: Options) -> ReadTrace:
    form = options["trace_format"]
    trace = read_trace(
        workload,
        trace_format=None if form is None else TraceFormat(form),
        prefix_block_tokens=options["prefix_block_tokens"],
        part=Slice(options["first"], until_s=inf if options["until"] is None else options["until"]),
    )
    requests = spread(trace.requests) if options["spread"] else trace.requests
    if options["think"] is not None:
        requests = conversing(requests, options["think"])
    return replace(trace, requests=scaled(requests, options["scale"]))


def _about(workload: Path, trace: ReadTrace, twin: Twin, options: Options) -> About:
    machine = twin.cost.machine
    span_s = trace.requests[-1].due_at
    said = [f"{workload.name}: {len(trace.requests):,} requests over {seconds(span_s)}"]
    if options["scale"] != 1:
        said.append(f"{options['scale']:g} times its load")
    if trace.left_out:
        said.append(f"{trace.left_out:,} rows without output left out")
    replicas, router = options["replicas"], options["router"]
    fleet = f", {replicas} replicas, {router}" if replicas > 1 else ""
    return About(
        target=f"twin of {options['cost']}{fleet}",
        model=machine.model if machine else "",
        settings=asdict(twin.settings) | {"replicas": replicas, "router": router},
        workload=", ".join(said),
        versions={"headrace": __version__},
        shared_share=shared_share(trace.requests),
    )


def even_width_s(span_s: float) -> float:
    """Of the bins for a run: an even number of seconds that gives at most `MOST_BINS` over `span_s`."""
    return next((width_s for width_s in EVEN_WIDTHS_S if width_s * MOST_BINS >= span_s), EVEN_WIDTHS_S[-1])


class _Progress:
    """A line on stderr every `SILENT_S` seconds."""

    def __init__(self, num_requests: int) -> None:
        self._num_requests = num_requests
        self._next_line_at = time.monotonic() + SILENT_S

    def __call__(self, arrived: int, at_s: float) -> None:
        now = time.monotonic()
        if now >= self._next_line_at:
            self._next_line_at = now + SILENT_S
            click.echo(f"{arrived:,} of {self._num_requests:,} requests sent, at {seconds(at_s)}", err=True)
