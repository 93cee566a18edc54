"""How near tuning comes to the best there is, and in how many runs: `python -m bench.tune [--json]`.

Twins stand for servers: an 8B model on an H100 and on an L4, six workloads on each. What is best there is
found by going through every setting of a grid. Then our search tunes the same server, with a twin of its
own whose costs are wrong by 10 to 20 % in four ways, and so do others (bench/tune/rivals.py), each of their
runs off by chance as a server's are. One run of one setting at one load is a trial, for all alike.

    a row for each case: the best, what ours and the rivals reached, and in how many trials
    then one line: {"share_of_best_min": ..., "share_of_best_median": ..., "trials_max": ..., "rivals": ...}

A rival's share is what it has with as many trials as ours made; its trials are how many it needs for the
share that ours has. Ours proves its choice in runs in turns with the defaults, which its trials include;
rivals take their best run's word for it.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import msgspec

from bench.tune.cases import ASKED, case_of
from bench.tune.ours import Tuned, tune
from bench.tune.rivals import RIVALS, SEEDED, Climb, play
from bench.tune.truth import Server, Truth
from headrace.core.ports import Overrides

OFF = ((1.15, 0.88, 1.2, 0.85), (0.87, 1.14, 0.84, 1.18))
"""Factors on compute, weights, context and overhead, in turn from case to case."""
MOST_RUNS = 16
SEEDS = 3
PATIENCE = 60
"""Trials after which a rival is said never to get there."""
SLACK = 0.995
"""Of our share: capacities are told to 1 %."""


@dataclass(frozen=True, slots=True)
class Rivalled:
    share: float
    trials: float | None


@dataclass(frozen=True, slots=True)
class Row:
    """One case."""

    case: str
    best: Overrides
    best_value: float
    start_share: float
    chosen: Overrides
    verdict: str
    share: float
    trials: int
    simulated: int
    settings: int
    rivals: dict[str, Rivalled]


def main() -> None:
    options = parse_options()
    wanted = [each for each in ASKED if not options.only or "/".join(each) in options.only]
    rows = read_rows(options.record)
    missing = [each for each in wanted if f"{each[0]}, {each[1]}" not in rows]
    with ProcessPoolExecutor(options.workers, get_context("spawn")) as pool:
        for row in pool.map(one_case, missing):
            rows[row.case] = row
            keep(row, options.record)
            print_row(row)
    print_totals(list(rows.values()))
    if options.json:
        print(json.dumps(to_json(list(rows.values()))))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.tune", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", nargs="*", metavar="WORKLOAD/TARGET", help="such as code/l4 (default: all)")
    parser.add_argument("--record", type=Path, help="JSON lines of rows: those there are not made again")
    parser.add_argument("--workers", type=int, default=2, help="cases at once (default 2)")
    parser.add_argument("--json", action="store_true", help="end with one JSON line")
    return parser.parse_args()


def one_case(which: tuple[str, str]) -> Row:
    truth = Truth.of(case_of(*which))
    best, best_value = truth.best()
    place = list(ASKED).index(which)
    tuned = tune(truth, OFF[place % len(OFF)], seed=place, most_runs=MOST_RUNS)
    share = truth.value(tuned.chosen) / best_value
    return Row(
        case=truth.case.name,
        best=best,
        best_value=best_value,
        start_share=truth.value({}) / best_value,
        chosen=tuned.chosen,
        verdict=tuned.conclusion.verdict,
        share=share,
        trials=len(tuned.runs),
        simulated=tuned.conclusion.simulated,
        settings=len(truth.grid()),
        rivals={name: rivalled(name, truth, tuned, share * best_value, best_value) for name in RIVALS},
    )


def rivalled(name: str, truth: Truth, tuned: Tuned, our_value: float, best_value: float) -> Rivalled:
    """With the same number of trials, and until the same quality; medians where chance decides."""
    seeds = range(SEEDS if name in SEEDED else 1)
    climbs = [play(RIVALS[name], Server(truth, 1000 + seed, most=PATIENCE), seed) for seed in seeds]
    shares = [value_after(truth, climb, len(tuned.runs)) / best_value for climb in climbs]
    needed = sorted(trials_until(truth, climb, SLACK * our_value) for climb in climbs)
    middle = median(needed)
    return Rivalled(median(shares), None if middle > PATIENCE else middle)


def value_after(truth: Truth, climb: Climb, trials: int) -> float:
    """Of what it holds for the best then; the defaults before it has anything."""
    held = [overrides for runs, overrides in climb.history if runs <= trials]
    return truth.value(held[-1] if held else {})


def trials_until(truth: Truth, climb: Climb, value: float) -> float:
    """To hold such a setting for the best, at some time; beyond all patience if never."""
    return next(
        (float(runs) for runs, overrides in climb.history if truth.value(overrides) >= value),
        float(PATIENCE + 1),
    )


def print_row(row: Row) -> None:
    print(f"\n{row.case}: best of {row.settings} {words(row.best)}, the defaults reach {row.start_share:.0%}")
    print(f"  ours       {row.share:6.1%} in {row.trials:3} trials, {row.verdict}: {words(row.chosen)}")
    for name, found in row.rivals.items():
        needs = f"more than {PATIENCE}" if found.trials is None else f"{found.trials:g}"
        print(f"  {name:10} {found.share:6.1%} in {row.trials:3} trials; for the same {needs}")
    sys.stdout.flush()


def words(overrides: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in overrides.items()) or "the defaults"


def print_totals(rows: Sequence[Row]) -> None:
    print(f"\n{len(rows)} cases     least   median share   trials for the same: median, most")
    for name, shares, trials in totals(rows):
        told = [each if each is not None else float(PATIENCE + 1) for each in trials]
        print(f"  {name:10} {min(shares):7.1%} {median(shares):10.1%} {median(told):20g} {max(told):6g}")


def totals(rows: Sequence[Row]) -> list[tuple[str, Sequence[float], Sequence[float | None]]]:
    ours = ("ours", [row.share for row in rows], [float(row.trials) for row in rows])
    others = [
        (name, [row.rivals[name].share for row in rows], [row.rivals[name].trials for row in rows])
        for name in RIVALS
    ]
    return [ours, *others]


def to_json(rows: Sequence[Row]) -> dict[str, object]:
    shares = [row.share for row in rows]
    rivals = {
        name: {
            "share_of_best_min": round(min(reached), 4),
            "share_of_best_median": round(median(reached), 4),
            "trials_for_same_median": median(PATIENCE + 1 if each is None else each for each in trials),
            "never_the_same": sum(each is None for each in trials),
        }
        for name, reached, trials in totals(rows)[1:]
    }
    return {
        "share_of_best_min": round(min(shares), 4),
        "share_of_best_median": round(median(shares), 4),
        "trials_max": max(row.trials for row in rows),
        "rivals": rivals,
    }


def read_rows(path: Path | None) -> dict[str, Row]:
    if path is None or not path.exists():
        return {}
    found = [msgspec.json.decode(line, type=Row) for line in path.read_text().splitlines()]
    return {row.case: row for row in found}


def keep(row: Row, path: Path | None) -> None:
    if path is not None:
        with path.open("a") as file:
            file.write(json.dumps(asdict(row)) + "\n")


if __name__ == "__main__":
    main()
