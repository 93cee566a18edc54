"""What a person wrote: an issue, a message, notes, with commands, log lines and tables in between.

    text -> lines a log has + flags + version + cards + model + numbers with their names -> Evidence

Numbers are taken only next to a word that says what they are ("TTFT p99 1.4 s", "KV usage 99 %"); where a
sentence gives several of one thing they are a series in its order. The text itself stays, as what was told.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from headrace.core.errors import BadInput
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
from headrace.diagnose.readers.flags import (
    flag_value,
    named_flag,
    read_command,
    read_manifest,
    serving_engine,
)
from headrace.diagnose.readers.log import read_lines
from headrace.diagnose.readers.metrics import is_sample, pages_in
from headrace.diagnose.readers.tables import readings_of, tables_of
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
_TRACE = re.compile(r"\s+File \"|\s{4}|Traceback|#|\w+(?:Error|Exception):")
_EDGE = 3
_SENTENCE = re.compile(
    r"[a-z]{2,} (?:[\w.-]+ )?[a-z]{2,} [a-z]{2,}|[\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]{4,}"
)
_ENGINES = (
    ("sglang", re.compile(r"\bsglang\b|\bsgl\b", re.IGNORECASE)),
    ("llama.cpp", re.compile(r"\bllama[.-](?:cpp|server)\b|\bgguf\b", re.IGNORECASE)),
    ("vllm", re.compile(r"\bvllm\b", re.IGNORECASE)),
    ("ollama", re.compile(r"\bollama\b", re.IGNORECASE)),
    ("lmdeploy", re.compile(r"\blmdeploy\b", re.IGNORECASE)),
    ("tgi", re.compile(r"\btext-generation-(?:inference|launcher)\b|\btgi\b", re.IGNORECASE)),
)
_VERSION = re.compile(
    r"\bv?llm(?:-openai)?(?: version)?\W{0,8}(?:is |on |in )?v?(\d+\.\d+\.\d+[\w.+]*)", re.IGNORECASE
)
_FLAG = re.compile(r"(?<![\w-])--([a-z][\w-]+)(?:[ =]+(?![-`])(['\"]?[\w./:{}\"-]+))?")
_ARGUMENT = re.compile(r"(?m)^( +)(--[a-z][\w-]+)\n\1([^-\s]\S*)$")
"""A flag and its value on a line each, as `kubectl describe` lists arguments."""
_SHORT = re.compile(r"(?<!\S)-(t|c|ngl|np|b|ub|tp|pp|dp) (\d+)\b")
_SETTING = re.compile(
    r"\b([a-z]+(?:_[a-z]+)+)\b ?(?:[=:]|set to|of)? ?(\d+(?:\.\d+)?k?|true|false)\b", re.IGNORECASE
)
_RANKS = re.compile(
    r"\btp ?=? ?(\d+)\b|\btensor[ -]parallel(?:ism)?(?: size)?(?: of)? ?=? ?(\d+)", re.IGNORECASE
)
_COUNT = re.compile(r"\b(\d+) ?x ?(?:nvidia |amd )?(?:[a-z]*\d|gpus?|cards?)", re.IGNORECASE)
_TOKEN = re.compile(r"[A-Za-z][\w./:-]{2,119}")
_SIZE = re.compile(r"(?:^|[-:/_])\d+(?:\.\d+)?b(?:$|[-._])", re.IGNORECASE)
_WEIGHTS = re.compile(
    r"\b(?:nvfp4|mxfp4|fp4|fp8|int4|int8|awq|gptq|w4a16|w8a8|q4_\w+|q8_\w+|4-?bit|8-?bit)\b", re.IGNORECASE
)
_BANDWIDTH = re.compile(r"(?<![\d,.])(\d[\d,]{0,11}(?:\.\d{1,6})?) ?GB/s", re.IGNORECASE)
_WEIGHT = re.compile(
    r"\b(\d{1,6}(?:\.\d{1,6})?) ?GB of weights|weights?(?: of| are|:)? ~?(\d{1,6}(?:\.\d{1,6})?) ?GB",
    re.IGNORECASE,
)
_SINGLY = re.compile(
    r"\bsingle[- ](?:stream|user|request)\b|"
    r"\b(?:one|single) (?:\w+ )?(?:prompts?|requests?|streams?) at a time|"
    r"\bone after (?:the other|another)\b|\bconcurrency (?:of )?1\b",
    re.IGNORECASE,
)
_ENDLESS_RATE = re.compile(r"request[- ]rate\W{0,4}inf", re.IGNORECASE)
_UNITS = (
    r"ms|milliseconds?|seconds?|secs?|s|minutes?|min|us|%|percent|tok(?:ens?)?/s(?:ec)?|"
    r"tok(?:ens?)? (?:per|a) s(?:ec(?:ond)?)?|t/s|tps|req/s|gib|gb|mib"
)
_NUMBER = rf"(?P<value>\d+(?:[.,]\d+){{0,4}})(?P<kilo>k)? ?(?P<unit>{_UNITS})?"
_VALUE = re.compile(rf"(?<![\w.]){_NUMBER}(?![\w])", re.IGNORECASE)
_TIME_UNITS = {"m": 1e-3, "u": 1e-6}


def is_report(text: str) -> bool:
    """Whether a person speaks: a sentence among the first or last lines, or more of them than of a log."""
    lines = _written(text[:LONGEST].splitlines())
    spoken, logged = _voices(lines)
    edge = any(i < _EDGE or i >= len(lines) - _EDGE for i in spoken)
    return bool(spoken) and (edge or len(spoken) >= logged)


def _written(lines: list[str]) -> list[str]:
    return [line for line in lines if line.strip()]


def _voices(lines: list[str]) -> tuple[list[int], int]:
    """Where sentences stand that no log prints as its own, and how many lines are a log's."""
    spoken = [i for i, line in enumerate(lines) if _SENTENCE.search(line) and _is_spoken(line)]
    return spoken, sum(not _is_spoken(line) for line in lines)


