"""The load on a server as series, wherever it was read: metrics of any version, the periodic line, SGLang.

Evidence -> load_of -> Load(running, waiting, kv usage, tokens a second, preemptions)
"""

import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from headrace.diagnose.evidence import Evidence

# Names of any version and engine, and what people call them: the first pattern that some reading has counts.
_PREFIX = r"^(?:vllm|headrace|sglang|llamacpp|log|server|engine)[:_]"
RUNNING = (
    rf"{_PREFIX}num_(?:requests_running|running_reqs?)$",
    rf"{_PREFIX}running(?:_req(?:uest)?s)?$",
    rf"{_PREFIX}(?:num_)?(?:requests_)?running.*_max$",
    rf"{_PREFIX}.*running(?!.*(?:min|wait))",
)
WAITING = (
    rf"{_PREFIX}num_(?:requests_waiting|queue_reqs?)$",
    (
        rf"{_PREFIX}(?:waiting|pending|"
        rf"queued?)(?:_req(?:uest)?s)?$"
    ),
    (
        rf"{_PREFIX}.*(?:waiting|pending|queue_req|queued)(?!.*(?:min|by_reason|time|"
        rf"seconds)).*$"
    ),
)
KV = (
    (
        rf"{_PREFIX}(?:gpu_|"
        rf"kv_)?(?:kv_)?cache_usage(?:_perc)?$"
    ),
    rf"{_PREFIX}(?:kv_usage|token_usage)(?:_perc)?$",
    rf"{_PREFIX}(?!cpu).*(?:kv|cache|token).*usage(?!.*min).*$",
)
PREEMPTIONS = (
    rf"{_PREFIX}num_preemptions(?:_total)?$",
    rf"{_PREFIX}.*(?:preempt|retract|evicted_req)(?!.*(?:mode|count)).*$",
)
_A_SECOND = r"(?:throughput|tok(?:ens?)?_(?:per_)?s)"
GENERATED = (rf"{_PREFIX}(?:avg_)?gen(?:eration)?_{_A_SECOND}",)
PROMPTED = (rf"{_PREFIX}(?:avg_)?(?:prompt|prefill|input)_{_A_SECOND}",)

_OF_PART = re.compile(
    r"^(?P<name>.+?)\{(?:engine|pod|replica|instance|rank|dp|dp_rank|node|worker|server|gpu)=(?P<part>[^}]+)\}$"
)
_SPLIT = re.compile(r"_(?:by|per)_(?:engine|pod|replica|instance|rank|dp|node|worker|server|gpu)s?$")


ENOUGH_LOOKS, FEW, NOW_AND_THEN = 6, 2, 0.3


@dataclass(frozen=True, slots=True)
class Load:
    """Series, oldest first; empty where nothing says it. `names`: the reading each was taken from."""

    running: tuple[float, ...]
    waiting: tuple[float, ...]
    kv: tuple[float, ...]
    generated: tuple[float, ...]
    prompted: tuple[float, ...]
    preemptions: float | None
    names: Mapping[str, str]

    @property
    def peak_kv(self) -> float:
        return max(self.kv, default=0.0)

    @property
    def peak_waiting(self) -> float:
        return max(self.waiting, default=0.0)

    def waits_with_room(self, full: float) -> float:
        """Of the samples in which requests wait, the share in which KV usage is below `full`."""
        if len(self.kv) != len(self.waiting):
            return float(self.peak_waiting > 0 and self.peak_kv < full)
        seen = [kv < full for kv, waiting in zip(self.kv, self.waiting, strict=True) if waiting > 0]
        return sum(seen) / len(seen) if seen else 0.0

    @property
    def waits(self) -> bool:
        """Whether requests wait at more than a few looks: one is on its way to the engine now and then, or
        waits for the step in flight.
        """
        if len(self.waiting) < ENOUGH_LOOKS or self.peak_waiting > FEW:
            return self.peak_waiting > 0
        return sum(waiting > 0 for waiting in self.waiting) >= NOW_AND_THEN * len(self.waiting)

    @property
    def peak_running(self) -> float:
        return max(self.running, default=0.0)

    @property
    def is_idle(self) -> bool:
        """Seen, and not only unknown: nobody asked anything."""
        return bool(self.running) and self.peak_running == self.peak_waiting == 0 == sum(self.generated)


