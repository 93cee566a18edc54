"""The same measured over one thing that was varied: columns of a table, each known by its name.

    sweep:concurrency [1, 4, 8], sweep:ttft_ms [80, 90, 900]   -> Sweep(load, ttft)
    client:tpot_ms_c1, client:tpot_ms_c64                      -> the same, by what the names end in

Rows come in order of what was varied, whatever order they were written in.
"""

import re
from dataclasses import dataclass

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.finding import Fact
from headrace.diagnose.quantities import quantities

_COLUMNS = (
    ("caps", r"max_num_seqs|max_num_batched|max_running|chunked_prefill_size|(?<![a-z])cap"),
    ("cards", r"(?<![a-z])tp(?![a-z])|tensor|gpus?$|gpu_count|nodes|pipeline|cards"),
    ("workers", r"thread|worker|process|api_server"),
    ("usage", r"kv|cache.*us|token_usage"),
    ("ttft", r"ttf[atb](?![a-z])|first_(?:token|audio|chunk|byte)|prefill.*(?:_s|_ms)$"),
    ("gaps", r"itl|tpot|step|inter_token|per_output_token"),
    ("waiting", r"waiting|queue"),
    ("latencies", r"rtf(?![a-z])|real_time_factor|latency|e2e|response_time|duration"),
    ("rates", r"tok(?:ens?)?_(?:per_)?s|throughput|rps$|requests?_per_s|req_s|per_s$|tps"),
    ("prompts", r"(?:prompt|input)s?_(?:plus|and)_"),
    ("answers", r"output|max_tokens|max_new|osl|generat|decode_len"),
    ("prompts", r"prompt|input|context|isl|len(?!gth_of)"),
    (
        "loads",
        r"concurren|(?<!hit_)(?<!acceptance_)rate|clients|users|batch|streams|qps|parallel|load|requests",
    ),
)
"""The first that fits a name says what it is."""
_VARIED = ("caps", "cards", "workers", "loads", "prompts", "answers", "usage")


@dataclass(frozen=True, slots=True)
class Column:
    """`kind` as in `_COLUMNS`; `values` in order of what was varied."""

    kind: str
    name: str
    values: tuple[float, ...]
    where: str

    @property
    def grown(self) -> float:
        """The last over the first; 0 where that says nothing."""
        return self.values[-1] / self.values[0] if self.values[0] > 0 else 0.0

    def row(self) -> Fact:
        return Fact(f"{self.name}: {', '.join(f'{n:g}' for n in self.values[:8])}", self.where)


@dataclass(frozen=True, slots=True)
class Sweep:
    """`varied`: the column that somebody set; the others were measured."""

    varied: Column
    measured: tuple[Column, ...]

    def column(self, kind: str) -> Column | None:
        return next((column for column in self.measured if column.kind == kind), None)

    def columns(self, kind: str) -> tuple[Column, ...]:
        return tuple(column for column in self.measured if column.kind == kind)

    @property
    def facts(self) -> tuple[Fact, ...]:
        return tuple(column.row() for column in (self.varied, *self.measured[:3]))


def sweep_of(e: Evidence) -> Sweep | None:
    """The table that was told, or what names with a concurrency make up; None where nothing was varied."""
    columns = (
        [
            Column(kind, r.name, r.numbers, r.where)
            for r in e.under("sweep:")
            if len(r.numbers) >= 2 and (kind := _kind(r.name)) is not None
        ]
        or _by_word(e, _LOAD, "concurrency")
        or _by_word(e, _LENGTH, "context")
    )
    varied = next((c for kind in _VARIED for c in columns if c.kind == kind and len(set(c.values)) > 1), None)
    if varied is None:
        return None
    rows = min(len(c.values) for c in columns)
    order = sorted(range(rows), key=lambda i: varied.values[i])
    sorted_columns = [
        Column(c.kind, c.name, tuple(c.values[i] for i in order), c.where) for c in columns if c is not varied
    ]
    first = Column(varied.kind, varied.name, tuple(varied.values[i] for i in order), varied.where)
    return Sweep(first, tuple(sorted_columns))


def _kind(name: str) -> str | None:
    short = name.partition(":")[2]
    return next((kind for kind, words in _COLUMNS if re.search(words, short)), None)


_LOAD = re.compile(r"c(?P<n>\d+)")
_LENGTH = re.compile(r"(?P<n>\d+)(?P<kilo>k)")


def _by_word(e: Evidence, pattern: re.Pattern[str], varied: str) -> list[Column]:
    """Of client:tpot_ms_c1 and client:tpot_ms_c64: loads 1 and 64, and a column for what has all of them; of
    decode_tok_s_1k and decode_tok_s_64k lengths.
    """
    found = dict[str, dict[float, float]]()
    for q in quantities(e):
        for word in q.situation:
            if match := pattern.fullmatch(word):
                rest = "_".join(sorted(q.situation - {word}))
                parts = (q.what, q.stat, rest, "per_s" if q.is_rate else "")
                name = "_".join(part for part in parts if part)
                value = float(match["n"]) * (1000 if "kilo" in match.groupdict() else 1)
                found.setdefault(name, {})[value] = q.last
    points = sorted({point for values in found.values() for point in values})
    if len(points) < 2:
        return []
    where = next(iter(e.sources), "")
    columns = [
        Column(kind, f"client:{name}", tuple(values[point] for point in points), where)
        for name, values in found.items()
        if len(values) == len(points) and (kind := _kind(f"client:{name}")) is not None
    ]
    kind = "loads" if pattern is _LOAD else "prompts"
    return [Column(kind, varied, tuple(points), where), *columns] if columns else []
