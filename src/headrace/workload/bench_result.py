"""Results of `vllm bench serve --save-result --save-detailed`: one JSON object, replayed as it was meant.

A request was due when it left less what it waited for the client's own `--max-concurrency`. One that
failed, or of which no token came, has no known length: 0.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from headrace.core.errors import BadInput
from headrace.workload.rows import Row, nanoseconds

MOST_BYTES = 1 << 30
_DETAILS = "run it again with --save-result --save-detailed"


class _Result(msgspec.Struct):
    """Columns, one entry a request."""

    input_lens: tuple[int, ...] = ()
    output_lens: tuple[int, ...] = ()
    start_times: tuple[float, ...] = ()
    queue_times: tuple[float, ...] = ()
    errors: tuple[str, ...] = ()


def looks_like_one(beginning: bytes) -> bool:
    return beginning.lstrip().startswith(b"{") and b'"num_prompts"' in beginning and b'"backend"' in beginning


def bench_result(path: Path, file: BinaryIO) -> Iterator[Row]:
    """In order of when they were due. Rows are counted from 1 instead of lines."""
    text = file.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        raise BadInput(f"{path} is larger than {MOST_BYTES} bytes", "split the run")
    try:
        result = msgspec.json.decode(text, type=_Result)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadInput(
            f"{path} is no result of `vllm bench serve`: {error}", "if it is cut off, copy it again"
        ) from error
    count = len(result.input_lens)
    if not (count and len(result.output_lens) == len(result.start_times) == count):
        raise BadInput(
            f"{path} has {count} input_lens, {len(result.output_lens)} output_lens and "
            f"{len(result.start_times)} start_times: no details of each request",
            _DETAILS,
        )
    waited = result.queue_times or (0.0,) * count
    errors = result.errors or ("",) * count
    if not len(waited) == len(errors) == count:
        raise BadInput(f"{path}: {len(waited)} queue_times and {len(errors)} errors for {count} requests")
    rows = [
        Row(
            number + 1,
            nanoseconds(path, number + 1, result.start_times[number] - waited[number], 1e9),
            result.input_lens[number],
            0 if errors[number] else result.output_lens[number],
        )
        for number in range(count)
    ]
    yield from sorted(rows, key=lambda row: row.at_ns)
