"""Up to how many tokens the packed weights are the faster form: that depends on the machine, so it is timed.

    seconds of a step of n tokens, packed and expanded  --few_tokens-->  the largest n for the packed form

Packed weights are an eighth of the memory to read, float32 ones want no unpacking. Where memory is slow
beside arithmetic, packed ones win up to 16 or 32 tokens; where it is fast, up to 4 (docs/log.md).
"""

from collections.abc import Callable

FEW_TOKENS = 4
"""Up to so many tokens OpenVINO multiplies one by one and unpacks on the way: always faster than expanded."""
SIZES: tuple[int, ...] = (8, 16, 32)
"""Beyond them both forms are equally fast, within the noise of any machine that was tried."""
CLEARLY = 0.97
"""Ratio of times below which the packed form is taken for the faster one."""

Seconds = Callable[[int], float]


def few_tokens(packed_s: Seconds, expanded_s: Seconds) -> int:
    """Each is asked for the time of a step of so many tokens; sizes beyond the first loss are not timed."""
    limit = FEW_TOKENS
    for size in SIZES:
        if packed_s(size) > CLEARLY * expanded_s(size):
            break
        limit = size
    return limit
