"""A /metrics page, of a file or a live server, as readings.

    lines -> read_page -> Evidence: one value for each name; pages joined with `|` become series

Series of several engines (data-parallel ranks) stand singly, as name{engine=1}, and together under the bare
name: counts are added, shares averaged. Old names of a metric stay as they are: `AnyName` knows them.
"""

import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from itertools import pairwise

from headrace.diagnose.evidence import Evidence, Flag, Reading, Value, merged
from headrace.diagnose.readers.flags import flag_value
from headrace.diagnose.readers.text import plain
from headrace.scrape.exposition import Page, Sample, samples_of

_SPLIT_BY = (
    "cause",
    "budget",
    "reason",
    "source",
    "finished_reason",
    "le",
    "sleep_state",
    "status",
    "position",
    "stage",
)
"""Labels that mean different things, not different parts of one thing."""
_CONFIG = ("vllm:cache_config_info", "headrace:settings_info")
_ENGINE_OF = {"headrace:": "headrace", "vllm:": "vllm", "sglang:": "sglang", "llamacpp:": "llama.cpp"}
_MOST_ENGINES = 512


@cache
def renames() -> Mapping[str, tuple[str, str]]:
    """Old name -> (new name or formula or "", first version without the old one)."""
    return {entry["old"]: (entry["new"], entry["gone"]) for entry in _table()["rename"]}


@cache
def _table() -> Mapping[str, list[Mapping[str, str]]]:
    return tomllib.loads(files("headrace.diagnose").joinpath("data/metrics.toml").read_text("utf-8"))


_LINE_OF_A_PAGE = re.compile(rf"(?m)^(?:# (?:HELP|TYPE) \w|(?:{'|'.join(_ENGINE_OF)})\w+(?:\{{| [\d.]))")


def is_page(head: str) -> bool:
    """Whether a text begins like a /metrics page."""
    return _LINE_OF_A_PAGE.search(head) is not None


def is_sample(line: str) -> bool:
    """Whether a line is of a page: a sample of a server we know, or what a page says about one."""
    return line.startswith(("# HELP ", "# TYPE ")) or _SAMPLE.match(line) is not None


_SAMPLE = re.compile(rf"(?:{'|'.join(_ENGINE_OF)})\w+(?:\{{[^}}]*\}})? \S+$")


def pages_in(lines: Iterable[str], where: str) -> Evidence:
    """The pages among other lines, one after the other: where a sample comes again, the next one begins."""
    return joined_pages(list(split_pages(line for line in lines if is_sample(line))), where)


def joined_pages(pages: Sequence[Sequence[str]], where: str) -> Evidence:
    """In order of time; one page is itself."""
    together = merged(read_page(page, where) for page in pages)
    return replace(together, sources=together.sources[:1])


def split_pages(lines: Iterable[str]) -> Iterator[list[str]]:
    page, seen = list[str](), set[str]()
    for line in lines:
        name = line.rpartition(" ")[0]
        if not line.startswith("#") and name in seen:
            yield page
            page, seen = [], set()
        page.append(line)
        seen.add(name)
    if page:
        yield page


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
    """Ours exports vLLM's names beside its own, so its own are looked for first."""
    names = {sample.name.partition(":")[0] + ":" for sample in page.samples}
    return next((engine for prefix, engine in _ENGINE_OF.items() if prefix in names), "")


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


_BUDGETS = ("headrace:max_num_batched_tokens", "headrace:max_num_seqs")


def _config(page: Page, where: str) -> Iterable[tuple[str, Flag]]:
    """The labels of cache_config_info: what the server runs with, whoever set it."""
    for sample in page.samples:
        if sample.name in _BUDGETS:
            yield (
                sample.name.partition(":")[2].replace("_", "-"),
                Flag(sample.value, f"{where} {sample.name}"),
            )
        if sample.name in _CONFIG:
            for key, text in sample.labels.items():
                if not key.startswith("_") and key not in {"engine", "model_name"}:
                    yield key.replace("_", "-"), Flag(flag_value(text), f"{where} {sample.name}")


def _notes(page: Page, where: str) -> Iterable[str]:
    if not page.samples:
        yield f"{where} holds no metrics of a server we know"
    if page.malformed:
        yield f"{where}: {page.malformed} lines are no samples and were skipped (is the page cut off?)"
    if page.left_out:
        yield f"{where}: {page.left_out} samples beyond {len(page.samples)} were left out"


_COUNTED = {
    "vllm:generation_tokens_total": "server:generation_tok_s",
    "vllm:prompt_tokens_by_source_total{source=local_compute}": "server:prompt_tok_s",
    "vllm:prompt_tokens_total": "server:prompt_tok_s",
}


def joined(pages: Sequence[tuple[float, Evidence]]) -> Evidence:
    """Pages with their times as one: series, and the tokens a second between each two of them."""
    together = merged(page for _, page in pages)
    rates = dict[str, Reading]()
    for counter, name in _COUNTED.items():
        counts = [(at, value) for at, page in pages if (value := page.number(counter)) is not None]
        steps = [(b - a, at - before) for (before, a), (at, b) in pairwise(counts) if at > before]
        if steps and name not in rates:
            values = tuple[Value, ...](max(0.0, grown) / passed for grown, passed in steps)
            rates[name] = Reading(name, values, f"{together.where(counter)} {counter}, over time")
    if len(pages) > 1:
        window = Reading(
            "server:window_s", (pages[-1][0] - pages[0][0],), "between the first look and the last"
        )
        rates[window.name] = window
    return replace(together, readings={**together.readings, **rates}, sources=together.sources[:1])
