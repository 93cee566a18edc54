"""`headrace tune`: the settings under which short requests wait least, proven on a real server."""

import time
from pathlib import Path
from typing import TypedDict, Unpack

import click
from rich.console import Console

from headrace.cli.quantity import Duration
from headrace.cli.stopping import terminated_like_interrupted
from headrace.cli.tuning import Plan, tune_embedded
from headrace.core.errors import BadInput
from headrace.executor.models import locate
from headrace.report.tune import tune_text
from headrace.report.tuned import tune_json
from headrace.workload.mixed import MixedWorkload

EXIT_INTERRUPTED = 130
LEAST_BUDGET_S = 60.0
LAST_WORDS_S = 5.0
"""Of the budget, kept for stopping the last server and for the report."""


class Options(TypedDict):
    """What the command line says beside the model's name."""

    budget: float
    max_trials: int | None
    short_rps: float | None
    long_rps: float | None
    seed: int
    output_dir: Path | None
    as_json: bool


@click.command(short_help="Settings that serve short requests sooner, measured.")
@click.argument("model", default="smollm2")
@click.option(
    "--budget", type=Duration(), default="6m", show_default=True, help="Time to spend, as 6m, 90s or 1h30m."
)
@click.option("--max-trials", type=click.IntRange(min=1), help="Most runs, the baseline's included.")
@click.option("--short-rps", type=float, help="Short chats a second.  [default: fitted to this machine]")
@click.option("--long-rps", type=float, help="Long documents a second.  [default: fitted to this machine]")
@click.option("--seed", default=0, show_default=True, help="First seed considered for the timetable.")
@click.option(
    "--output-dir",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Keep the record of every run there.  [default: none are kept]",
)
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object on a line of its own.")
def tune(model: str, **options: Unpack[Options]) -> None:
    """Find settings under which short requests to MODEL get their first token sooner.

    Serves MODEL on this machine under mixed traffic, short chats among long documents. Measures
    the starting settings, tries others for real, and repeats the best and the start in turns.
    Recommends a change only if its gain is beyond the noise of those repeats; says what it costs.

    \b
    Examples:
      headrace tune
      headrace tune smollm2 --budget 15m --output-dir runs
      headrace tune ~/models/qwen3-0.6b.gguf --short-rps 2 --long-rps 0.1 --json
    """
    began = time.monotonic()
    budget_s = options["budget"]
    if budget_s < LEAST_BUDGET_S:
        raise BadInput(
            f"a budget of {budget_s:g} s is too short: servers must start and requests be sent",
            f"give at least {LEAST_BUDGET_S:g}s; the default is 6m",
        )
    _require_rates(options["short_rps"], options["long_rps"])
    output_dir = options["output_dir"]
    if output_dir is not None:
        _make(output_dir)
    with terminated_like_interrupted():  # so that it stops the server and reports too
        files = locate(model)
        plan = Plan(
            model=model,
            max_model_len=files.max_model_len,
            ends_at=began + budget_s - LAST_WORDS_S,
            max_trials=options["max_trials"],
            short_rps=options["short_rps"],
            long_rps=options["long_rps"],
            seed=options["seed"],
            output_dir=output_dir,
        )
        tuned, interrupted = tune_embedded(plan, Console(stderr=True))
    click.echo(f"\n{tune_text(tuned)}")
    if options["as_json"]:
        click.echo(f"\n{tune_json(tuned)}")
    if interrupted:
        raise SystemExit(EXIT_INTERRUPTED)


def _require_rates(short_rps: float | None, long_rps: float | None) -> None:
    """Before a server is started to see what else would fit. Raises `BadInput`."""
    standard = MixedWorkload()
    MixedWorkload(
        short_rps=standard.short_rps if short_rps is None else short_rps,
        long_rps=standard.long_rps if long_rps is None else long_rps,
    )


def _make(folder: Path) -> None:
    """Before minutes are spent on what could not be kept."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"--output-dir {folder} cannot be made: {error.strerror}") from error
