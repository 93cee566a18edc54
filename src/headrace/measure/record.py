"""Measurements as files: JSON lines, the only contract between programs.

    line 1    {"format": "headrace.measurement", "version": 2, "requests": 74, "target": …, "seed": …}
    line 2…   {"timeline": {…}}  or  {"failure": {…}}      one per request that was due

Version 1 had less to say, and is read still: what it lacks is not on record.

Written beside the file and moved into place when whole, so no reader ever sees half of one. Read
with the number of the line in every complaint; a file that lost its end is refused, not shortened.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from headrace.core.errors import BadInput
from headrace.core.measurement import ClientLoad, Load, Measurement, ServerMetrics
from headrace.core.timeline import Failure, Timeline
from headrace.core.whole_file import replace_file

FORMAT = "headrace.measurement"
VERSION = 2
READ_VERSIONS = (1, 2)


class _Mark(msgspec.Struct):
    """What every version of the header has: enough to tell whether the rest can be read."""

    format: str
    version: int


class _Header(msgspec.Struct, kw_only=True):
    format: str = FORMAT
    version: int = VERSION
    requests: int
    target: str
    model: str
    settings: dict[str, bool | int | float | str]
    workload: str
    seed: int
    duration_s: float
    versions: dict[str, str]
    load: Load = Load.OPEN
    warm_up_s: float = 0.0
    client: ClientLoad | None = None
    alone: tuple[Timeline, ...] = ()
    server: ServerMetrics | None = None
    shared_share: float = 0.0


class _Line(msgspec.Struct, omit_defaults=True):
    """One of the two. Their fields are those of core.timeline: a renamed field is a new version."""

    timeline: Timeline | None = None
    failure: Failure | None = None


_ENCODER = msgspec.json.Encoder()
_LINES = msgspec.json.Decoder(_Line)


def write(measurement: Measurement, path: Path) -> None:
    """Replace `path` by a record of `measurement`. Raises `BadInput` where nothing can be written."""
    replace_file(path, (line + b"\n" for line in _lines(measurement)))


def read(path: Path) -> Measurement:
    """Raises `BadInput` with the line that is wrong."""
    try:
        with path.open("rb") as file:
            header = _read_header(path, file.readline())
            results = tuple(_read_results(path, file, header.requests))
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from error
    return Measurement(
        target=header.target,
        model=header.model,
        settings=header.settings,
        workload=header.workload,
        seed=header.seed,
        duration_s=header.duration_s,
        results=results,
        versions=header.versions,
        load=header.load,
        warm_up_s=header.warm_up_s,
        client=header.client,
        alone=header.alone,
        server=header.server,
        shared_share=header.shared_share,
    )


def _lines(measurement: Measurement) -> Iterator[bytes]:
    yield _ENCODER.encode(
        _Header(
            requests=len(measurement.results),
            target=measurement.target,
            model=measurement.model,
            settings=measurement.settings,
            workload=measurement.workload,
            seed=measurement.seed,
            duration_s=measurement.duration_s,
            versions=measurement.versions,
            load=measurement.load,
            warm_up_s=measurement.warm_up_s,
            client=measurement.client,
            alone=measurement.alone,
            server=measurement.server,
            shared_share=measurement.shared_share,
        )
    )
    for result in measurement.results:
        is_timeline = isinstance(result, Timeline)
        yield _ENCODER.encode(_Line(timeline=result) if is_timeline else _Line(failure=result))


def _read_header(path: Path, line: bytes) -> _Header:
    hint = "`headrace bench --output FILE` writes such records"
    try:
        mark = msgspec.json.decode(line, type=_Mark)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}, line 1: not the head of a measurement: {error}", hint) from error
    if mark.format != FORMAT:
        raise BadInput(f"{path}, line 1: the format is {mark.format!r}, not {FORMAT!r}", hint)
    if mark.version not in READ_VERSIONS:
        raise BadInput(
            f"{path}, line 1: version {mark.version} of the format; this headrace reads 1 to {VERSION}",
            "read it with the headrace that wrote it",
        )
    try:
        header = msgspec.json.decode(line, type=_Header)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}, line 1: {error}", hint) from error
    if not line.endswith(b"\n"):
        raise _cut_off(path, 1, header.requests, 0)
    return header


def _read_results(path: Path, lines: Iterable[bytes], promised: int) -> Iterator[Timeline | Failure]:
    found = 0
    for number, line in enumerate(lines, start=2):
        if not line.endswith(b"\n"):
            raise _cut_off(path, number, promised, found)
        if found == promised:
            raise BadInput(f"{path}, line {number}: line 1 promises {promised} requests, and here is another")
        try:
            read_line = _LINES.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadInput(f"{path}, line {number}: {error}") from error
        result = read_line.timeline or read_line.failure
        if result is None:
            raise BadInput(f"{path}, line {number}: neither a timeline nor a failure")
        yield result
        found += 1
    if found < promised:
        raise _cut_off(path, found + 1, promised, found)


def _cut_off(path: Path, number: int, promised: int, found: int) -> BadInput:
    return BadInput(
        f"{path} ends in line {number}: line 1 promises {promised} requests, {found} are there",
        "it was cut off when copied; copy it again",
    )
