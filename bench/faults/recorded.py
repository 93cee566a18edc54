"""What the doctor saw of a fault, kept for a test: `python -m bench.faults.recorded FOLDER > seen.jsonl`.

    FOLDER/embedded-healthy.pages.jsonl  ->  {"name": "embedded-healthy", "engine": ..., "readings": {...}}

FOLDER is what `python -m bench.faults --keep FOLDER` has written: a page a second. Of the last 20 s every
second page is taken, as the doctor does, and of each page the series that say anything.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.readers.metrics import joined, read_page

LOOK_S, EVERY = 20.0, 2
_DULL = (
    *("vllm:request_prefill_time_seconds_bucket", "vllm:request_queue_time_seconds_bucket"),
    *(
        "http_",
        "process_",
        "headrace:engine_process",
        "vllm:request_prefill_kv",
        "vllm:e2e_",
        "vllm:kv_block_",
        "vllm:request_time_per_output",
    ),
    *(
        f"vllm:request_{what}"
        for what in ("params", "inference", "decode", "generation", "max_num", "num_pre")
    ),
)


def main(folder: str) -> None:
    for path in sorted(Path(folder).glob("*.pages.jsonl")):
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        print(json.dumps({"name": path.name.removesuffix(".pages.jsonl")} | as_row(seen(rows))))


def seen(rows: Sequence[tuple[float, str]]) -> Evidence:
    """Of pages with their times, those that a doctor sees who looks at the end."""
    ends_at = rows[-1][0]
    taken = [(at, page) for at, page in rows if at >= ends_at - LOOK_S][::EVERY]
    return joined([(at, read_page(page.splitlines(), "/metrics")) for at, page in taken])


def as_row(e: Evidence) -> dict[str, Any]:
    told = {
        name: [round(value, 4) for value in reading.numbers]
        for name, reading in e.readings.items()
        if not name.startswith(_DULL) and (any(reading.numbers) or "{" not in name or "{le=" in name)
    }
    flags = {name: flag.value for name, flag in e.flags.items()}
    return {"engine": e.engine, "version": e.version, "flags": flags, "readings": told}


if __name__ == "__main__":
    main(sys.argv[1])