@lru_cache(maxsize=8)
def load_of(e: Evidence) -> Load:
    picked = {
        part: _name_of(e, names)
        for part, names in (
            ("running", RUNNING),
            ("waiting", WAITING),
            ("kv", KV),
            ("generated", GENERATED),
            ("prompted", PROMPTED),
            ("preemptions", PREEMPTIONS),
        )
    }
    return Load(
        running=_series(e, picked["running"]),
        waiting=_series(e, picked["waiting"]),
        kv=tuple(share(value) for value in _series(e, picked["kv"], together=max)),
        generated=_series(e, picked["generated"]),
        prompted=_series(e, picked["prompted"]),
        preemptions=increase(e, picked["preemptions"]) if picked["preemptions"] else None,
        names=picked,
    )


def share(value: float) -> float:
    """A share of 1, also of what was written in per cent."""
    return value / 100 if value > 1.5 else value


def by_part(e: Evidence, patterns: tuple[str, ...]) -> dict[str, tuple[float, ...]]:
    """Series by engine, pod or replica; empty for a single one."""
    for pattern in patterns:
        found = {
            match["part"]: reading.numbers
            for reading in e.readings.values()
            if reading.numbers
            and (match := _OF_PART.match(reading.name))
            and re.match(pattern, match["name"])
        }
        if len(found) > 1:
            return found
        for reading in e.readings.values():
            split = _SPLIT.search(reading.name)
            if split and len(reading.numbers) > 1 and re.match(pattern, reading.name[: split.start()]):
                return {str(part): (value,) for part, value in enumerate(reading.numbers)}
    return {}


def _name_of(e: Evidence, patterns: tuple[str, ...]) -> str:
    """The reading of the first pattern that has one; of several parts, their common name."""
    for pattern in patterns:
        for reading in e.readings.values():
            if reading.numbers and "{" not in reading.name and re.match(pattern, reading.name):
                return reading.name
        for reading in e.readings.values():
            match = _OF_PART.match(reading.name)
            if reading.numbers and match and re.match(pattern, match["name"]):
                return match["name"]
    return ""


def _series(e: Evidence, name: str, together: Callable[[Iterable[float]], float] = sum) -> tuple[float, ...]:
    if not name or e.series(name):
        return e.series(name) if name else ()
    engines = by_part(e, (f"^{re.escape(name)}$",)).values()
    shortest = min(map(len, engines), default=0)
    return tuple(together(series[-shortest + i] for series in engines) for i in range(shortest))


def increase(e: Evidence, *names: str) -> float | None:
    """How much a counter grew over the scrapes; its whole value where there is one scrape."""
    for name in names:
        values = e.series(name)
        if len(values) > 1 and _is_counter(name) and min(values) >= 0:
            return sum(max(0.0, later - earlier) for earlier, later in itertools.pairwise(values))
        if values:
            return values[-1]
    return None


def _is_counter(name: str) -> bool:
    """By its name, with or without labels: foo_total, foo_bucket{le=0.1}."""
    return name.partition("{")[0].endswith(("_total", "_sum", "_count", "_bucket"))


def mean_of(e: Evidence, histogram: str) -> float | None:
    """Mean of a histogram over the scrapes, or over the server's life where there is one."""
    count, total = increase(e, f"{histogram}_count"), increase(e, f"{histogram}_sum")
    if (told := e.number(f"{histogram}_mean", f"{histogram}_avg")) is not None:
        return told
    counts = e.series(f"{histogram}_count")
    totals = e.series(f"{histogram}_sum")
    if len(counts) > 1 and len(totals) == len(counts) and counts[-1] > counts[0]:
        return (totals[-1] - totals[0]) / (counts[-1] - counts[0])
    return total / count if count and total is not None else None
