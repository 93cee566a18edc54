"""Tables that people paste: `| concurrency | TTFT (ms) |` and rows of numbers, or phases and their times.

lines -> tables_of -> [Table(header, rows)] -> readings: sweep:ttft_ms [...], startup:weight_load_s 63
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from headrace.diagnose.evidence import Reading

MOST_ROWS = 200
_NUMBER = re.compile(
    r"^[~≈<>]?\s*(\d+(?:,\d{3})*(?:\.\d+)?)\s*(k|%|ms|s|secs?|seconds?|min|minutes?|x|tok/s|req/s)?$"
)
_UNITS = {"k": 1e3, "min": 60.0, "minutes": 60.0, "minute": 60.0}
_RULE = re.compile(r"^[\s|:+=-]*$")
_PHASES = re.compile(r"phase|stage|step|part|what", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Table:
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables_of(lines: Iterable[str]) -> Iterator[Table]:
    """Runs of lines with as many cells; the first is the header."""
    run = list[tuple[str, ...]]()
    for line in (*lines, ""):
        cells = tuple(cell.strip(" `*") for cell in line.strip().strip("|").split("|"))
        if len(cells) >= 2 and (not run or len(cells) == len(run[0])) and len(run) < MOST_ROWS:
            if not _RULE.match(line):
                run.append(cells)
            continue
        if len(run) >= 3 and not any(map(_number, run[0])):
            yield Table(run[0], tuple(run[1:]))
        run = [cells] if len(cells) >= 2 else []


def readings_of(table: Table, where: str) -> Iterator[Reading]:
    """Columns of numbers as a sweep; a column of names beside one of times as the parts of a start."""
    columns = list(zip(*table.rows, strict=True))
    if len(columns) == 2 and _PHASES.search(table.header[0]) and not any(map(_number, columns[0])):
        for name, time in zip(*columns, strict=True):
            if (value := _number(time)) is not None:
                full = f"startup:{_plain(name)}_s"
                yield Reading(full, (value,), where)
        return
    for title, cells in zip(table.header, columns, strict=True):
        values = [_number(cell) for cell in cells]
        known = tuple(value for value in values if value is not None)
        if len(set(known)) == 1 and len(known) == len(cells) and "concurr" in title.lower():
            yield Reading("workload:client_concurrency", known[:1], where)
        elif len(known) == len(cells):
            unit = _unit_of(title, cells)
            plain = _plain(title)
            name = f"sweep:{plain.removesuffix('_ms')}{unit}" if unit else f"sweep:{plain}"
            yield Reading(name, known, where)


def _number(cell: str) -> float | None:
    found = _NUMBER.match(cell.strip().lower())
    return float(found[1].replace(",", "")) * _UNITS.get(found[2] or "", 1.0) if found else None


def _unit_of(title: str, cells: Sequence[str]) -> str:
    """The unit that stands in the cells and not in the title."""
    if re.search(r"\bm?s\b|sec|tok|req|/s|%", title.lower()):
        return ""
    return next(
        (f"_{unit}" for unit in ("ms", "s") if all(cell.lower().endswith(f" {unit}") for cell in cells)), ""
    )


_WORDS = (
    (r"\breq(?:uests?)?/s\w*", "requests_per_s"),
    (r"\btok(?:ens?)?/s\w*", "tok_s"),
    (r"\bisl\b|\binput(?: tokens| length)?\b", "input_tokens"),
    (r"\bosl\b", "output_tokens"),
    (r"^out(?:put)? tok_s", "output_tok_s"),
)  # fmt: skip


def _plain(title: str) -> str:
    """TTFT p50 (ms) as ttft_p50_ms; a latency without its unit is in ms, as benchmarks print it."""
    text = title.lower()
    for words, name in _WORDS:
        text = re.sub(words, name, text)
    text = re.sub(r"[^a-z0-9]+", "_", text).strip("_")
    bare = re.search(r"^(?:mean_|median_)?(?:ttft|tpot|itl)(?:_(?:p\d+|mean|median))?$", text)
    return text + "_ms" if bare else text
