"""What a server or a report of it looks like, each a question with yes or no: traits that numbers give."""

import re
from collections.abc import Callable, Mapping

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.flag_facts import flag_facts
from headrace.diagnose.load import load_of, share
from headrace.diagnose.quantities import quantities
from headrace.diagnose.rules.cache import hit_rate
from headrace.diagnose.rules.support import (
    concurrency,
    has_load,
    out_of_memory,
    start_failed,
    tells_of_oom,
    told_words,
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


STATES: Mapping[str, Callable[[Evidence], bool]] = {
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
    "oom": lambda e: out_of_memory(e) or bool(re.search(r"\b(?:oom|out of memory)\b", told_words(e))),
}  # fmt: skip
