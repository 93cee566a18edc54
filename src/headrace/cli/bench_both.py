"""`headrace compare A B`: which of two servers is faster under the same load, and how sure that is."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Unpack, cast

import click
from rich.console import Console

from headrace.cli.bench import EXIT_INVALID, measure_shown, shown_wording, target_of
from headrace.cli.load_options import LOAD_SECTIONS, load_options
from headrace.cli.loads import LoadOptions, check_load, load_of
from headrace.cli.vllm_bench_flags import LoadCommand
from headrace.core.errors import TargetFailed
from headrace.core.measurement import Measurement
from headrace.measure import record
from headrace.measure.compare import Verdict, differences, order
from headrace.measure.validity import check
from headrace.net.client import base_url
from headrace.report.compare import print_comparison

EXIT_WORSE = 3
FEWEST_PAIRS = 2


class Options(LoadOptions):
    """What the command line says beside the addresses."""

    model: str | None
    model_b: str | None
    pairs: int
    output_dir: Path | None
    as_json: bool


@click.command(
    cls=LoadCommand,
    no_args_is_help=True,
    short_help="Which of two servers is faster, and how sure that is.",
    sections=LOAD_SECTIONS | {"Comparison": ("pairs", "slo"), "Results": ("output_dir", "as_json")},
)
@click.argument("a")
@click.argument("b")
@click.option("--model", help="Model to ask A for, and B unless --model-b.  [default: the first of each]")
@click.option("--model-b", help="Model to ask B for.")
@load_options
@click.option(
    "--pairs",
    type=click.IntRange(FEWEST_PAIRS),
    default=5,
    show_default=True,
    help="How often each is measured, for --duration every time.",
)
@click.option(
    "--output-dir",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Keep the record of each slice.",
)
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object on a line of its own.")
def compare(a: str, b: str, **options: Unpack[Options]) -> None:
    """Measure the servers at A and B in turns, and say whether B is better or worse than A.

    Both get the same requests, slice by slice, and take turns in going first, so that whatever else
    changes on the way changes for both. A figure is called better or worse only where that holds for all
    figures together: two servers that are alike are called different in 5 % of comparisons at most.
    The same server twice, which gets other requests of the same kind, shows what is chance.

    Exit codes: 0 done, 1 it went wrong, 2 wrong input, 3 B is worse in some figure, 4 a run is invalid.

    \b
    Examples:
      headrace compare localhost:8000 localhost:8001
      headrace compare localhost:8000 localhost:8001 --rate 4 --pairs 8
    """
    for address in (a, b):
        base_url(address)
    check_load(options)
    target_a = target_of(a, options["model"], options)
    target_b = target_of(b, options["model_b"] or options["model"], options)
    wording = shown_wording(target_a, options["tokenizer"])
    pairs: list[tuple[Measurement, Measurement]] = []
    for number, turn in enumerate(order(options["pairs"])):
        load = load_of(_slice(options, number), wording)
        loads = {"a": load, "b": load}
        if target_a == target_b:  # its prefix cache would know what it was just sent
            loads["b"] = load_of(_slice(options, options["pairs"] + number), wording)
        seen: dict[str, Measurement] = {}
        for side in turn:
            seen[side], interrupted = measure_shown(
                target_a if side == "a" else target_b, loads[side], options["timeout"]
            )
            if interrupted:
                raise KeyboardInterrupt
            if not seen[side].timelines:
                raise TargetFailed(f"{seen[side].target} answered nothing in slice {number + 1}")
            _keep(seen[side], options["output_dir"], f"{number + 1:02}-{side}")
        pairs.append((seen["a"], seen["b"]))
    found = differences(pairs)
    print_comparison(pairs, found, Console(highlight=False))
    if options["as_json"]:
        click.echo(json.dumps({"a": a, "b": b, "differences": [asdict(each) for each in found]}))
    if not all(check(each).is_valid for pair in pairs for each in pair):
        raise SystemExit(EXIT_INVALID)
    if any(each.verdict is Verdict.WORSE for each in found):
        raise SystemExit(EXIT_WORSE)


def _slice(options: Options, number: int) -> LoadOptions:
    """The load of one slice of one side."""
    found = cast("LoadOptions", dict(options))
    found["alone"] = 0
    seed = options["seed"]
    found["seed"] = None if seed is None else seed + number
    return found


def _keep(measurement: Measurement, folder: Path | None, name: str) -> None:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        record.write(measurement, folder / f"{name}.jsonl")
