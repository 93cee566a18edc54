"""Names that people give to measured numbers, taken apart: what, which statistic, in which situation.

    client:ttft_p50_ms_direct        -> ttft, p50, seconds, {direct}
    client:decode_tok_s_during_prefill -> decode, rate, {during, prefill}

So that two numbers of one thing in two situations can be set against each other.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from headrace.diagnose.evidence import Evidence, Reading

_STATS = frozenset({"mean", "avg", "average", "median", "p50", "p90", "p95", "p99", "p999", "min", "max"})
_UNIT_S = {
    "s": 1.0,
    "sec": 1.0,
    "secs": 1.0,
    "seconds": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
    "min": 60.0,
    "minutes": 60.0,
    "hours": 3600.0,
}
_LATENCY = (
    "ttft",
    "itl",
    "tpot",
    "e2e",
    "e2el",
    "latency",
    "request",
    "response",
    "wait",
    "queue",
    "prefill",
    "step",
)
_RATE = ("decode", "output", "generation", "gen", "throughput", "prefill", "prompt", "tok", "rps", "requests")
_NOISE = frozenset({"time", "per", "of", "the", "at", "token", "tokens", "req", "total", "tps", "qps"})


_LONG_NAMES = (
    (re.compile(r"time_to_first_(?:token|byte)|first_token(?:_latency|_time)?|ttfb"), "ttft"),
    (re.compile(r"inter_token_latency|inter_token"), "itl"),
    (re.compile(r"time_per_output_token"), "tpot"),
    (re.compile(r"end_to_end(?:_latency)?|total_latency"), "e2e"),
)


@dataclass(frozen=True, slots=True)
class Quantity:
    """One number with its name taken apart. `value` is in seconds for times, per second for rates."""

    what: str
    is_rate: bool
    stat: str
    situation: frozenset[str]
    values: tuple[float, ...]
    name: str
    where: str

    @property
    def last(self) -> float:
        return self.values[-1]

    def says(self, words: Iterable[str]) -> bool:
        return not self.situation.isdisjoint(words)


_CHANGE = re.compile(
    r"^(?P<whose>\w+):(?P<what>.+?)_(?P<how>change|drop|loss|gain|increase|decrease|reduction|slowdown|degradation)"
    r"_(?:perc(?:ent)?|pct)(?:_(?P<tail>.+))?$"
)
_PREFIXES = ("client:", "runs:", "promql:", "measured:", "bench:")


def quantities(e: Evidence, prefixes: tuple[str, ...] = _PREFIXES) -> list[Quantity]:
    found = (quantity_of(reading) for prefix in prefixes for reading in e.under(prefix))
    return [quantity for quantity in found if quantity is not None]


def quantity_of(reading: Reading, told_as: str = "") -> Quantity | None:
    """A reading with its name taken apart, or None where it is no time and no rate. `told_as`: what the
    reading is called where it stands, if that is not its name.
    """
    if not reading.numbers or _CHANGE.match(reading.name):
        return None
    short = reading.name.partition(":")[2].lower()
    for written, name in _LONG_NAMES:
        short = written.sub(name, short)
    words = [w for w in re.split(r"[_\s/.\-]+", short) if w]
    rate = is_rate(words)
    kinds = _RATE if rate else _LATENCY
    what = next((word for word in words if word in kinds), "")
    if not what and not rate:
        return None
    what = what or "output"
    unit = 1.0 if rate else next((_UNIT_S[w] for w in words if w in _UNIT_S.keys() - {"min"}), 1.0)
    stat = next((word for word in words if word in _STATS), "")
    known = {what, stat, *_UNIT_S, *_NOISE} | ({"tok", "throughput"} if rate else set())
    return Quantity(
        what,
        rate,
        stat,
        _situation(word for word in words if word not in known),
        tuple(v * unit for v in reading.numbers),
        told_as or reading.name,
        reading.where,
    )


_FALLS = frozenset({"drop", "loss", "decrease", "reduction", "slowdown", "degradation"})


def told_change(reading: Reading) -> Quantity | None:
    """client:throughput_change_perc_with_guided_json = -50 as a throughput of 50 in that situation, where 100
    is without it. None for what is no change in per cent.
    """
    found = _CHANGE.match(reading.name)
    if found is None or not reading.numbers:
        return None
    falls = found["how"] in _FALLS
    values = tuple(100.0 + (-abs(v) if falls else v) for v in reading.numbers)
    tail = f"_{found['tail']}" if found["tail"] else ""
    return quantity_of(
        Reading(f"{found['whose']}:{found['what']}{tail}", values, reading.where), reading.name
    )


def told_changes(e: Evidence) -> list[Quantity]:
    """Each change that was told with its situation, and what it is a change of: 100."""
    found = list[Quantity]()
    for prefix in ("client:", "runs:", "measured:"):
        for reading in e.under(prefix):
            there = told_change(reading)
            if there is not None and there.situation and min(there.values) > 0:
                found += [there, replace(there, situation=frozenset(), values=(100.0,))]
    return found


def duration_s(reading: Reading) -> float | None:
    """Seconds of a reading whose name has a unit of time anywhere: startup:minutes_prefetch."""
    words = re.split(r"[_\s/.\-:]+", reading.name.lower())
    unit = next((_UNIT_S[word] for word in words if word in _UNIT_S), None)
    if unit is None or reading.last is None or is_rate(words):
        return None
    return reading.last * unit


def _situation(words: Iterable[str]) -> frozenset[str]:
    """Words of a situation; what is negated is another word: no_spec -> {no, no-spec}."""
    found, negated = set[str](), False
    for written in words:
        word = _one_spelling(written)
        found.add(f"no-{word}" if negated else word)
        negated = word in {"no", "non", "without", "not"}
    return frozenset(found)


def is_rate(words: list[str]) -> bool:
    """Whether these words name a rate: tokens a second, requests a second, throughput."""
    joined = "_".join(words)
    return bool(
        re.search(
            r"tok(?:ens?)?_(?:per_)?s(?:ec)?(?:_|$)|throughput|tps|rps|qps|req(?:uests)?_per_s|req_s(?:_|$)|"
            r"(?:embeddings?|images?|pages?|documents?|docs|samples?|items?|prompts?|it)_per_s",
            joined,
        )
    )


_AT_ONCE = re.compile(
    r"(?:c|conc|concurrent|concurrency|users?|clients?|streams?|batch|bs|b|np|n)(\d+)|(\d+)(?:users|clients|streams)"
)


def _one_spelling(word: str) -> str:
    """c16 of concurrent16, users16 and 16clients; c1 of what is sent one after the other."""
    if match := _AT_ONCE.fullmatch(word):
        return f"c{match[1] or match[2]}"
    return "c1" if word in {"sequential", "serial", "sequentially"} else word


FIRST = frozenset({"first", "1st", "run1", "cold", "initial", "startup", "unwarmed", "prewarm"})
LATER = frozenset(
    {
        "subsequent",
        "2nd",
        "run2",
        "run3",
        "others",
        "repeated",
        "later",
        "second",
        "steady",
        "warm",
        "hot",
        "warmed",
        "next",
        "following",
        "rest",
    }
)
FRESH = frozenset({"fresh", "restart", "restarted", "new", "start", "early"})
AGED = frozenset(
    {"aged", "warm", "old", "60min", "hours", "days", "later", "uptime", "after", "late", "24h", "1h", "12h"}
)
ALONE = frozenset(
    {"alone", "single", "idle", "solo", "unloaded", "isolated", "baseline", "quiet", "c1", "low"}
)
BESIDE = frozenset(
    {"during", "with", "under", "beside", "loaded", "busy", "concurrent", "mixed", "others", "load", "burst"}
)
DIRECT = frozenset({"direct", "bypass", "local", "localhost", "native", "engine", "pod"})
THROUGH = frozenset(
    {"proxy", "gateway", "nginx", "router", "lb", "ingress", "through", "via", "balancer", "public"}
)
STRUCTURED = frozenset(
    {"guided", "structured", "json", "schema", "grammar", "regex", "xgrammar", "outlines", "constrained"}
)
PLAIN = frozenset(
    {"plain", "free", "unconstrained", "text", "without", "off", "unguided", "none", "no", "non"}
)
BEFORE = frozenset({"before", "old", "previous", "earlier", "usual", "normal", "yesterday"})
AFTER = frozenset({"after", "now", "new", "later", "today", "incident"})


@dataclass(frozen=True, slots=True)
class Pair:
    """The same thing in two situations."""

    base: Quantity
    other: Quantity

    @property
    def times_worse(self) -> float:
        """How much worse the other is than the base: latencies up, rates down."""
        low, high = (self.other, self.base) if self.base.is_rate else (self.base, self.other)
        return high.last / low.last if low.last > 0 else float("inf") if high.last > 0 else 1.0


def pairs(found: list[Quantity], base: frozenset[str], other: frozenset[str] | None) -> list[Pair]:
    """Same quantity, one in a situation of `base`, one in `other` (None: in no special one)."""
    return [
        Pair(a, b)
        for a in found
        if a.says(base)
        for b in found
        if b is not a and (a.what, a.is_rate) == (b.what, b.is_rate) and _alike(a.stat, b.stat)
        if (b.says(other) and not b.says(base - other) if other is not None else not b.says(base))
    ]


def degrees(found: list[Quantity], now: int) -> list[tuple[float, Quantity]]:
    """Rates by how many cards, ranks or nodes gave them: client:output_tok_s_tp4 -> (4, …), in order. What
    names none is of the `now` cards that the server has, where those are several.
    """
    plain = [(float(now), quantity) for quantity in found if now > 1 and not quantity.situation]
    seen = plain + [
        (float(match[1] or match[2]), quantity)
        for quantity in found
        for word in quantity.situation
        if (
            match := re.fullmatch(
                r"(?:tp|pp|gpus?|cards?|nodes?|x)(\d+)|(\d+)(?:gpus?|nodes?|cards?|x)", word
            )
        )
    ]
    whats = {quantity.what for _, quantity in seen}
    return sorted(seen, key=lambda pair: pair[0]) if len(whats) == 1 else []


def _alike(a: str, b: str) -> bool:
    return a == b or not a or not b
