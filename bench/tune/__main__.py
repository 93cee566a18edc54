"""How near tuning comes to the best there is, and in how many runs: `python -m bench.tune [--json]`.

Twins stand for servers: an 8B model on an H100 and on an L4, six workloads on each. What is best there is
found by going through every setting of a grid. Then our search tunes the same server, with a twin of its
own whose costs are wrong by 10 to 20 % in four ways, and so do others (bench/tune/rivals.py), each of their
runs off by chance as a server's are. One run of one setting at one load is a trial, for all alike.

    a row for each case: the best, what ours and the rivals reached, and in how many trials
    then one line: {"share_of_best_min": ..., "share_of_best_median": ..., "trials_max": ..., "rivals": ...}

A rival's share is what it has with as many trials as ours made; then, how many it needs for the share that
ours has, and what it has in the end. Ours proves its choice in runs in turns with the defaults, which its
trials include; rivals take their best run's word for it.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from math import inf
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import msgspec

from bench.tune.cases import ASKED
from bench.tune.rivals import RIVALS
from bench.tune.rows import PATIENCE, Rivalled, Row, one_case


def main() -> None:
    options = parse_options()
    wanted = [each for each in ASKED if not options.only or "/".join(each) in options.only]
    rows = read_rows(options.record)
    missing = [each for each in wanted if f"{each[0]}, {each[1]}" not in rows]
    with ProcessPoolExecutor(options.workers, get_context("spawn")) as pool:
        for row in pool.map(partial(one_case, memory=options.memory), missing):
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
    parser.add_argument(
        "--memory", type=Path, help="file of what twins said: nothing there is simulated again"
    )
    parser.add_argument("--workers", type=int, default=2, help="cases at once (default 2)")
    parser.add_argument("--json", action="store_true", help="end with one JSON line")
    return parser.parse_args()


def print_row(row: Row) -> None:
    print(f"\n{row.case}: best of {row.settings} {words(row.best)}, the defaults reach {row.start_share:.0%}")
    print(f"  ours       {row.share:6.1%} in {row.trials:3} trials, {row.verdict}: {words(row.chosen)}")
    for name, found in row.rivals.items():
        needs = (
            f"not within {PATIENCE} trials" if found.trials is None else f"the same after {found.trials:g}"
        )
        end = f"{found.end_share:.1%} after {found.end_trials}"
        print(f"  {name:10} {found.share:6.1%} in {row.trials:3} trials; {needs}; {end}")
    sys.stdout.flush()


def words(overrides: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in overrides.items()) or "the defaults"


def print_totals(rows: Sequence[Row]) -> None:
    print(f"\n{len(rows)} cases     share: least  median    trials for the same: median   not in {PATIENCE}")
    for name, shares, trials in totals(rows):
        without = sum(each is None for each in trials)
        middle = median(inf if each is None else each for each in trials)
        told = "none" if middle == inf else f"{middle:g}"
        print(f"  {name:16} {min(shares):9.1%} {median(shares):7.1%} {told:>28} {without:11}")


def totals(rows: Sequence[Row]) -> list[tuple[str, Sequence[float], Sequence[float | None]]]:
    ours = ("ours", [row.share for row in rows], [float(row.trials) for row in rows])
    others = [
        (name, [row.rivals[name].share for row in rows], [row.rivals[name].trials for row in rows])
        for name in RIVALS
    ]
    return [ours, *others]


def to_json(rows: Sequence[Row]) -> dict[str, object]:
    shares = [row.share for row in rows]
    rivals = {name: _rival_json([row.rivals[name] for row in rows]) for name in RIVALS}
    return {
        "share_of_best_min": round(min(shares), 4),
        "share_of_best_median": round(median(shares), 4),
        "trials_max": max(row.trials for row in rows),
        "rivals": rivals,
    }


def _rival_json(found: Sequence[Rivalled]) -> dict[str, float | None]:
    middle = median(inf if each.trials is None else each.trials for each in found)
    return {
        "share_of_best_min": round(min(each.share for each in found), 4),
        "share_of_best_median": round(median(each.share for each in found), 4),
        "trials_for_same_median": None if middle == inf else middle,
        "not_within_patience": sum(each.trials is None for each in found),
        "end_share_median": round(median(each.end_share for each in found), 4),
        "end_trials_median": median(each.end_trials for each in found),
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
