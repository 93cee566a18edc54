"""`headrace calibrate`: how long steps take, here or on a server, for `headrace simulate`."""

import asyncio
import time
from pathlib import Path
from typing import TypedDict, Unpack

import click

from headrace.cli import calibrate_url as from_outside
from headrace.cli.calibrating import Calibrated, Plan, calibrate_embedded
from headrace.cli.costs import save
from headrace.core.errors import BadInput
from headrace.executor.graph import KvCacheDtype
from headrace.executor.models import locate
from headrace.net.client import base_url, served_models

LEAST_BUDGET_S = 30.0
EMBEDDED_BUDGET_S, URL_BUDGET_S = 90.0, 140.0
POOR_FIT = 0.10
BUILT_IN = "smollm2"


class Options(TypedDict):
    """What the command line says beside the target."""

    embedded: bool
    model: str | None
    output: Path
    budget_s: float | None
    seed: int | None
    kv_cache_dtype: str


@click.command(no_args_is_help=True, short_help="How long steps take, for `headrace simulate`.")
@click.argument("target", required=False)
@click.option("--embedded", is_flag=True, help="TARGET is a model for the engine of this package.")
@click.option("--model", help="Model to ask a server for.  [default: the server's first]")
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
    metavar="SECONDS",
    help="How long to measure, roughly. Longer averages more of what the machine does beside it."
    f"  [default: {EMBEDDED_BUDGET_S:.0f} embedded, {URL_BUDGET_S:.0f} else]",
)
@click.option(
    "--seed",
    type=int,
    help="Of the order and the prompts.  [default: 0 embedded; else a new one, as servers know old prompts]",
)
@click.option(
    "--kv-cache-dtype",
    type=click.Choice([dtype.value for dtype in KvCacheDtype]),
    default=KvCacheDtype.AUTO.value,
    show_default=True,
    help="Embedded: as `headrace serve` is going to keep them.",
)
def calibrate(target: str | None, **options: Unpack[Options]) -> None:
    """Measure how long steps take on TARGET, and write a cost model.

    With --embedded, TARGET is a model (default: smollm2): steps of chosen sizes are timed in this process,
    then a server and a client beside it, to see what serving adds. Otherwise it is the address of any
    OpenAI-compatible server, and its client's view is all there is. Nobody else should be served meanwhile.

    \b
      headrace calibrate --embedded --output here.json
      headrace calibrate localhost:8000 --output there.json
      headrace simulate run.jsonl --cost here.json --max-num-batched-tokens 256
    """
    output = options["output"]
    if not output.parent.is_dir():
        raise BadInput(f"--output {output}: there is no folder {output.parent}")
    if options["embedded"]:
        model = target or BUILT_IN
        budget_s = options["budget_s"] or EMBEDDED_BUDGET_S
        plan = Plan(model, locate(model), options["kv_cache_dtype"], budget_s, options["seed"] or 0)
        calibrated = calibrate_embedded(plan, _say)
        cost, words = calibrated.cost, in_words(calibrated)
    elif target is None:
        raise BadInput("calibrate what?", "--embedded, or the address of a server")
    else:
        url = base_url(target)
        name = options["model"] or asyncio.run(served_models(url))[0]
        seed = int(time.time()) if options["seed"] is None else options["seed"]
        found = from_outside.calibrate_url(url, name, seed, _say, options["budget_s"] or URL_BUDGET_S)
        cost, words = found.cost, from_outside.in_words(found)
    save(cost, output)
    click.echo("\n".join(words))
    click.echo(f"Cost model: {output}")


def _say(line: str) -> None:
    click.echo(line, err=True)


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
