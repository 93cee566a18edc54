"""A server's log, of any size: the lines that mean something, and the periodic line as series.

    path -> read_log -> Evidence

One pass in bounded memory: `Source.lines_with` hands over only lines that hold a word of
data/log_lines.toml or data/messages.toml; of each kind of event the first and the last are kept and all
are counted; a series that grows too long loses every second value.
"""

import ast
import re
import tomllib
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files

from headrace.diagnose.evidence import MOST_LINES, Event, Evidence, Flag, Reading, Value
from headrace.diagnose.messages import messages
from headrace.diagnose.readers.flags import flag_value
from headrace.diagnose.readers.text import Line, Source

MOST_VALUES = 4096
FIRST, LAST = 20, 20
"""Events kept of one kind."""
_ENGINE = re.compile(r"Engine (\d{3}):")
_TAG = re.compile(r" ((?:DP|TP)\d+)")
_ARGUMENT = re.compile(r"(\w+)=('[^']*'|\"[^\"]*\"|[^,()\[\]{}]+)")
_PERC = "_perc"
_RATES = ("prompt_tok_s", "gen_tok_s")
_ASKED = re.compile(r"(Received request \S+: prompt: ).*?(?=, params: |, sampling_params: |$)")
"""What a user wrote is no line of the server."""


@dataclass(frozen=True)
class Pattern:
    kind: str
    any: tuple[str, ...]
    pattern: re.Pattern[str]
    reads: Mapping[str, str]
    rate: bool


@cache
def patterns() -> tuple[Pattern, ...]:
    table = tomllib.loads(files("headrace.diagnose").joinpath("data/log_lines.toml").read_text("utf-8"))
    lines = tuple(
        Pattern(
            line["kind"],
            tuple(line["any"]),
            re.compile(line["pattern"]),
            line.get("reads", {}),
            line.get("rate", False),
        )
        for line in table["line"]
    )
    return lines + tuple(
        Pattern(message.kind, message.any, re.compile(message.pattern), {}, False)
        for message in messages().values()
    )


@cache
def _words() -> tuple[bytes, ...]:
    return tuple({word.encode() for pattern in patterns() for word in pattern.any})


@cache
def _shortest() -> int:
    """Characters of the shortest word: a report has many lines that cannot hold one."""
    return min(map(len, _words()))


@dataclass
class _Series:
    """Values in order; thinned out evenly when there are too many."""

    values: list[float] = field(default_factory=list[float])
    stride: int = 1
    seen: int = 0
    where: str = ""

    def add(self, value: float, where: str) -> None:
        if self.seen % self.stride == 0:
            self.values.append(value)
        self.seen += 1
        self.where = where
        if len(self.values) > MOST_VALUES:
            del self.values[1::2]
            self.stride *= 2


def read_log(source: Source) -> Evidence:
    """Raises `BadInput` where the file cannot be read."""
    reader = _Reader(source.name)
    for line in source.lines_with(_words()):
        reader.take(line)
    return reader.evidence()


def read_lines(lines: Iterator[tuple[int, str]], name: str) -> Evidence:
    """The same for lines that are in memory already."""
    reader = _Reader(name)
    for number, text in lines:
        reader.take(Line(number, text))
    return reader.evidence()