def _is_spoken(line: str) -> bool:
    return not (_LOG_LINE.match(line) or is_sample(line) or _TRACE.match(line))


def read_report(text: str, where: str) -> Evidence:
    """What is in it; an empty Evidence where nothing is of a server."""
    text = _ARGUMENT.sub(r"\1\2 \3", plain(text[:LONGEST]))
    lines = ["" if _MENDED.match(line) else line for line in text.splitlines()]
    found = read_lines(enumerate(lines, start=1), where) | pages_in(lines, where)
    text = "\n".join(line for line in lines if not is_sample(line))
    engine = next((name for name, pattern in _ENGINES if pattern.search(text)), "")
    version = _VERSION.search(text)
    own = " ".join(line for line in text.splitlines() if _is_spoken(line))
    told = Reading("workload:report", (re.sub(r"\s+", " ", own)[:_LONGEST_TOLD],), where)
    tables = [r for table in tables_of(lines) for r in readings_of(table, where)]
    prose = "\n".join(line for line in text.splitlines() if line.count("|") < 2)
    readings = {r.name: r for r in (*_told(text, where), *_numbers(prose, where), *tables)}
    spoken = Evidence(
        engine=engine,
        version=version[1] if version and engine == "vllm" else "",
        flags=dict(_flags(text, where)),
        readings=readings,
        sources=(where,),
    )
    if any(name.startswith(("log:", "vllm:")) for name in found.readings):
        # What was printed holds, not how somebody tells it.
        kept = {name: r for name, r in readings.items() if not name.startswith(("log:", "vllm:"))}
        spoken = replace(spoken, readings=kept)
    whole = spoken | _manifest(text, where) | _commands(text, where) | found
    measured = any(r.numbers for r in readings.values() if not r.name.startswith("hardware:"))
    if not (whole.engine or whole.counts or whole.flags or measured):
        return Evidence(sources=(where,))
    whole = Evidence(readings={told.name: told}) | whole
    return replace(whole, is_report=_is_by_hand(lines), sources=(where,))


_MENDED = re.compile(
    r"\s*[-*+] (?:\[?bug ?fix\]?:? |fix(?:ed|es)?[: ]|resolve[sd] )(?!.*\b(?:by|but|now|with)\b)",
    re.IGNORECASE,
)
"""An entry of a list of changes: what was wrong is not any more."""
_FORMATTED = re.compile(r"(?m)^\s*(?:```|#{1,4} |\* |- \[)")


def _is_by_hand(lines: list[str]) -> bool:
    """Whether a person wrote it, who quotes a log: servers' logs hold libraries' sentences."""
    written = _written(lines)
    spoken, logged = _voices(written)
    return _FORMATTED.search("\n".join(written)) is not None or len(spoken) * _QUOTED >= logged


