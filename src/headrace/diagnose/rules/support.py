"""What many rules need: facts from readings, and whether the server started at all."""

import re

from headrace.diagnose.evidence import Event, Evidence
from headrace.diagnose.finding import Fact
from headrace.diagnose.load import Load

START_FAILURES = (
    "kv_too_short",
    "no_blocks",
    "free_below_budget",
    "profile_drift",
    "unbalanced",
    "oom_load",
    "oom_sampler",
    "oom_capture",
    "unknown_flag",
    "config_error",
)
OUT_OF_MEMORY = ("oom", "oom_load", "oom_sampler", "oom_capture")
LONGEST_LINE = 320
"""Of a log, as a fact: the longest messages of vLLM about memory need no more to be understood."""
_GIB = {"K": 1 / 2**20, "M": 1 / 2**10, "G": 1.0}


def fact(e: Evidence, name: str, text: str = "") -> Fact:
    """A reading or flag as a fact: `text`, or its name and last value."""
    if not text:
        reading, flag = e.readings.get(name), e.flags.get(name)
        value = reading.values[-1] if reading and reading.values else flag.value if flag else "?"
        text = f"{'--' if flag and not reading else ''}{name} = {number(value)}"
    return Fact(text, e.where(name))


def said(event: Event) -> Fact:
    """A log line as a fact."""
    text = event.text.strip()
    return Fact(text if len(text) <= LONGEST_LINE else f"{text[: LONGEST_LINE - 2]} …", event.where)


def number(value: object) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def gib(text: str) -> float | None:
    """GiB of "448.00 KiB"; None of anything else."""
    found = re.fullmatch(r"([\d.]+) ([KMG])iB", text.strip())
    return float(found[1]) * _GIB[found[2]] if found and found[1].count(".") < 2 else None


def start_failed(e: Evidence) -> bool:
    return any(e.counts.get(kind) for kind in START_FAILURES) or _died_of_memory(e)


def _died_of_memory(e: Evidence) -> bool:
    return bool(e.counts.get("oom")) and not e.counts.get("ready")


def out_of_memory(e: Evidence) -> bool:
    return any(e.counts.get(kind) for kind in OUT_OF_MEMORY)


_PERHAPS = ("would", "could", "might", "may", "can")
"""What was feared did not happen."""
_DENIED = "".join(
    f"(?<!{word}[ _])"
    for word in (
        "no",
        "not",
        "not an",
        "without",
        "never",
        "avoid",
        "avoids",
        "prevent",
        "prevents",
        "against",
        *_PERHAPS,
    )
)
TOLD_OOM = re.compile(
    rf"(?<![a-z]){_DENIED}(?:oom(?![a-z])|out[ _]of[ _]memory)"
    r"(?![ _-]?(?:workaround|fix\b|guard|safe|protect|prevent|avoid|risk|headroom|margin|free\b))"
)

TOLD_OF_THE_HOST = re.compile(
    r"\b(?:pods?|containers?|oom ?-?kill\w*|rss|resident|host (?:memory|ram)|system (?:memory|ram)|cgroup|"
    r"exit code 137|kernel killed)\b"
)


def told_words(e: Evidence) -> str:
    """Names and texts of everything but the server's own metrics and log, in lower case."""
    own = ("vllm:", "log:", "told:")
    return " ".join(f"{r.name} {r.text}" for r in e.readings.values() if not r.name.startswith(own)).lower()


def tells_of_oom(e: Evidence) -> bool:
    """Whether somebody tells of an out-of-memory, or its line was read."""
    return out_of_memory(e) or TOLD_OOM.search(told_words(e)) is not None


def on_cpu(e: Evidence) -> bool:
    """Whether the engine computes on the CPU, where eager mode and float32 are how it is done."""
    told = " ".join(e.text(f"hardware:{name}") for name in ("gpu", "accelerator", "device")).lower()
    return any(event.fields.get("device") == "CPU" for event in e.of("kv_size")) or told.strip() == "cpu"


def has_load(e: Evidence) -> bool:
    """Whether anything was measured of a server at work."""
    prefixes = ("client:", "vllm:", "sglang:", "headrace:", "log:", "gpu:", "runs:", "sweep:", "promql:")
    return any(name.startswith(prefixes) for name in e.readings)


def told_tokens(text: str) -> list[float]:
    """Lengths in words a person wrote: "two cold 72k-token prompts" -> 72000."""
    found = re.findall(
        r"(?<![\w.])(\d+(?:\.\d+)?)\s?(k?)(?=[\s-]?(?:tokens?|prompts?|prefills?|session|context|cold|input))|(?<![\w.])(\d+(?:\.\d+)?)k\b",
        text.lower(),
    )
    return [float(a) * (1000 if k else 1) if a else float(b) * 1000 for a, k, b in found]


_IS_LENGTH = re.compile(
    r"workload:(?!.*(?:shared|prefix|output|tok_s|per_s|ratio|share|block)).*(?:prompt|input|context|isl|prefill)"
)


def prompt_tokens(e: Evidence) -> list[float]:
    """All lengths of prompts that are known, in whatever way."""
    given, told = list[float](), list[float]()
    for reading in e.under("workload:"):
        if _IS_LENGTH.match(reading.name):
            each = CHARACTERS_A_TOKEN if re.search(r"char|letters|bytes", reading.name) else 1.0
            given += [n / each for n in reading.numbers if n > 1]
            given += [n / each for v in reading.values if isinstance(v, str) for n in _lengths(v)]
        elif not reading.numbers:
            told += told_tokens(reading.text)
    return given or told


CHARACTERS_A_TOKEN = 4.0
"""Of English; fewer of other languages."""


def _lengths(text: str) -> list[float]:
    """Of "100000-180000", of ">=80k"."""
    found = re.findall(r"(\d+(?:\.\d+)?)\s?(k?)", text.lower().replace(",", ""))
    return [float(n) * (1000 if k else 1) for n, k in found if len(n) < 9]


_AT_ONCE = (
    "client_concurrency",
    "concurrency",
    "concurrent",
    "concurrent_requests",
    "max_concurrency",
    "clients",
    "users",
    "batch",
    "batch_size",
    "parallel",
    "streams",
)


def concurrency(e: Evidence) -> float | None:
    """How many requests the clients keep open at once."""
    for name in _AT_ONCE:
        if (found := e.number(f"workload:{name}", f"client:{name}")) is not None:
            return found
    return None


def asks_at_once(e: Evidence) -> bool:
    """Whether the load generator sends without a limit."""
    endless = e.text("workload:request_rate").strip() in {"inf", "infinity"} or "workload:burst" in e.readings
    return endless or _AT_A_BLOW.search(e.told()) is not None


_AT_A_BLOW = re.compile(r"\b(?:all )?at once\b|simultaneous(?:ly)?\b|\bin one burst\b|\ball together\b")


def load_facts(e: Evidence, load: Load) -> tuple[Fact, ...]:
    names = [name for part, name in load.names.items() if name in e.readings and part != "prompted"]
    engines = [r.name for r in e.under("vllm:num_requests_running{engine=")][:4]
    return tuple(fact(e, name, span(e, name)) for name in names) + tuple(fact(e, name) for name in engines)


def span(e: Evidence, name: str) -> str:
    values = e.series(name)
    if len(values) < 2:
        return f"{name} = {values[-1]:g}" if values else name
    return f"{name}: {min(values):g} to {max(values):g}, last {values[-1]:g}"
