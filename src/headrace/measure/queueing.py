"""How much of a TTFT is the load's: the same kind of request alone, beside those of the run.

alone, measured --> {class: QueueShare(alone_s, loaded_s)}
"""

from dataclasses import dataclass

from headrace.core.measurement import Measurement
from headrace.core.timeline import Timeline


@dataclass(frozen=True, slots=True)
class QueueShare:
    """Mean TTFTs of one class."""

    alone: int
    """How many were sent alone."""
    alone_s: float
    loaded_s: float

    @property
    def share(self) -> float:
        """Of the mean TTFT under load, what a request alone does not have."""
        return max(0.0, 1 - self.alone_s / self.loaded_s) if self.loaded_s > 0 else 0.0


def queue_shares(measurement: Measurement) -> dict[str, QueueShare]:
    """Classes that were sent alone and answered under load."""
    alone = _means(measurement.alone)
    loaded = _means(measurement.timelines)
    return {
        name: QueueShare(alone[name][0], alone[name][1], loaded[name][1])
        for name in sorted(alone)
        if name in loaded
    }


def _means(timelines: tuple[Timeline, ...]) -> dict[str, tuple[int, float]]:
    by_class: dict[str, list[float]] = {}
    for timeline in timelines:
        by_class.setdefault(timeline.request_class, []).append(timeline.ttft_s)
    return {name: (len(ttft_s), sum(ttft_s) / len(ttft_s)) for name, ttft_s in by_class.items()}
