"""What somebody wrote down of an incident, as JSON: flags, metrics, log lines, hardware, workload.

    {"engine": "vllm", "version": "0.11.0", "flags": {"max-num-seqs": 64},
     "metrics": {"vllm:num_requests_waiting": [3, 40], "client:ttft_p99_ms": 5200},
     "log": ["…"], "hardware": {"gpu": "H100"}, "workload": {"prompt_tokens": 8000}}

A list is a series, oldest first. `expected`, if there, is not read.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping

from headrace.core.errors import BadInput
from headrace.diagnose.evidence import Evidence, Flag, Reading, Value
from headrace.diagnose.messages import messages
from headrace.diagnose.readers.flags import named_flag
from headrace.diagnose.readers.log import read_lines
from headrace.diagnose.readers.text import plain

PARTS = ("flags", "metrics", "log", "hardware", "workload")
_LONGEST_TEXT = 2000


def read_json(text: str, where: str) -> Mapping[str, object]:
    """Raises `BadInput` for what is no JSON object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{where} is not JSON: {plain(str(error))[:200]}") from error
    if not isinstance(value, dict):
        raise BadInput(f"{where}: a JSON object was expected, not a {type(value).__name__}")
    return {str(key): part for key, part in value.items()}


def is_incident(value: Mapping[str, object]) -> bool:
    return any(part in value for part in PARTS) and "results" not in value


def read_incident(value: Mapping[str, object], where: str) -> Evidence:
    lines = value.get("log")
    log = read_lines(enumerate(_texts(lines), start=1), f"{where} log")
    quoted = _quoted(value.get("workload"), f"{where} workload")
    readings = dict[str, Reading]()
    for part, prefix in (("metrics", ""), ("hardware", "hardware:"), ("workload", "workload:")):
        for name, entry in _mapping(value.get(part)).items():
            full = plain(prefix + name)[:200]
            full, values = _one_spelling(full) if part == "metrics" else full, _values(entry)
            if part != "hardware":  # there 4090 is a name
                values = tuple(_number(each) for each in values)
            readings[full] = Reading(full, values, f"{where} {part}")
    if engine := _text(value.get("engine")):
        readings["hardware:engine"] = Reading("hardware:engine", (engine,), where)
    flags = dict[str, Flag]()
    for name, entry in _mapping(value.get("flags")).items():
        full, given = named_flag(
            re.sub(r"\s*\(.*", "", name), None if entry in (True, None, "") else str(entry)
        )
        flags[full] = Flag(given, f"{where} flags")
    told = Evidence(
        engine=_engine(_text(value.get("engine"))),
        version=_text(value.get("version")),
        flags=flags,
        readings=readings,
        is_report=True,
        sources=(where,),
    )
    return log | quoted | told


def _quoted(workload: object, where: str) -> Evidence:
    """Lines of a log that stand in what was told, of kinds that name their cause."""
    texts = (text for text in _mapping(workload).values() if isinstance(text, str) and len(text) >= _A_LINE)
    found = read_lines(enumerate(map(plain, texts), start=1), where)
    names_it = tuple(event for event in found.events if event.kind in _NAMES_IT or event.kind in messages())
    counts = {event.kind: found.counts[event.kind] for event in names_it}
    return Evidence(events=names_it, counts=counts)


_A_LINE = 24
"""Characters: no line that means something is shorter."""
_NAMES_IT = frozenset(
    {
        "kv_too_short",
        "no_blocks",
        "free_below_budget",
        "profile_drift",
        "unbalanced",
        "unknown_flag",
        "config_error",
    }
)
_ENGINES = (("sglang", "sglang"), ("llama", "llama.cpp"), ("headrace", "headrace"), ("vllm", "vllm"))


def _engine(text: str) -> str:
    """Of "vllm-ascend" and "vLLM V1" vllm: forks and plugins plan alike."""
    return next((name for part, name in _ENGINES if part in text.lower()), text)


def _text(value: object) -> str:
    return plain(value)[:80] if isinstance(value, str) else ""


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield from (plain(line) for line in value.splitlines())
    elif isinstance(value, list):
        for line in value:
            yield plain(str(line))[: 1 << 15]


_OWN_NAMES = ("vllm:", "sglang:", "headrace:", "llamacpp:", "promql:")
"""Names of a server's own metrics, which are spelt in one way."""
_WHOSE = (
    (
        r"(?:num_requests|num_preemptions|(?:gpu|kv)_cache_usage|prefix_cache|time_to_first_token_seconds)",
        "vllm:",
    ),
    (r"gpu_", "gpu:"),
    (r"(?:host|cpu)_", "host:"),
)
"""Whose number it is where no prefix says so; else the client's."""
_A_SECOND = re.compile(
    r"(?<![a-z])(?:tokens?|toks?)_?(?:/|per)_?s(?:ec(?:ond)?s?)?(?![a-z])|(?<![a-z])tps(?![a-z])"
)


def _one_spelling(name: str) -> str:
    """client:ttft_p50_ms of "ttft-p50 (ms)", …tok_s of "…tokens per second"."""
    if ":" not in name:
        name = next((prefix for stem, prefix in _WHOSE if re.match(stem, name)), "client:") + name
    prefix, colon, rest = name.rpartition(":")
    if name.startswith(_OWN_NAMES) or "{" in name:
        return name
    rest = re.sub(r"[\s\-()\[\]]+", "_", rest).strip("_")
    return prefix + colon + _A_SECOND.sub("tok_s", rest)


_WRITTEN = re.compile(r"[~≈]?\s*(-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[+-]?\d+)?)\s*%?", re.IGNORECASE)


def _number(value: Value) -> Value:
    """A number that was written as text: "5,200", "98 %", "~12"."""
    found = _WRITTEN.fullmatch(value.strip()) if isinstance(value, str) else None
    return float(found[1].replace(",", "")) if found else value


def _mapping(value: object) -> Mapping[str, object]:
    return {str(k): v for k, v in value.items()} if isinstance(value, dict) else {}


def _values(entry: object) -> tuple[Value, ...]:
    if isinstance(entry, list):
        return tuple(value for part in entry for value in _values(part))
    if isinstance(entry, dict):
        return tuple(v for key, part in entry.items() for v in (plain(str(key))[:80], *_values(part)))
    if isinstance(entry, bool):
        return (float(entry),)
    if isinstance(entry, int | float):
        # A whole number too large for a float is nothing that any server said.
        return (float(entry),) if abs(entry) < 1e300 and math.isfinite(entry) else ()
    return (plain(str(entry))[:_LONGEST_TEXT],) if entry is not None else ()
