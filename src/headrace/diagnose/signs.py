"""What causes look like where no rule can compute with what is given: signs that add up.

    evidence -> words and what was seen -> weight for each cause -> suspects, most likely first

A rule knows a mechanism and checks its numbers. A report often lacks them, yet speaks of what it is about.
Signs (data/signs.toml) weigh that, for and against; what comes of it is a suspicion that says so, and what
would confirm it. It is asked for only where no rule has spoken.
"""

import re
import tomllib
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.finding import Label
from headrace.diagnose.flag_facts import flag_facts
from headrace.diagnose.load import load_of, share
from headrace.diagnose.messages import messages
from headrace.diagnose.quantities import quantities, quantity_of
from headrace.diagnose.rules.cache import hit_rate
from headrace.diagnose.rules.contrasts import told_to_change_nothing
from headrace.diagnose.rules.support import (
    concurrency,
    has_load,
    out_of_memory,
    start_failed,
    tells_of_oom,
)

ENOUGH = 2.0
"""Weight from which a cause is suspected by numbers alone, which are seen on healthy servers too."""
ENOUGH_SPOKEN = 1.0
"""The same where somebody spoke of it: then it is right far more often than "cannot tell" is."""
LEAD = 0.5
"""By so much it must outweigh the next, or neither is named."""
_LONGEST_CORPUS = 20_000


@dataclass(frozen=True, slots=True)
class Sign:
    label: Label
    weight: float
    words: re.Pattern[str] | None
    seen: str
    says: str
    beside: str
    """Counts only where this was seen too; empty: always."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A cause, how much speaks for it, and the reasons with the words that gave them."""

    label: Label
    weight: float
    reasons: tuple[str, ...]


def suspects(e: Evidence) -> tuple[Suspect, ...]:
    """Most likely first; empty where too little speaks for any, or as much for two."""
    told = words_of(e)
    seen = {name for name, test in SEEN.items() if test(e)}
    weights = defaultdict[Label, float](float)
    reasons = defaultdict[Label, list[str]](list)
    spoken = set[Label]()
    for sign in _signs():
        if (why := _holds(sign, told, seen)) is not None:
            weights[sign.label] += sign.weight
            spoken |= {sign.label} if sign.words is not None else set[Label]()
            if sign.weight > 0:
                reasons[sign.label].append(why)
    for message in messages().values():
        for line in e.of(message.kind)[:1]:
            weights[message.label] += message.weight
            spoken.add(message.label)
            reasons[message.label].append(f"{message.says} ({line.text.strip()[:80]})")
    ranked = sorted(weights.items(), key=lambda pair: -pair[1])
    ranked = [
        (label, weight)
        for label, weight in ranked
        if weight >= (ENOUGH_SPOKEN if label in spoken else ENOUGH)
    ]
    if not ranked or (len(ranked) > 1 and ranked[0][1] - ranked[1][1] < LEAD):
        return ()
    return tuple(Suspect(label, weight, tuple(reasons[label])) for label, weight in ranked)


def _holds(sign: Sign, told: str, seen: set[str]) -> str | None:
    if sign.beside and sign.beside not in seen:
        return None
    if sign.words is None:
        return sign.says if sign.seen in seen else None
    found = sign.words.search(told)
    return f"{sign.says} ({found[0].strip()})" if found else None


_ALWAYS_THERE = (
    *("vllm:", "headrace:", "sglang:", "llamacpp:", "process_", "http_"),
    *("log:", "hardware:", "startup:", "machine:", "server:", "client:bill_"),
)


def words_of(e: Evidence) -> str:
    """What was told of what happens, as words: names of numbers, texts. What a machine has is no sign, nor
    are the names that a server gives its metrics, whatever they count.
    """
    parts = list[str]()
    idle = {reading.name for _, reading in told_to_change_nothing(e)}
    for reading in e.readings.values():
        if not reading.name.startswith(_ALWAYS_THERE) and reading.name not in idle:
            quantity = quantity_of(reading) if reading.name.startswith("client:") else None
            name = " ".join(sorted(quantity.situation)) if quantity else reading.name.partition(":")[2]
            parts.append(f"{name} {'' if reading.numbers else reading.text}")
    parts += [event.text for event in e.of("error")]
    text = " | ".join(parts)[:_LONGEST_CORPUS].lower()
    return re.sub(r"[_:]+", " ", text)


@cache
def _table() -> Mapping[str, list[Mapping[str, str]]]:
    return tomllib.loads(files("headrace.diagnose").joinpath("data/signs.toml").read_text("utf-8"))


@cache
def _signs() -> tuple[Sign, ...]:
    return tuple(
        Sign(
            Label(sign["label"]),
            float(sign["weight"]),
            re.compile(sign["words"]) if "words" in sign else None,
            sign.get("seen", ""),
            sign["says"],
            sign.get("with", ""),
        )
        for sign in _table()["sign"]
    )


def _gpu(e: Evidence) -> float | None:
    used = [
        share(r.last)
        for r in e.under("gpu:")
        if r.last is not None and re.search(r"util|busy|sm_", r.name) and "mem" not in r.name
    ]
    return min(used, default=None)


def _cpu(e: Evidence) -> float | None:
    used = [share(r.last) for r in e.under("host:") if r.last is not None and _CPU_USE.search(r.name)]
    return max(used, default=None)


_CPU_USE = re.compile(r"cpu.*(?:util|perc|usage)")


def _is(value: float | None, least: float, most: float) -> bool:
    return value is not None and least <= value <= most


SEEN: Mapping[str, Callable[[Evidence], bool]] = {
    "kv_full": lambda e: load_of(e).peak_kv >= 0.9 and not load_of(e).is_idle,
    "kv_low": lambda e: bool(load_of(e).kv) and load_of(e).peak_kv < 0.5,
    "waits_with_room": lambda e: load_of(e).waits_with_room(0.9) > 0.5 and bool(load_of(e).kv),
    "no_queue": lambda e: bool(load_of(e).waiting) and load_of(e).peak_waiting == 0,
    "no_token_made": lambda e: (
        load_of(e).generated[-1:] == (0.0,) and max(load_of(e).prompted[-1:], default=0.0) == 0
    ),
    "gpu_idle": lambda e: _is(_gpu(e), 0.0, 0.75),
    "gpu_busy": lambda e: _is(_gpu(e), 0.95, 1.0),
    "cpu_busy": lambda e: _is(_cpu(e), 0.9, 1.5),
    "one_stream": lambda e: concurrency(e) == 1 or load_of(e).peak_running == 1,
    "slow_first_token": lambda e: any(
        q.what == "ttft" and not q.is_rate and q.last > 2.0 for q in quantities(e)
    ),
    "old_flag": lambda e: any(name in flag_facts().gone for name in e.flags),
    "few_hits": lambda e: _is(hit_rate(e)[0], 0.0, 0.1),
    "some_hits": lambda e: _is(hit_rate(e)[0], 0.1, 1.0),
    "only_startup": lambda e: (
        any(e.under("startup:")) and not has_load(e) and not e.counts.get("init_engine")
    ),
    "memory": lambda e: start_failed(e) or tells_of_oom(e) or any(e.under("startup:kv")),
    "oom": lambda e: out_of_memory(e) or bool(re.search(r"\b(?:oom|out of memory)\b", words_of(e))),
}  # fmt: skip
