"""Memory of the card that is in use: a server keeps what it was given, whatever the model or the load."""

import re
from collections.abc import Iterator

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.finding import Advice, Finding, Label, Severity
from headrace.diagnose.flag_facts import flag_facts
from headrace.diagnose.rules.memory import told_beside
from headrace.diagnose.rules.support import fact, start_failed, tells_of_oom


def full_by_design(e: Evidence) -> Iterator[Finding]:
    """VLLM takes utilization x card at start whatever the model: used memory says nothing of KV or a leak."""
    used = _gib_of(e, "gpu:memory_used", "gpu:mem_used")
    total = _gib_of(e, "gpu:memory_total", "gpu:mem_total", "hardware:gpu_mem", "hardware:gpu_total")
    asked = e.flag("gpu-memory-utilization") or flag_facts().default("gpu-memory-utilization", e.release)
    others = told_beside(e) or start_failed(e)
    if used and total and not others and e.engine in {"vllm", ""} and abs(used / total - asked) < 0.12:
        yield Finding(
            Label.MEASUREMENT,
            f"{used:.1f} of {total:.1f} GiB used is the share that was asked for ({asked:g}), not a "
            f"leak and not load",
            tuple(fact(e, r.name) for r in e.under("gpu:mem")),
            Advice(
                "nothing; judge KV by vllm:kv_cache_usage_perc and the 'KV cache size' line",
                "none",
                "--kv-cache-memory-bytes if the card must be shared",
                "the number is the same with and without requests",
            ),
            Severity.NOTE,
            0.6 if _measured(e) else 0.8,
            also=(Label.EXPECTED,),
        )


def _measured(e: Evidence) -> bool:
    """Whether more was told than how much of the card is in use."""
    told = ("client:", "vllm:", "log:", "host:")
    return any(r.numbers and r.name.startswith(told) for r in e.readings.values())


def memory_alone(e: Evidence) -> Iterator[Finding]:
    """Nothing but memory that is in use, and nothing that failed: a server keeps what it was given from
    its start to its end, so that number tells neither load nor a leak.
    """
    used = [r for r in e.under("gpu:") if _USED.search(r.name)]
    failed = tells_of_oom(e) or start_failed(e) or told_beside(e)
    grows = any(len(r.numbers) > 1 and r.numbers[-1] > 1.1 * r.numbers[0] for r in used)
    if used and not _measured(e) and not failed and not grows and e.engine in {"vllm", "sglang", ""}:
        yield Finding(
            Label.MEASUREMENT,
            "The memory that is in use on the card is what the server was given, whatever the model or "
            "the load",
            tuple(fact(e, r.name) for r in used[:2]),
            Advice(
                "nothing; a lower --gpu-memory-utilization or --kv-cache-memory-bytes where the card is "
                "shared",
                "none",
                verify="the 'KV cache size' line: what weights leave of the share is the pool",
            ),
            Severity.NOTE,
            0.6,
            also=(Label.EXPECTED,),
            explains=frozenset({Label.UNDETERMINED}),
        )


_USED = re.compile(r"mem(?:ory)?_used|used_mem|vram|mem(?:ory)?_(?:mib|gib|gb|mb)$")


def _gib_of(e: Evidence, *stems: str) -> float | None:
    for stem in stems:
        for unit, size in (("_gib", 1.0), ("_gb", 1.0), ("_mib", 1 / 1024), ("_mb", 1 / 1024)):
            if (value := e.number(stem + unit)) is not None:
                return value * size
    return None


RULES = (full_by_design, memory_alone)
