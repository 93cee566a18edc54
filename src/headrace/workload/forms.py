"""The forms in which workloads come, told apart by how a file begins.

    beginning --form_of--> TraceFormat --ROWS--> Row, Row, ...      Every complaint names its line.

A result of `vllm bench serve` is one object and ServeGen's a folder: `readers.py` knows these two.
"""

from enum import StrEnum
from pathlib import Path

import msgspec

from headrace.core.errors import BadInput
from headrace.workload.csv_forms import AZURE_HEAD, azure, burstgpt, is_burstgpt
from headrace.workload.json_forms import llmservingsim, measurement, mooncake
from headrace.workload.own_form import own_rows
from headrace.workload.request_logs import is_request_log, request_log
from headrace.workload.vllm_log import is_vllm_log, vllm_log

KNOWN = (
    "known are our own (`headrace workload generate`), Azure's and BurstGPT's CSV, JSON lines of Mooncake "
    "and LLMServingSim, folders of ServeGen, detailed results of `vllm bench serve`, records of "
    "`headrace bench`, request logs in JSON lines and vLLM's server log; docs/workloads.md shows each"
)


class TraceFormat(StrEnum):
    """Whose form a file has."""

    HEADRACE = "headrace"
    AZURE = "azure"
    BURSTGPT = "burstgpt"
    MOONCAKE = "mooncake"
    LLMSERVINGSIM = "llmservingsim"
    SERVEGEN = "servegen"
    VLLM_BENCH = "vllm-bench"
    MEASUREMENT = "measurement"
    REQUEST_LOG = "request-log"
    VLLM_LOG = "vllm-log"


_KEYS = {
    frozenset({"timestamp", "input_length", "output_length"}): TraceFormat.MOONCAKE,
    frozenset({"arrival_time_ns", "input_toks", "output_toks"}): TraceFormat.LLMSERVINGSIM,
    frozenset({"format", "version", "requests"}): TraceFormat.MEASUREMENT,
    frozenset({"format", "version"}): TraceFormat.HEADRACE,
}

ROWS = {
    TraceFormat.HEADRACE: own_rows,
    TraceFormat.AZURE: azure,
    TraceFormat.BURSTGPT: burstgpt,
    TraceFormat.MOONCAKE: mooncake,
    TraceFormat.LLMSERVINGSIM: llmservingsim,
    TraceFormat.MEASUREMENT: measurement,
}

LOGS = {TraceFormat.REQUEST_LOG: request_log, TraceFormat.VLLM_LOG: vllm_log}
"""Their prefixes have no names yet."""


def form_of(path: Path, line: bytes, beginning: bytes = b"") -> TraceFormat:
    """Told from its first line; a server's log may begin with anything, so it is told from more of it."""
    if line.startswith(AZURE_HEAD):
        return TraceFormat.AZURE
    if is_burstgpt(line):
        return TraceFormat.BURSTGPT
    try:
        names = msgspec.json.decode(line, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError):
        names = dict[str, object]()
    for needed, form in _KEYS.items():
        if needed <= names.keys():
            return form
    if is_request_log(names):
        return TraceFormat.REQUEST_LOG
    if is_vllm_log(beginning) or is_vllm_log(line):
        return TraceFormat.VLLM_LOG
    seen = line[:60].decode(errors="replace")
    raise BadInput(f"{path}, line 1: not a workload: {seen!r}", KNOWN)
