"""What versions of vLLM count differently when they divide up a card's memory.

Evidence beside each rule; pull requests and issues are those of vllm-project/vllm. Between the versions that
were looked at the change may lie elsewhere: `docs/planning.md`.
"""

from dataclasses import dataclass

from headrace.core.errors import BadInput
from headrace.core.versions import KNOWN, VLLM_VERSION


@dataclass(frozen=True, slots=True)
class Accounting:
    """Rules of one version."""

    gpu_memory_utilization: float
    """The default: 0.9 until 0.19 (the reference run's), 0.92 in 0.21 and 0.32."""
    counts_graphs: bool
    """CUDA graphs are estimated before and come off the KV cache: since 0.21 (its own log line says so), but
    not in a logged start of 0.27 with the second model runner, nor in one of main before it (#48601)."""
    prints_by_groups: bool
    """The line of tokens is the one that shares blocks among groups: until 0.20 (#38364, #40691, #43308)."""
    counts_every_step: bool
    """Windows reserve for each of the steps under way, not for one: since 0.26 (#47728, #49878)."""
    caches_states: bool
    """With prefix caching a state takes two blocks: not in 0.19 (#40691), in 0.32."""


def accounting_of(version: str = VLLM_VERSION) -> Accounting:
    """`version` without its patch number, as "0.32". Raises `BadInput` if it is not one of `KNOWN`."""
    if version not in KNOWN:
        raise BadInput(
            f"--vllm-version is {version!r}, whose accounting is not known here", f"one of {', '.join(KNOWN)}"
        )
    minor = int(version.partition(".")[2])
    return Accounting(
        gpu_memory_utilization=0.92 if minor >= 20 else 0.9,
        counts_graphs=minor >= 21 and minor != 27,
        prints_by_groups=minor < 21,
        counts_every_step=minor >= 26,
        caches_states=minor >= 20,
    )
