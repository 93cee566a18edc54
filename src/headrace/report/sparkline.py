"""A series as one line of blocks, for budgets over time."""

from collections.abc import Sequence

_HEIGHTS = " ▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], top: float) -> str:
    """One character a value: blank for nothing, full at `top` and above.

    Something is never drawn as nothing, nor less than the budget as all of it.
    """
    return "".join(_HEIGHTS[_height(value, top)] for value in values)


def _height(value: float, top: float) -> int:
    full = len(_HEIGHTS) - 1
    if value <= 0 or top <= 0:
        return 0
    if value >= top:
        return full
    return min(full - 1, max(1, round(value / top * full)))
