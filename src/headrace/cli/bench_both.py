"""`headrace compare A B`: which of two servers is faster under the same load, and how sure that is."""

import json
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Unpack, cast

import click
from rich.console import Console

from headrace.cli.bench import (
    EXIT_INVALID,
    check_address,
    check_writable,
    measure_shown,
    plain_console,
    shown_wording,
    target_of,
)
from headrace.cli.load_options import LOAD_SECTIONS, file_option, load_options
from headrace.cli.loads import LoadOptions, check_load, load_of
from headrace.cli.measuring import Planned, Target
from headrace.cli.vllm_bench_flags import LoadCommand
from headrace.cli.wording import Wording
from headrace.core.errors import TargetFailed
from headrace.core.measurement import ALL, Measurement
from headrace.measure import record
from headrace.measure.compare import order
from headrace.measure.summary import summarise
from headrace.report.compare import Comparison, found_of, print_comparison
from headrace.report.compare_files import comparison_json, write_comparison
from headrace.report.compare_page import compare_page
from headrace.report.progress import Stage
from headrace.report.run_page import write_page
from headrace.report.units import many, roughly, seconds

EXIT_WORSE = 3
LEAST_PAIRS = 2


class Options(LoadOptions):
    """What the command line says beside the addresses."""

    model: str | None
    model_b: str | None
    pairs: int
    output_dir: Path | None
    csv: Path | None
    html: Path | None
    as_json: bool


@click.command(
    cls=LoadCommand,
    no_args_is_help=True,
    short_help="Which of two servers is faster, and how sure that is.",
    sections=LOAD_SECTIONS | {"Comparison": ("pairs",), "Results": ("output_dir", "csv", "html", "as_json")},
)
@click.argument("a")
@click.argument("b")
@click.option("--model", help="Model to ask A for, and B unless --model-b.  [default: the first of each]")
@click.option("--model-b", help="Model to ask B for.")
@load_options
@click.option(
    "--pairs",
    type=click.IntRange(LEAST_PAIRS),
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
@file_option("--csv", "FILE.csv", "One row per figure, for a spreadsheet.")
@file_option("--html", "FILE.html", "One page with charts, that needs nothing else.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object on a line of its own.")
def compare(a: str, b: str, **options: Unpack[Options]) -> None:
    """Measure the servers at A and B in turns, and say whether B is better or worse than A.

    Both get the same requests, slice by slice, and take turns in going first, so that whatever else
    changes on the way changes for both. A figure is called better or worse only where that holds for all
    figures together: two servers that are alike are called different in 5 % of comparisons at most.
    The same server twice, which gets other requests of the same kind, shows what is chance.

    Exit codes: 0 done, 1 it went wrong, 2 wrong input, 3 B is worse in some figure, 4 a run is invalid,
    130 interrupted.

    \b
    Examples:
      headrace compare localhost:8000 localhost:8001
      headrace compare localhost:8000 localhost:8001 --rate 4 --pairs 8 --html both.html
      headrace compare localhost:8000 localhost:8000 --duration 30s
    """
    for address in (a, b):
        check_address(address)
    check_load(options)
    for name in ("csv", "html"):
        check_writable(f"--{name}", options[name])
    target_a = target_of(a, options["model"], options)
    target_b = target_of(b, options["model_b"] or options["model"], options)
    slices = _Slices(target_a, target_b, options, shown_wording(target_a, options["tokenizer"]))
    pairs: list[tuple[Measurement, Measurement]] = []
    try:
        for number, turn in enumerate(order(options["pairs"])):
            pairs.append(slices.pair(number, turn))
    except (KeyboardInterrupt, TargetFailed):
        if len(pairs) >= LEAST_PAIRS:  # they took minutes and are whole
            _report(found_of(pairs), options)
        raise
    comparison = found_of(pairs)
    _report(comparison, options)
    if comparison.invalid:
        raise SystemExit(EXIT_INVALID)
    if comparison.is_worse:
        raise SystemExit(EXIT_WORSE)


def _report(comparison: Comparison, options: Options) -> None:
    if options["csv"] is not None:
        write_comparison(comparison, options["csv"])
    if options["html"] is not None:
        write_page(options["html"], compare_page(comparison))
    print_comparison(comparison, Console(highlight=False))
    if options["as_json"]:
        click.echo(json.dumps(comparison_json(comparison)))


@dataclass(slots=True)
class _Slices:
    """Measures them one after the other, and says on stderr how far it is."""

    a: Target
    b: Target
    options: Options
    wording: Wording
    seed: int = field(init=False)
    """Of the first pair; with it all can be sent again."""
    took_s: list[float] = field(default_factory=list[float])
    console: Console = field(default_factory=plain_console)

    def __post_init__(self) -> None:
        seed = self.options["seed"]
        self.seed = secrets.randbelow(1_000_000) if seed is None else seed

    def pair(self, number: int, turn: tuple[str, str]) -> tuple[Measurement, Measurement]:
        """Raises `KeyboardInterrupt` on Ctrl-C and `TargetFailed` where nothing is answered."""
        load = load_of(self._options(number), self.wording)
        loads = {"a": load, "b": load}
        if self.a == self.b:  # its prefix cache would know what it was just sent
            loads["b"] = load_of(self._options(self.options["pairs"] + number), self.wording)
        if number == 0:
            self._announce(load)
        seen = {side: self._measured(loads[side], number, side) for side in turn}
        return seen["a"], seen["b"]

    def _announce(self, load: Planned) -> None:
        pairs = self.options["pairs"]
        lasts = f"{many(pairs, 'pair')}, {seconds(load.duration_s)} for each of the two"
        self.console.print(f"A: {self.a.url}  {self.a.model}\nB: {self.b.url}  {self.b.model}")
        self.console.print(f"{load.describe}\n{lasts}: about {roughly(2 * pairs * load.duration_s)}")

    def _measured(self, load: Planned, number: int, side: str) -> Measurement:
        pairs = self.options["pairs"]
        left = 2 * pairs - len(self.took_s) - 1
        each_s = sum(self.took_s) / len(self.took_s) if self.took_s else load.duration_s
        name = f"pair {number + 1} of {pairs}, {side.upper()}"
        began = time.monotonic()
        target = self.a if side == "a" else self.b
        measurement, interrupted = measure_shown(
            target, load, self.options["timeout"], Stage(name, left * each_s)
        )
        if interrupted:
            raise KeyboardInterrupt
        if not measurement.timelines:
            raise TargetFailed(f"{measurement.target} answered nothing in slice {number + 1}")
        self.took_s.append(time.monotonic() - began)
        self.console.print(f"{name}: {_in_short(measurement)}")
        _keep(measurement, self.options["output_dir"], f"{number + 1:02}-{side}")
        return measurement

    def _options(self, number: int) -> LoadOptions:
        """The load of one slice of one side."""
        found = cast("LoadOptions", dict(self.options))
        found["alone"] = 0
        found["seed"] = self.seed + number
        return found


def _in_short(measurement: Measurement) -> str:
    whole = summarise(measurement)[ALL]
    failed = f", {whole.failed:,} failed" if whole.failed else ""
    ttft = f", TTFT P95 {seconds(whole.ttft_s.p95)}" if whole.ttft_s else ""
    return f"{many(whole.requests, 'request')}{failed}{ttft}"


def _keep(measurement: Measurement, folder: Path | None, name: str) -> None:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        record.write(measurement, folder / f"{name}.jsonl")
