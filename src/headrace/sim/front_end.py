"""What lies between a client and the engine, in virtual time: the way in, and the way back.

    trace --on_the_way_in--> as the engine gets it --simulate--> results --on_the_way_back--> as seen

The way in is one queue: a front end takes requests one after another. The way back is the same for
all tokens, since what a step brings is sent at once; what sending costs the machine is in its steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headrace.core.bill import Cause
from headrace.core.cost import FrontEnd
from headrace.core.timeline import Failure, Timeline
from headrace.workload.trace import TraceRequest


@dataclass(frozen=True, slots=True)
class WayIn:
    """`handed[i]` is request i of the trace, due when the engine gets it."""

    front_end: FrontEnd
    trace: tuple[TraceRequest, ...]
    handed: tuple[TraceRequest, ...]


def on_the_way_in(trace: Sequence[TraceRequest], front_end: FrontEnd) -> WayIn:
    """Requests keep their order."""
    handed: list[TraceRequest] = []
    free_at = 0.0
    for traced in trace:
        free_at = max(free_at, traced.due_at) + front_end.inward_ns(traced.prompt_tokens) / 1e9
        handed.append(replace(traced, due_at=free_at))
    return WayIn(front_end, tuple(trace), tuple(handed))


def on_the_way_back(results: Sequence[Timeline | Failure], way_in: WayIn) -> tuple[Timeline | Failure, ...]:
    """`results` are those of `way_in.handed`, in its order."""
    back_s = way_in.front_end.answer_ns / 1e9
    return tuple(
        _seen(result, traced.due_at, back_s) for result, traced in zip(results, way_in.trace, strict=True)
    )


def _seen(result: Timeline | Failure, due_at: float, back_s: float) -> Timeline | Failure:
    if isinstance(result, Failure):
        return replace(result, due_at=due_at, failed_at=result.failed_at + back_s)
    bill_s = result.bill_s
    if bill_s is not None:
        bill_s = bill_s | {Cause.FRONT_END: bill_s[Cause.FRONT_END] + result.due_at - due_at}
    return replace(
        result,
        due_at=due_at,
        sent_at=due_at,
        token_at=tuple(at + back_s for at in result.token_at),
        bill_s=bill_s,
    )
