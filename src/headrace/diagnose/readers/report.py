"""What a person wrote: an issue, a message, notes, with commands, log lines and tables in between.

    text -> lines a log has + flags + version + cards + model + numbers with their names -> Evidence

Numbers are taken only next to a word that says what they are ("TTFT p99 1.4 s", "KV usage 99 %"); where a
sentence gives several of one thing they are a series in its order. The text itself stays, as what was told.
"""

import re
from collections import defaultdict
from collections.abc import Iterator

from headrace.diagnose.evidence import Evidence, Flag, Reading
from headrace.diagnose.flag_facts import flag_facts
from headrace.diagnose.quantities import (
    AFTER,
    AGED,
    ALONE,
    BEFORE,
    BESIDE,
    DIRECT,
    FIRST,
    FRESH,
    LATER,
    STRUCTURED,
    THROUGH,
)
from headrace.diagnose.readers.flags import flag_value, named_flag, read_command, serving_engine
from headrace.diagnose.readers.log import read_lines
from headrace.diagnose.readers.text import plain
from headrace.diagnose.sizes import cards_of

LONGEST = 1 << 18
"""Characters: nobody writes more by hand."""
_LONGEST_TOLD = 8000
_MOST_NUMBERS = 64
_LOG_LINE = re.compile(
    r"^\W*(?:\([A-Za-z_]+[^)]*\) )?(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b|"
    r"^\[?\d{4}-\d\d-\d\d|^\S+ +\w+ +\d+:\d\d:"
)
_SENTENCE = re.compile(r"[a-z]{2,} [a-z]{2,} [a-z]{2,}")
_ENGINES = (
    ("sglang", re.compile(r"\bsglang\b|\bsgl\b", re.IGNORECASE)),
    ("llama.cpp", re.compile(r"\bllama[.-](?:cpp|server)\b|\bgguf\b", re.IGNORECASE)),
    ("vllm", re.compile(r"\bvllm\b", re.IGNORECASE)),
)
_VERSION = re.compile(r"\bv?llm(?: version)?\W{0,8}(?:is |on |in )?v?(\d+\.\d+\.\d+[\w.+]*)", re.IGNORECASE)
_FLAG = re.compile(r"(?<![\w-])--([a-z][\w-]+)(?:[ =]+(?![-`])(['\"]?[\w./:{}\"-]+))?")
_SHORT = re.compile(r"(?<!\S)-(t|c|ngl|np|b|ub|tp|pp|dp) (\d+)\b")
_SETTING = re.compile(
    r"\b([a-z]+(?:_[a-z]+)+)\b ?(?:[=:]|set to|of)? ?(\d+(?:\.\d+)?k?|true|false)\b", re.IGNORECASE
)
_RANKS = re.compile(
    r"\btp ?=? ?(\d+)\b|\btensor[ -]parallel(?:ism)?(?: size)?(?: of)? ?=? ?(\d+)", re.IGNORECASE
)
_COUNT = re.compile(r"\b(\d+) ?x ?(?:nvidia |amd )?(?:[a-z]*\d|gpus?|cards?)", re.IGNORECASE)
_MODEL = re.compile(
    r"\b[\w.-]+/[\w.-]*\d+(?:\.\d+)?b\b[\w.-]*|\b[a-z][\w.]*(?:-[\w.]+)*-\d+(?:\.\d+)?b(?:-[\w.]+)*",
    re.IGNORECASE,
)
_WEIGHTS = re.compile(
    r"\b(?:nvfp4|mxfp4|fp4|fp8|int4|int8|awq|gptq|w4a16|w8a8|q4_\w+|q8_\w+|4-?bit|8-?bit)\b", re.IGNORECASE
)
_ENDLESS_RATE = re.compile(r"request[- ]rate\W{0,4}inf", re.IGNORECASE)
_UNITS = (
    r"ms|milliseconds?|seconds?|secs?|s|minutes?|min|us|%|percent|tok(?:ens?)?/s(?:ec)?|"
    r"tok(?:ens?)? (?:per|a) s(?:ec(?:ond)?)?|t/s|tps|req/s|gib|gb|mib"
)
_NUMBER = rf"(?P<value>\d+(?:[.,]\d+)*)(?P<kilo>k)? ?(?P<unit>{_UNITS})?"
_VALUE = re.compile(rf"(?<![\w.]){_NUMBER}(?![\w])", re.IGNORECASE)
_TIME_UNITS = {"m": 1e-3, "u": 1e-6}


