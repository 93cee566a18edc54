"""Whether the doctor names what is wrong with a live server: `python -m bench.faults --target embedded|vllm`.

Ten faults are made on purpose, one after the other, and `headrace doctor URL LOG --for 20s` looks at each;
then a healthy server must get a clean bill. Faults that need the same settings share a server.

a line a fault, a table, then with --json as the last line:
{"embedded": {"right": 11, "of": 11, "healthy_clean": true, "wrong": [], "disturbed": []}}

`disturbed` names faults during which others took more than 0.35 of a core and the server's threads had to
wait for one, three times over: do those again on a quieter machine. With --record FILE.jsonl the runs of
several calls count together, the last one of each fault.
Exit code 1 if one is wrong. Linux only. vLLM is taken from .vllm, which `make vllm` makes.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.faults.judging import Row, result
from bench.faults.making import Look, made
from bench.faults.scenarios import FAULTS
from bench.faults.servers import INSTALLATION, KINDS

LOOK_S = 20.0

console = Console(highlight=False, width=None if sys.stdout.isatty() else 150)


def main() -> int:
    options = _options()
    record = Record(options.record)
    for target in list(KINDS) if options.target == "both" else [options.target]:
        for row in made(target, options.only, Look(options.for_s, options.keep)):
            record.add(row)
            _tell(row)
    _print(record.rows)
    if options.json:
        print(json.dumps(result(record.rows)))
    return 0 if all(row.right for row in record.rows) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.faults",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--target", choices=[*KINDS, "both"], default="embedded")
    parser.add_argument("--only", metavar="NAME,NAME", help=f"of: {', '.join(FAULTS)}")
    parser.add_argument("--for", dest="for_s", type=float, default=LOOK_S, help="of the doctor's look  [20]")
    parser.add_argument("--record", type=Path, metavar="FILE", help="where parts join")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="answers, and pages of /metrics")
    parser.add_argument("--json", action="store_true", help="end with one JSON line")
    options = parser.parse_args()
    options.only = [name.strip() for name in options.only.split(",")] if options.only else list(FAULTS)
    if unknown := [name for name in options.only if name not in FAULTS]:
        parser.error(f"no fault is called {unknown[0]!r}; there are: {', '.join(FAULTS)}")
    if options.target != "embedded" and not INSTALLATION.exists:
        parser.error(f"{INSTALLATION.folder} has no vLLM: `make vllm` builds its environment")
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
    return options


class Record:
    """The last row of each fault. With a path also kept there; what the file holds already counts."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._rows: dict[tuple[str, str], Row] = {}
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                self._put(Row(**json.loads(line)))

    @property
    def rows(self) -> list[Row]:
        return list(self._rows.values())

    def add(self, row: Row) -> None:
        self._put(row)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(row)) + "\n")

    def _put(self, row: Row) -> None:
        self._rows[row.target, row.fault] = row


def _tell(row: Row) -> None:
    said = "right" if row.right else f"WRONG ({row.why})"
    noise = f", others took {row.others_cores:.2f} cores" if row.is_disturbed else ""
    print(f"{row.target} {row.fault}: {said}, {row.took_s:.0f} s{noise}", file=sys.stderr, flush=True)


def _print(rows: list[Row]) -> None:
    table = Table("server", "fault", "what was done", "the doctor first", "also", "right", "s")
    for row in rows:
        right = "yes" if row.right else f"no: {row.why}"
        done = FAULTS[row.fault].done
        table.add_row(row.target, row.fault, done, row.first, ", ".join(row.also), right, f"{row.took_s:.0f}")
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
