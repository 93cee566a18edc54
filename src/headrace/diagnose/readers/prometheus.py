"""A Prometheus server's answer to a range query, as series by instance and engine.

query() -> /api/v1/query_range -> read_range -> Evidence, like pages of /metrics in order
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping

import msgspec

from headrace.core.errors import BadInput
from headrace.diagnose.evidence import Evidence
from headrace.diagnose.readers.metrics import joined, read_page
from headrace.diagnose.readers.text import plain

POINTS = 120
"""Enough to tell a peak from a steady load; Prometheus refuses more than 11,000."""
_NAMES = (
    "num_requests_running",
    "num_requests_waiting",
    "num_requests_waiting_by_reason",
    "kv_cache_usage_perc",
    "gpu_cache_usage_perc",
    "num_preemptions_total",
    "prompt_tokens_total",
    "prompt_tokens_by_source_total",
    "generation_tokens_total",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "iteration_tokens_total_count",
    "time_to_first_token_seconds_sum",
    "time_to_first_token_seconds_count",
    "request_queue_time_seconds_sum",
    "request_queue_time_seconds_count",
    "request_prefill_time_seconds_sum",
    "request_prefill_time_seconds_count",
    "inter_token_latency_seconds_sum",
    "inter_token_latency_seconds_count",
    "request_prompt_tokens_bucket",
    "request_generation_tokens_bucket",
    "request_success_total",
    "admission_rejections_total",
    "cache_config_info",
)


class _Series(msgspec.Struct):
    metric: dict[str, str]
    values: list[tuple[float, str]]


class _Data(msgspec.Struct):
    result: list[_Series]


class _Answer(msgspec.Struct):
    status: str
    data: _Data | None = None
    error: str = ""


def query() -> str:
    """The metrics that rules read, of every instance."""
    return f'{{__name__=~"vllm:(?:{"|".join(_NAMES)})"}}'


def read_range(body: bytes, where: str) -> Evidence:
    """Raises `BadInput` for what is no answer of Prometheus, or an empty one."""
    try:
        answer = msgspec.json.decode(body, type=_Answer)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{where} does not answer like Prometheus: {plain(str(error))[:200]}") from error
    if answer.status != "success" or answer.data is None:
        raise BadInput(f"{where}: {plain(answer.error)[:300] or answer.status}")
    if not answer.data.result:
        raise BadInput(
            f"{where} has no vllm: metrics in that time", "is it the right server? a longer --since?"
        )
    lines = defaultdict[float, list[str]](list)
    for series in answer.data.result:
        for at, line in _lines(series):
            lines[at].append(line)
    return joined([(at, read_page(page, where)) for at, page in sorted(lines.items())])


def _lines(series: _Series) -> Iterator[tuple[float, str]]:
    labels = dict(series.metric)
    name = labels.pop("__name__", "")
    # One engine of one pod is what a rule takes for a part of the whole.
    part = "/".join(labels[key] for key in ("pod", "instance", "engine") if key in labels)
    labels["engine"] = part
    written = ",".join(f'{key}="{_escaped(value)}"' for key, value in _kept(labels).items())
    for at, value in series.values:
        yield at, f"{name}{{{written}}} {value}"


def _kept(labels: Mapping[str, str]) -> Mapping[str, str]:
    return {key: value for key, value in labels.items() if key.isidentifier()}


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
