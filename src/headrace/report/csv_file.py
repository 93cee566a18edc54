"""A measurement as a spreadsheet takes it: one row a class, numbers in seconds.

Measurement -> write_csv -> file
"""

import csv
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headrace.core.errors import BadInput
from headrace.core.measurement import Measurement
from headrace.core.objective import Objectives
from headrace.measure.goodput import goodput
from headrace.measure.intervals import by_class
from headrace.measure.summary import summarise
from headrace.measure.validity import check

LATENCIES = ("ttft_s", "itl_s", "tpot_s", "e2e_s")


def write_csv(measurement: Measurement, path: Path, objectives: Objectives | None = None) -> None:
    """Raises `BadInput` where nothing can be written."""
    rows = list(_rows(measurement, objectives))
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)))
            writer.writeheader()
            writer.writerows(rows)
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}") from error


def _rows(measurement: Measurement, objectives: Objectives | None) -> Iterator[dict[str, Any]]:
    intervals = by_class(measurement)
    good = goodput(measurement, objectives) if objectives else {}
    is_valid = check(measurement).is_valid
    for name, summary in summarise(measurement).items():
        row: dict[str, Any] = {
            "target": measurement.target,
            "model": measurement.model,
            "workload": measurement.workload,
            "valid": is_valid,
            "class": name,
            "requests": summary.requests,
            "failed": summary.failed,
            "answers_per_s": summary.throughput_rps,
            "output_tokens_per_s": summary.output_tokens_per_s,
        }
        if name in good:
            row |= {"goodput_per_s": good[name].per_s, "attainment": good[name].attainment}
        for latency in LATENCIES:
            found = getattr(summary, latency)
            row |= {f"{latency}_{part}": value for part, value in asdict(found).items()} if found else {}
            for percentile, (low, high) in intervals.get(name, {}).get(latency, {}).items():
                row |= {f"{latency}_{percentile}_low": low, f"{latency}_{percentile}_high": high}
        yield row
