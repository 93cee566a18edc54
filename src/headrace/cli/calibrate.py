"""`headrace calibrate --embedded`: how long steps take on this machine, for `headrace simulate`."""

from pathlib import Path
from typing import TypedDict, Unpack

import click

from headrace.cli.calibrating import Calibrated, Plan, calibrate_embedded
from headrace.cli.costs import save
from headrace.core.errors import BadInput
from headrace.executor.graph import KvCacheDtype
from headrace.executor.models import locate

LEAST_BUDGET_S = 30.0
POOR_FIT = 0.10


class Options(TypedDict):
    """What the command line says beside the model."""

    embedded: bool
    output: Path
    budget_s: float
    seed: int
    kv_cache_dtype: str


@click.command(no_args_is_help=True, short_help="How long steps take here, for `headrace simulate`.")
@click.argument("model", default="smollm2")
@click.option("--embedded", is_flag=True, required=True, help="The engine of this package, on this machine.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    metavar="FILE.json",
    help="Where the cost model goes.",
)
@click.option(
    "--budget",
    "budget_s",
    type=click.FloatRange(LEAST_BUDGET_S),
    default=90.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to measure. Longer averages more of what the machine does beside it.",
)
@click.option("--seed", default=0, show_default=True, help="Of the order and the lengths.")
@click.option(
    "--kv-cache-dtype",
    type=click.Choice([dtype.value for dtype in KvCacheDtype]),
    default=KvCacheDtype.AUTO.value,
    show_default=True,
    help="As `headrace serve` is going to keep them.",
)
def calibrate(model: str, **options: Unpack[Options]) -> None:
    """Measure how long the steps of MODEL take on this machine, and write a cost model.

    First steps of chosen sizes in this process, then a server and a client beside it, to see what
    serving adds. Let the machine do nothing else meanwhile.

    \b
      headrace calibrate --embedded --output here.json
      headrace simulate run.jsonl --cost here.json --max-num-batched-tokens 256
    """
    output = options["output"]
    if not output.parent.is_dir():
        raise BadInput(f"--output {output}: there is no folder {output.parent}")
    plan = Plan(model, locate(model), options["kv_cache_dtype"], options["budget_s"], options["seed"])
    calibrated = calibrate_embedded(plan, lambda line: click.echo(line, err=True))
    save(calibrated.cost, output)
    click.echo("\n".join(in_words(calibrated)))
    click.echo(f"Cost model: {output}")


def in_words(calibrated: Calibrated) -> list[str]:
    """How far the model may be trusted, for a person."""
    cost, worst, added = calibrated.cost, calibrated.worst, calibrated.added
    residual, front_end = cost.residual, cost.front_end
    lines = [
        f"{residual.observations:,} steps were timed.",
        f"Half of them are told within {residual.median:.1%}, 19 of 20 within {residual.p95:.1%}.",
        f"Worst told: {worst.cell}",
        f"  {worst.measured_ns / 1e6:.1f} ms, fitted {worst.fitted_ns / 1e6:.1f} ms ({worst.error:+.1%})",
        f"Serving adds {added.step_ns / 1e6:.2f} ms to a step, {added.seq_ns / 1e6:.3f} ms by token sent.",
    ]
    if front_end is not None:
        lines += [
            f"Outside the engine a request takes {front_end.fixed_ns / 1e6:.1f} ms,",
            f"  {front_end.ns_per_prompt_token / 1e3:.1f} us more by prompt token,",
            f"  and a token {front_end.answer_ns / 1e6:.1f} ms on its way back.",
        ]
    if residual.median > POOR_FIT:
        lines.append("A poor fit: something else used this machine. Calibrate again when it is quiet.")
    return lines