_QUOTED = 4
"""Lines of a log for each that somebody wrote."""


def _manifest(text: str, where: str) -> Evidence:
    """What of it is YAML of a pod: from its first key to the end of that paragraph or of the text."""
    begin = _YAML.search(text)
    if begin is None:
        return Evidence()
    for part in (text[begin.start() :], text[begin.start() :].partition("\n\n")[0]):
        try:
            return read_manifest(part, where)
        except BadInput:
            continue
    return Evidence()


_YAML = re.compile(r"(?m)^(?:apiVersion|kind|spec|containers|services):")


def _commands(text: str, where: str) -> Evidence:
    """The first command in it that starts a server, with its continued lines."""
    for line in re.sub(r"\\\s*\n", " ", text).splitlines():
        if serving_engine(line) and " --" in line:
            return read_command(line.strip("`$> ").replace("'", "").replace('"', ""), where)
    return Evidence()


def _flags(text: str, where: str) -> Iterator[tuple[str, Flag]]:
    facts = flag_facts()
    known = facts.options | facts.switches | facts.gone.keys() | set(facts.short.values())
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


def _told(text: str, where: str) -> Iterator[Reading]:
    cards = cards_of(text)
    if cards:
        yield Reading("hardware:gpu", tuple(card.name for card in cards[:1]), where)
    if count := _COUNT.search(text):
        yield Reading("hardware:gpu_count", (float(count[1]),), where)
    if (model := _model(text)) is not None:
        yield Reading("workload:model", (model,), where)
    if gb_s := _BANDWIDTH.search(text):
        yield Reading("hardware:memory_bandwidth_gb_s", (float(gb_s[1].replace(",", "")),), where)
    if weights := _WEIGHT.search(text):
        yield Reading("workload:weights_gb", (float(weights[1] or weights[2]),), where)
    if _SINGLY.search(text):
        yield Reading("workload:client_concurrency", (1.0,), where)
    if _ENDLESS_RATE.search(text):
        yield Reading("workload:request_rate", ("inf",), where)
    if form := _WEIGHTS.search(text):
        yield Reading("workload:quantization", (form[0],), where)


def _model(text: str) -> str | None:
    """The first word that has a size in it, as Qwen/Qwen3-8B or qwen2.5:7b."""
    words = (word.strip(".:/-") for word in _TOKEN.findall(text))
    return next((word for word in words if re.search("[-/:]", word) and _SIZE.search(word)), None)


# What a number is, told by the words before it in the same clause; the first that fits counts.
_NAMES = (
    ("gpu:utilization_perc", r"gpu(?: sm)?(?:[ -](?:util\w*|usage|load)|(?= \d))", "%"),
    ("host:cpu_utilization_perc", r"cpu(?:[ -](?:util\w*|usage|load)|(?= \d))", "%"),
    ("vllm:kv_cache_usage_perc", r"(?:kv|cache|token)[ -](?:cache[ -])?usage", "%"),
    ("log:prefix_hit_rate", r"(?:hit rate|cache hits?)", "%"),
    ("vllm:num_requests_running", r"running(?: reqs| requests)?", ""),
    ("vllm:num_requests_waiting", r"(?:waiting|pending|queued)(?: reqs| requests)?", ""),
    ("vllm:num_preemptions_total", r"preemptions?", ""),
    ("host:rss_gib", r"(?:rss|resident (?:set|memory|size)|host (?:memory|ram))", "g"),
    ("client:ttft", r"(?:ttft|time to first token|first token)", "s"),
    ("client:tpot", r"(?:tpot|time per output token)", "s"),
    ("client:itl", r"(?:itl|inter-?token)", "s"),
    ("client:e2el", r"(?:e2e|end-to-end|latency|response time)", "s"),
    ("client:prefill_tok_s", r"(?:prefill|prompt (?:eval|processing))", "t"),
    ("client:decode_tok_s", r"(?:decod\w+|generat\w+|single stream)", "t"),
    ("client:output_tok_s", r"(?:throughput|output|tok)", "t"),
    ("workload:client_concurrency", r"(?:concurrency|concurrent|clients|users)(?: requests| users)?", ""),
)  # fmt: skip
_PATTERNS = tuple((name, re.compile(rf"\b{words}", re.IGNORECASE), kind) for name, words, kind in _NAMES)
_SITUATIONS = FIRST | LATER | FRESH | AGED | ALONE | BESIDE | DIRECT | THROUGH | STRUCTURED | BEFORE | AFTER
_NEGATIONS = frozenset({"not", "no", "non", "without"})
_FARTHEST, _BESIDE = 32, 12
"""Characters between a number and the word that says what it is."""
_CARDS = re.compile(
    r"\b(?:on|with|using|of) (\d)(?: ?x)? (?:[AHLV]\d{2,3}\b|B200|RTX|gpus?\b|cards?\b)", re.IGNORECASE
)
_STAT = re.compile(r"\b(p50|p90|p95|p99|mean|median|avg|average|max|min)\b", re.IGNORECASE)


