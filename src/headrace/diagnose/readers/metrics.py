"""A /metrics page, of a file or a live server, as readings.

    lines -> read_page -> Evidence: one value for each name; pages joined with `|` become series

Series of several engines (data-parallel ranks) stand singly, as name{engine=1}, and together under the bare
name: counts are added, shares averaged. Old names of a metric stay as they are: `AnyName` knows them.
"""

import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files

from headrace.diagnose.evidence import Evidence, Flag, Reading, Value
from headrace.diagnose.readers.flags import flag_value
from headrace.diagnose.readers.text import plain
from headrace.scrape.exposition import Page, Sample, samples_of

_SPLIT_BY = ("reason", "source", "finished_reason", "le", "sleep_state", "status", "position", "stage")
"""Labels that mean different things, not different parts of one thing."""
_CONFIG = ("vllm:cache_config_info", "headrace:settings_info")
_ENGINE_OF = {"vllm:": "vllm", "headrace:": "headrace", "sglang:": "sglang", "llamacpp:": "llama.cpp"}
_MOST_ENGINES = 512


@cache
def renames() -> Mapping[str, tuple[str, str]]:
    """Old name -> (new name or formula or "", first version without the old one)."""
    return {entry["old"]: (entry["new"], entry["gone"]) for entry in _table()["rename"]}


@cache
def _table() -> Mapping[str, list[Mapping[str, str]]]:
    return tomllib.loads(files("headrace.diagnose").joinpath("data/metrics.toml").read_text("utf-8"))


def is_page(head: str) -> bool:
    """Whether a text begins like a /metrics page."""
    return any(
        line.startswith(("# HELP ", "# TYPE ", *_ENGINE_OF)) and " " in line
        for line in head.splitlines()[:200]
    )


def read_page(lines: Iterable[str], where: str) -> Evidence:
    page = samples_of(lines, tuple(str(prefix) for prefix in _table()["keep"]))
    readings = {reading.name: reading for reading in _readings(page, where)}
    flags = dict(_config(page, where))
    return Evidence(
        engine=_engine(page),
        version=_version(page),
        flags={name: flag for name, flag in flags.items() if flag.value not in ("None", "")},
        readings=readings,
        notes=tuple(_notes(page, where)),
        sources=(where,),
    )


def _engine(page: Page) -> str:
    for sample in page.samples:
        for prefix, engine in _ENGINE_OF.items():
            if sample.name.startswith(prefix):
                return engine
    return ""


def _version(page: Page) -> str:
    return next(
        (
            plain(s.labels["version"])
            for s in page.samples
            if s.name == "vllm:build_info" and "version" in s.labels
        ),
        "",
    )


def _readings(page: Page, where: str) -> Iterable[Reading]:
    groups = defaultdict[str, list[float]](list)
    by_engine = defaultdict[str, list[float]](list)
    engines = {s.labels["engine"] for s in page.samples if "engine" in s.labels}
    for sample in page.samples:
        if sample.name in _CONFIG or sample.name.endswith("_created"):
            continue
        name = _full_name(sample)
        groups[name].append(sample.value)
        if 1 < len(engines) <= _MOST_ENGINES and "engine" in sample.labels and name == sample.name:
            by_engine[f"{name}{{engine={plain(sample.labels['engine'])}}}"].append(sample.value)
    for name, values in groups.items():
        shares = name.endswith(("_perc", "_usage")) and len(values) > 1
        yield Reading(name, (sum(values) / len(values) if shares else sum(values),), where)
    for name, values in by_engine.items():
        yield Reading(name, (sum(values),), where)


def _full_name(sample: Sample) -> str:
    parts = [f"{key}={plain(sample.labels[key])[:80]}" for key in _SPLIT_BY if key in sample.labels]
    return f"{sample.name}{{{','.join(parts)}}}" if parts else sample.name


def _config(page: Page, where: str) -> Iterable[tuple[str, Flag]]:
    """The labels of cache_config_info: what the server runs with, whoever set it."""
    for sample in page.samples:
        if sample.name in _CONFIG:
            for key, text in sample.labels.items():
                if not key.startswith("_") and key not in {"engine", "model_name"}:
                    yield key.replace("_", "-"), Flag(_number(text), f"{where} {sample.name}")


def _number(text: str) -> Value | bool:
    return flag_value(text)


def _notes(page: Page, where: str) -> Iterable[str]:
    if not page.samples:
        yield f"{where} holds no metrics of a server we know"
    if page.malformed:
        yield f"{where}: {page.malformed} lines are no samples and were skipped (is the page cut off?)"
    if page.left_out:
        yield f"{where}: {page.left_out} samples beyond {len(page.samples)} were left out"
