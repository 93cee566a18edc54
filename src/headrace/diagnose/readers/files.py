"""Any file a person may give: what it is, told from its beginning, and what it says.

Measurements of ours are not for this room to read (they belong to `measure`): `is_measurement` finds them.
"""

import re
from dataclasses import replace
from pathlib import Path

from headrace.core.errors import BadInput
from headrace.diagnose.evidence import Evidence
from headrace.diagnose.readers.flags import read_commands, read_manifest, serving_engine
from headrace.diagnose.readers.incident import is_incident, read_incident, read_json
from headrace.diagnose.readers.log import read_log
from headrace.diagnose.readers.metrics import is_page, joined_pages, read_page, split_pages
from headrace.diagnose.readers.report import is_report, read_report
from headrace.diagnose.readers.results import is_bench_result, read_bench_result
from headrace.diagnose.readers.text import Source

MOST_STRUCTURED = 64 << 20
"""Bytes of a JSON, YAML or flags file; logs may be of any size."""
MOST_PAGE = 256 << 20
LONGEST_HEAD = 1 << 16
"""Bytes that tell what a file is: what is longer and no page is a log, whatever it begins with."""
_SCRIPT_LINES = 400
_LOG_LINE = re.compile(
    r"(?m)^(?:\([A-Za-z_]+[^)]*\) )?(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b|^\[?\d{4}-\d\d-\d\d|Traceback"
    r"|error: (?:unrecognized arguments|argument -)|^[\w.]*(?:Error|Exception): "
)
_OUR_LOG = re.compile(r"(?m)^headrace: (?:loading|converting) |^serving \S+ at https?://")
"""It begins with what our server says of itself, in words and a table, which is no report of a person's."""
_JSON_LINES = re.compile(r"(?m)^\{.*\}$\n\{")
"""A log whose lines are wrapped in JSON, as container run-times keep them."""
_YAML = re.compile(r"(?m)^(?:apiVersion|kind|services|containers|servingEngineSpec|spec|args|command|image):")


def is_measurement(path: Path) -> bool:
    return '"headrace.measurement"' in Source(path).head(4096)


def read_file(path: Path, name: str = "") -> Evidence:
    """`name`: what to call it, if not by the file's name. Raises `BadInput` for what cannot be read or
    is nothing we know.
    """
    source = Source(path, name)
    if not path.is_file():
        raise BadInput(f"{path} is no file", "give a file, or an address as http://localhost:8000")
    found = _read(source, path.stat().st_size)
    if not source.cut:
        return found
    cut = f"{source.name} breaks off inside its gzip in {source.cut_after}: what came before was read"
    return replace(found, notes=(*found.notes, cut))


def _read(source: Source, size: int) -> Evidence:
    head = source.head()
    if not head.strip():
        raise BadInput(f"{source.name} is empty")
    ours = _OUR_LOG.search(head) is not None
    logged = ours or _LOG_LINE.search(head) is not None
    if head.lstrip().startswith("{") and not _LOG_LINE.search(head[:200]) and not _JSON_LINES.search(head):
        return _read_json_file(source, source.name)
    spoken = not ours and len(head) < LONGEST_HEAD and is_report(head)
    if is_page(head) and not logged and not spoken:
        return _read_pages(source, size)
    if _YAML.search(head) and not logged and not spoken:
        return read_manifest(source.whole(MOST_STRUCTURED), source.name)
    found = _read_commands(source, head) if not logged else Evidence()
    if spoken:
        found = read_report(source.whole(MOST_STRUCTURED), source.name) | found
    elif not found.sources:
        found = read_log(source)
    if found.engine or found.version or found.flags or found.readings or found.counts:
        return replace(found, sources=(source.name,))
    raise BadInput(
        f"nothing in {source.name} is of a server that we know",
        "a log of vLLM, SGLang or llama.cpp from its start, a page of /metrics, or a command in quotes",
    )


def _read_pages(source: Source, size: int) -> Evidence:
    """Scrapes that were written one after the other are a series. A page of a million labels is read line by
    line, so that it never is one string twice over.
    """
    if size > MOST_STRUCTURED // 8:
        return read_page(_lines(source), source.name)
    pages = list(split_pages(_lines(source)))
    return joined_pages(pages, source.name)


def _read_commands(source: Source, head: str) -> Evidence:
    """Of a script or `ps` output; empty for what is neither."""
    if serving_engine(head) and head.count("\n") < _SCRIPT_LINES:
        return read_commands(source.whole(MOST_STRUCTURED), source.name)
    return Evidence()


def _lines(source: Source):
    rest = b""
    for chunk in source.chunks():
        *lines, rest = (rest + chunk).split(b"\n")
        rest = rest[: 1 << 16]
        for line in lines:
            yield line[: 1 << 16].decode("utf-8", "replace")
    if rest:
        yield rest.decode("utf-8", "replace")


def _read_json_file(source: Source, name: str) -> Evidence:
    text = source.whole(MOST_STRUCTURED)
    if source.cut:
        raise BadInput(
            f"{name} breaks off inside its gzip in {source.cut_after}, and JSON is read whole or not at all",
            "copy the file again",
        )
    value = read_json(text, name)
    if is_bench_result(value):
        return read_bench_result(value, name)
    if is_incident(value):
        try:
            return read_incident(value, name)
        except RecursionError as error:
            raise BadInput(f"{name} is JSON in JSON in JSON, deeper than anybody writes") from error
    known = "a result of `vllm bench serve`, a measurement of ours, or an incident"
    raise BadInput(
        f"{name} is JSON of a kind we do not know", f"{known} with flags, metrics, log, hardware, workload"
    )
