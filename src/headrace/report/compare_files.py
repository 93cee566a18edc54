"""A comparison for programs: one JSON object, or a row a figure for a spreadsheet. Times in seconds.

Comparison -> comparison_json -> {"a": …, "pairs": …, "differences": [{"figure": …, "ratio": …}, …], …}
Comparison -> write_comparison -> file
"""

import csv
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headrace.core.errors import BadInput
from headrace.core.measurement import Measurement
from headrace.measure.compare import pairs_to_decide
from headrace.report.compare import Comparison, headline


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """Only what JSON knows. `between` is None of too few pairs, `pairs_to_decide` where it is not known."""
    a, b = comparison.pairs[0]
    found = comparison.found
    return {
        "a": _server(a),
        "b": _server(b),
        "same_server": comparison.is_of_one_server,
        "workload": a.workload,
        "pairs": len(comparison.pairs),
        "seeds": [[side.seed for side in pair] for pair in comparison.pairs],
        "verdict": headline(comparison)[0].lower(),
        "differences": [
            asdict(each) | {"pairs_to_decide": pairs_to_decide(each, len(found))} for each in found
        ],
        "left_out": [asdict(each) for each in comparison.left_out],
        "valid": not comparison.invalid,
        "invalid_because": [f"{name}: {reason}" for name, reason in comparison.invalid],
    }


def _server(measurement: Measurement) -> dict[str, Any]:
    return {
        "target": measurement.target,
        "model": measurement.model,
        "versions": measurement.versions,
    }


def write_comparison(comparison: Comparison, path: Path) -> None:
    """Raises `BadInput` where nothing can be written."""
    rows = list(_rows(comparison))
    names = list(dict.fromkeys(name for row in rows for name in row))
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(rows)
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}") from error


def _rows(comparison: Comparison) -> Iterator[dict[str, Any]]:
    a, b = comparison.pairs[0]
    for each in comparison.found:
        low, high = each.between or (None, None)
        yield {
            "a_target": a.target,
            "b_target": b.target,
            "valid": not comparison.invalid,
            "class": each.request_class,
            "figure": each.figure,
            "a": each.a,
            "b": each.b,
            "ratio": each.ratio,
            "ratio_low": low,
            "ratio_high": high,
            "p": each.p,
            "verdict": each.verdict.value,
        } | {f"ratio_pair_{number}": ratio for number, ratio in enumerate(each.ratios, 1)}
