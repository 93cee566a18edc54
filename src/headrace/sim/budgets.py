"""How the budgets were spent over time: tokens, slots, KV, queue, in bins of equal length.

A bin holds time-weighted means of what was the case while steps ran in it; a bin in which none ran
is idle. Written for millions of steps: one call a step, or one for a whole stretch.
"""

from dataclasses import dataclass

from headrace.core.output import Occupancy


@dataclass(frozen=True, slots=True)
class BudgetSample:
    """One bin. Means over the time in which steps ran, except `tokens_per_s` and `busy`."""

    at_s: float
    busy: float
    """Share of the bin in which a step ran."""
    tokens_per_s: float
    """Tokens computed in the bin by its length."""
    running: float
    waiting: float
    kv_cache_usage: float


class BudgetSeries:
    """Adds up steps into bins of `bin_s` seconds."""

    def __init__(self, bin_s: float) -> None:
        self.bin_s = bin_s
        self._bin_ns = round(bin_s * 1e9)
        self._bins: dict[int, list[float]] = {}  # busy ns, tokens, and running, waiting, usage times ns

    def add(self, begin_ns: int, end_ns: int, tokens: int, now: Occupancy) -> None:
        """Steps from `begin_ns` to `end_ns` computed `tokens` tokens, with the engine as in `now`."""
        width = self._bin_ns
        running, waiting, usage = now
        number = begin_ns // width
        tokens_per_ns = tokens / (end_ns - begin_ns)
        while begin_ns < end_ns:
            upto_ns = min(end_ns, (number + 1) * width)
            spent_ns = upto_ns - begin_ns
            sums = self._bins.get(number)
            if sums is None:
                sums = self._bins[number] = [0.0] * 5
            sums[0] += spent_ns
            sums[1] += tokens_per_ns * spent_ns
            sums[2] += running * spent_ns
            sums[3] += waiting * spent_ns
            sums[4] += usage * spent_ns
            begin_ns, number = upto_ns, number + 1

    def samples(self) -> tuple[BudgetSample, ...]:
        return tuple(
            BudgetSample(
                at_s=number * self.bin_s,
                busy=sums[0] / self._bin_ns,
                tokens_per_s=sums[1] / self.bin_s,
                running=sums[2] / sums[0],
                waiting=sums[3] / sums[0],
                kv_cache_usage=sums[4] / sums[0],
            )
            for number, sums in sorted(self._bins.items())
        )