class _Reader:
    def __init__(self, name: str) -> None:
        self._name = name
        self._first = defaultdict[str, list[Event]](list)
        self._last = defaultdict[str, deque[Event]](lambda: deque(maxlen=LAST))
        self._counts = defaultdict[str, int](int)
        self._series = defaultdict[tuple[str, str], _Series](_Series)
        self._readings = dict[str, Reading]()
        self._flags = dict[str, Flag]()
        self._lines = list[str]()
        self._version = ""
        self._engine = ""
        self._moved = list[int]()
        """The first and the last line of a report that has tokens in it."""

    def take(self, line: Line) -> None:
        if len(line.text) < _shortest():
            return
        if "prompt: " in line.text:
            line = Line(line.number, _ASKED.sub(r"\1", line.text))
        known = False
        for pattern in patterns():
            if not any(word in line.text for word in pattern.any):
                continue
            if found := pattern.pattern.search(line.text):
                known = True
                self._note(pattern, line, {k: v for k, v in found.groupdict().items() if v is not None})
        if not known and len(self._lines) < MOST_LINES:
            self._lines.append(line.text[:400])

    def _note(self, pattern: Pattern, line: Line, fields: dict[str, str]) -> None:
        where = f"{self._name}:{line.number}"
        self._guess_engine(pattern.kind, line.text)
        if pattern.rate:
            self._add_rates(line, fields, where)
            self._counts[pattern.kind] += 1
            return
        event = Event(pattern.kind, fields, where, line.text[:400], line.number)
        for name, reading in pattern.reads.items():
            if (number := event.number(name)) is not None:
                self._readings[reading] = Reading(reading, (number,), where)
        if pattern.kind == "version":
            self._version = fields["version"]
        if pattern.kind in {"args", "sglang_args"}:
            self._flags |= dict(_arguments(fields, where))
        self._counts[pattern.kind] += 1
        kept = self._first[pattern.kind]
        if len(kept) < FIRST:
            kept.append(event)
        else:
            self._last[pattern.kind].append(event)

    def _guess_engine(self, kind: str, text: str) -> None:
        if kind.startswith("sglang") or kind == "retracted":
            self._engine = "sglang"
        elif kind.startswith("llama"):
            self._engine = "llama.cpp"
        elif text.startswith(("headrace: ", "serving ")) or ", Waited for: " in text:
            self._engine = "headrace"
        elif not self._engine and (kind == "stats" or "vllm" in text.lower()):
            self._engine = "vllm"

    def _add_rates(self, line: Line, fields: dict[str, str], where: str) -> None:
        label = _ENGINE.search(line.text) or _TAG.search(line.text)
        engine = label[1] if label else ""
        if any(rate and float(rate) > 0 for rate in map(fields.get, _RATES)):
            self._moved = [*self._moved[:1], line.number]
        for name, text in fields.items():
            try:
                value = float(text)
            except ValueError:
                continue
            is_perc = name.endswith(_PERC)
            self._series[engine, name.removesuffix(_PERC)].add(value / 100 if is_perc else value, where)

    def evidence(self) -> Evidence:
        engines = {engine for engine, _ in self._series if engine}
        for (engine, name), series in self._series.items():
            full = f"log:{name}{{engine={engine}}}" if engine and len(engines) > 1 else f"log:{name}"
            self._readings[full] = Reading(full, tuple[Value, ...](series.values), series.where)
        events = [e for kept in (*self._first.values(), *self._last.values()) for e in kept]
        if self._moved and len(engines) < 2:
            events = list(_ended(events, self._counts, self._moved[0], self._moved[-1]))
        return Evidence(
            engine=self._engine,
            version=self._version,
            flags=self._flags,
            readings=self._readings,
            events=tuple(sorted(events, key=lambda event: event.at)),
            counts=dict(self._counts),
            lines=tuple(self._lines),
            sources=(self._name,),
        )


def _ended(events: Sequence[Event], counts: dict[str, int], first: int, last: int) -> Iterator[Event]:
    """A step that was away for a minute, and came back: reports with tokens follow. Before the first of them
    it was part of the start.
    """
    for event in events:
        if event.kind == "stalled" and event.at < last:
            counts["stalled"] -= 1
            if event.at > first:
                counts["stood"] = counts.get("stood", 0) + 1
                yield replace(event, kind="stood")
        else:
            yield event


def _arguments(fields: Mapping[str, str], where: str) -> Iterator[tuple[str, Flag]]:
    """Flags from `{'max_model_len': 4096}` or `Namespace(max_model_len=4096, …)`."""
    if "arguments" in fields:
        for name, value in _literal(fields["arguments"]).items():
            if isinstance(value, int | float | str):
                yield name.replace("_", "-"), Flag(value, where)
    for name, text in _ARGUMENT.findall(fields.get("namespace", "")):
        if text.strip() not in {"None", "''", "<function serve_command at"}:
            yield name.replace("_", "-"), Flag(flag_value(text.strip("'\" ")), where)


def _literal(text: str) -> dict[str, object]:
    """A Python dict as vLLM prints it; empty where it holds more than literals."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return {}
    return {str(k): v for k, v in value.items()} if isinstance(value, dict) else {}