def is_report(text: str) -> bool:
    """Whether most lines are sentences or lists of a person, not lines of a log."""
    lines = [line for line in text[:LONGEST].splitlines() if line.strip()]
    logged = sum(bool(_LOG_LINE.match(line)) for line in lines)
    spoken = sum(bool(_SENTENCE.search(line)) and not _LOG_LINE.match(line) for line in lines)
    return bool(spoken) and spoken >= logged


def read_report(text: str, where: str) -> Evidence:
    """What is in it; an empty Evidence where nothing is of a server."""
    text = plain(text[:LONGEST])
    found = read_lines(enumerate(text.splitlines(), start=1), where)
    engine = next((name for name, pattern in _ENGINES if pattern.search(text)), "")
    version = _VERSION.search(text)
    told = Reading("workload:report", (re.sub(r"\s+", " ", text)[:_LONGEST_TOLD],), where)
    readings = {r.name: r for r in (*_hardware(text, where), *_numbers(text, where))}
    spoken = Evidence(
        engine=engine,
        version=version[1] if version and engine == "vllm" else "",
        flags=dict(_flags(text, where)),
        readings=readings,
        sources=(where,),
    )
    whole = spoken | _commands(text, where) | found
    if not (whole.engine or whole.counts or whole.flags):
        return Evidence(sources=(where,))
    return Evidence(readings={told.name: told}) | whole


def _commands(text: str, where: str) -> Evidence:
    """The first command in it that starts a server, with its continued lines."""
    for line in re.sub(r"\\\s*\n", " ", text).splitlines():
        if serving_engine(line) and " --" in line:
            return read_command(line.strip("`$> ").replace("'", "").replace('"', ""), where)
    return Evidence()


def _flags(text: str, where: str) -> Iterator[tuple[str, Flag]]:
    facts = flag_facts()
    known = facts.options | facts.switches | facts.gone.keys()
    for written, value in _SETTING.findall(text):
        name = facts.full_name(written.lower())
        if name in known and "-" in name:
            yield name, Flag(flag_value(value), where)
    for one, other in _RANKS.findall(text)[:1]:
        yield "tensor-parallel-size", Flag(float(one or other), where)
    for written, value in _SHORT.findall(text):
        yield facts.full_name(written), Flag(float(value), where)
    for written, value in _FLAG.findall(text):
        is_switch = facts.is_switch(facts.full_name(written))
        name, given = named_flag(written, None if is_switch or not value else value.strip("'\"."))
        if name in known or name in facts.short.values() or value:
            yield name, Flag(given, where)


def _hardware(text: str, where: str) -> Iterator[Reading]:
    cards = cards_of(text)
    if cards:
        yield Reading("hardware:gpu", tuple(card.name for card in cards[:1]), where)
    if count := _COUNT.search(text):
        yield Reading("hardware:gpu_count", (float(count[1]),), where)
    if model := _MODEL.search(text):
        yield Reading("workload:model", (model[0],), where)
    if _ENDLESS_RATE.search(text):
        yield Reading("workload:request_rate", ("inf",), where)
    if form := _WEIGHTS.search(text):
        yield Reading("workload:quantization", (form[0],), where)


