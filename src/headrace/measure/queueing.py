"""How much of a TTFT is the load's: the same kind of request alone, beside those of the run.

    alone, measured --> {class: QueueShare(alone_s, loaded_s)}

Each that was sent alone is set beside those of its class that had about as many prompt tokens to compute: a
class may hold short and long prompts, and what a prefix cache has found is computed by neither.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from headrace.core.measurement import Measurement
from headrace.core.timeline import Timeline

NEAR, FEWEST = 0.25, 5


@dataclass(frozen=True, slots=True)
class QueueShare:
    """Mean TTFTs of requests of one class that had as much to compute."""

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
    alone, loaded = _by_class(measurement.alone), _by_class(measurement.timelines)
    return {
        name: QueueShare(
            len(alone[name]),
            fmean(each.ttft_s for each in alone[name]),
            fmean(_like_s(each, loaded[name]) for each in alone[name]),
        )
        for name in sorted(alone)
        if name in loaded
    }


def _like_s(alone: Timeline, loaded: Sequence[Timeline]) -> float:
    """Mean TTFT of all within `NEAR` of its length, or of the `FEWEST` nearest."""
    computed = _computed_tokens(alone)
    nearest = sorted(loaded, key=lambda each: abs(_computed_tokens(each) - computed))
    near = sum(abs(_computed_tokens(each) - computed) <= NEAR * computed for each in nearest)
    return fmean(each.ttft_s for each in nearest[: max(FEWEST, near)])


def _computed_tokens(timeline: Timeline) -> int:
    return timeline.prompt_tokens - timeline.cached_tokens


def _by_class(timelines: Sequence[Timeline]) -> dict[str, list[Timeline]]:
    by_class: dict[str, list[Timeline]] = {}
    for timeline in timelines:
        by_class.setdefault(timeline.request_class, []).append(timeline)
    return by_class