_COUNT_NAMED = re.compile(r"\b(?:\w+:)?num_requests_(running|waiting)\b")
_SHARE_NAMED = re.compile(
    r"\b(?:\w+:)?(?:gpu_|kv_)cache_usage_perc\b\W{0,3}(?:is|was|at|of)? ?([01]?\.\d{1,6}|1\b)"
)
"""Metrics by their own names in a sentence: the usage is a share there, whatever its name says."""


def _numbers(text: str, where: str) -> Iterator[Reading]:
    """Each clause for itself: which quantity it is of, which statistic, which situation, and its numbers in
    order.
    """
    found = defaultdict[str, list[float]](list)
    text = _SHARE_NAMED.sub(lambda m: f"KV usage {100 * float(m[1]):g}%", _COUNT_NAMED.sub(r"\1", text))
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
            if (value := _value(match, kind)) is not None and _belongs(found, match, kind, numbers)
        ]
        if not fitting and (value := _value(match, "t")) is not None:
            fitting = [(0, "client:output_tok_s", "t", value)]
        if fitting:
            _, name, kind, value = min(fitting)
            yield _full_name(name, kind, clause, match, numbers), value


def _belongs(word: re.Match[str], number: re.Match[str], kind: str, numbers: list[re.Match[str]]) -> bool:
    """A count belongs to the word right beside it, and to no other; a measured number may stand further."""
    if kind:
        return _distance(word, number) <= _FARTHEST
    return _distance(word, number) <= _BESIDE and number is min(numbers, key=lambda n: _distance(word, n))


def _full_name(name: str, kind: str, clause: str, number: re.Match[str], numbers: list[re.Match[str]]) -> str:
    if not kind:
        return name
    before, after = _around(clause, number, numbers)
    stat = (_STAT.search(before) or _STAT.search(clause)) if kind == "s" else None
    situation = _situation((after, before)) if len(numbers) > 1 else ""
    situation = _cards_told(clause, number) or situation or _label(clause)
    return f"{name}{'_' + stat[1].lower() if stat else ''}{situation}{'_s' if kind == 's' else ''}"


def _around(clause: str, number: re.Match[str], numbers: list[re.Match[str]]) -> tuple[str, str]:
    """The words between this number and its neighbours, before and after it."""
    begin = max((n.end() for n in numbers if n.end() <= number.start()), default=0)
    end = min((n.start() for n in numbers if n.start() >= number.end()), default=len(clause))
    return clause[begin : number.start()], clause[number.end() : end]


def _situation(parts: tuple[str, str]) -> str:
    """Of 1537 ms for the first, _first; of what is not guided, _not_guided."""
    for part in parts:
        before = ""
        for word in re.findall(r"[a-z]+", part.lower()):
            if word in _SITUATIONS:
                return f"_not_{word}" if before in _NEGATIONS else f"_{word}"
            before = word
    return ""


def _cards_told(clause: str, number: re.Match[str]) -> str:
    """_2gpus of "on 2 A100: 700 tok/s": how many cards the nearest mention before it names."""
    before = list(_CARDS.finditer(clause[: number.start()]))
    return f"_{before[-1][1]}gpus" if before else ""


def _label(clause: str) -> str:
    """_guided of "guided: 70 tok/s", _not_guided of "not guided: …": a few words before a colon."""
    found = re.match(r"[\s*-]*((?:[a-z]+ ?){1,3}):", clause.lower())
    words = found[1].split() if found else []
    return "_" + "_".join(words) if _SITUATIONS & set(words) else ""


def _distance(word: re.Match[str], number: re.Match[str]) -> int:
    """Characters between them; a word that comes after counts twice as far."""
    before = number.start() - word.end()
    return before if before >= 0 else 2 * max(0, word.start() - number.end())


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