# What a number is, told by the words before it in the same clause; the first that fits counts.
_NAMES = (
    ("gpu:utilization_perc", r"gpu(?: sm)?(?:[ -](?:util\w*|usage|load)|(?= \d))", "%"),
    ("host:cpu_utilization_perc", r"cpu(?:[ -](?:util\w*|usage|load)|(?= \d))", "%"),
    ("vllm:kv_cache_usage_perc", r"(?:kv|cache|token)[ -](?:cache[ -])?usage", "%"),
    ("log:prefix_hit_rate", r"(?:hit rate|cache hits?)", "%"),
    ("vllm:num_requests_running", r"running(?: reqs| requests)?", ""),
    ("vllm:num_requests_waiting", r"(?:waiting|pending|queued)(?: reqs| requests)?", ""),
    ("vllm:num_preemptions_total", r"preemptions?", ""),
    ("host:rss_gib", r"(?:rss|resident|host (?:memory|ram))", "g"),
    ("client:ttft", r"(?:ttft|time to first token|first token)", "s"),
    ("client:tpot", r"(?:tpot|time per output token)", "s"),
    ("client:itl", r"(?:itl|inter-?token)", "s"),
    ("client:e2el", r"(?:e2e|end-to-end|latency|response time)", "s"),
    ("client:decode_tok_s", r"(?:decod\w+|generat\w+|single stream)", "t"),
    ("client:output_tok_s", r"(?:throughput|output|tok)", "t"),
    ("workload:client_concurrency", r"(?:concurrency|concurrent|clients|users)(?: requests| users)?", ""),
)  # fmt: skip
_PATTERNS = tuple((name, re.compile(rf"\b{words}", re.IGNORECASE), kind) for name, words, kind in _NAMES)
_SITUATIONS = FIRST | LATER | FRESH | AGED | ALONE | BESIDE | DIRECT | THROUGH | STRUCTURED | BEFORE | AFTER
_STAT = re.compile(r"\b(p50|p90|p95|p99|mean|median|avg|average|max|min)\b", re.IGNORECASE)


def _numbers(text: str, where: str) -> Iterator[Reading]:
    """Each clause for itself: which quantity it is of, which statistic, which situation, and its numbers in
    order.
    """
    found = defaultdict[str, list[float]](list)
    for clause in re.split(r"[;\n]|(?<=[a-z%)])[.] ", text):
        if len(clause) < _LONGEST_TOLD and not _LOG_LINE.match(clause):
            for name, value in _of_clause(clause):
                found[name].append(value)
    for name, values in found.items():
        yield Reading(name, tuple(values[:_MOST_NUMBERS]), where)


def _of_clause(clause: str) -> Iterator[tuple[str, float]]:
    """Each number under the name of the nearest word of its kind, and the situation that stands with it."""
    numbers = list(_VALUE.finditer(clause))
    words = [(name, kind, found) for name, pattern, kind in _PATTERNS for found in pattern.finditer(clause)]
    for match in numbers:
        fitting = [
            (_distance(found, match), name, kind, value)
            for name, kind, found in words
            if (value := _value(match, kind)) is not None
        ]
        if not fitting:
            continue
        _, name, kind, value = min(fitting)
        stat = _STAT.search(clause) if kind == "s" else None
        stem = f"{name}_{stat[1].lower()}" if stat else name
        situation = _situation(clause, match, numbers) if len(numbers) > 1 else ""
        yield f"{stem}{situation}{'_s' if kind == 's' else ''}", value


def _distance(word: re.Match[str], number: re.Match[str]) -> int:
    """Characters between them; a word that comes after counts twice as far."""
    before = number.start() - word.end()
    return before if before >= 0 else 2 * max(0, word.start() - number.end())


def _situation(clause: str, number: re.Match[str], numbers: list[re.Match[str]]) -> str:
    """A word of a situation between this number and its neighbours: of 1537 ms for the first, _first."""
    before = max((n.end() for n in numbers if n.end() <= number.start()), default=0)
    after = min((n.start() for n in numbers if n.start() >= number.end()), default=len(clause))
    for part in (clause[number.end() : after], clause[before : number.start()]):
        for word in re.findall(r"[a-z]+", part.lower()):
            if word in _SITUATIONS:
                return f"_{word}"
    return ""


def _value(match: re.Match[str], kind: str) -> float | None:
    """The number in the unit that its kind has; None where its unit is of another kind."""
    unit = (match["unit"] or "").lower()
    value = float(match["value"].replace(",", "")) if match["value"].count(".") < 2 else None
    if value is None:
        return None
    value *= 1000 if match["kilo"] else 1
    kinds = "%" if unit in {"%", "percent"} else unit[:1] if unit else ""
    if kind == "s" and kinds in {"m", "s", "u"} and unit != "mib":
        return value * (60.0 if unit.startswith("min") else _TIME_UNITS.get(kinds, 1.0))
    if kind == "t" and kinds == "t":
        return value
    if kind in {"%", "g"} and kinds == kind:
        return value / 100 if kind == "%" else value
    return value if kind == "" and not kinds else None
