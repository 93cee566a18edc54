"""What came out of a simulation, as the record that measuring a real server gives.

    Simulated --timelines_and_failures--> (Timeline | Failure, ...)     in the trace's order

A simulated client has no network and is never late, so a request is sent when it is due and a token
is there when its step ends, plus the way back where that is known. Without it the bill is the whole TTFT.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from headrace.core.bill import Cause
from headrace.core.measurement import Measurement
from headrace.core.request import FinishReason
from headrace.core.timeline import Failure, FailureKind, Timeline
from headrace.sim.replica import Life
from headrace.sim.run import Simulated


@dataclass(frozen=True, slots=True)
class About:
    """What a record says beside its requests."""

    target: str
    model: str
    settings: dict[str, int | float | bool | str]
    workload: str
    versions: dict[str, str]
    seed: int = 0
    """A trace has none."""
    shared_share: float = 0.0
    """As `Measurement` has it."""


def measurement_of(simulated: Simulated, about: About) -> Measurement:
    results = timelines_and_failures(simulated)
    ends = (result.token_at[-1] if isinstance(result, Timeline) else result.failed_at for result in results)
    return Measurement(
        target=about.target,
        model=about.model,
        settings=about.settings,
        workload=about.workload,
        seed=about.seed,
        duration_s=max(ends),
        results=results,
        versions=about.versions,
        shared_share=about.shared_share,
    )


def timelines_and_failures(simulated: Simulated) -> tuple[Timeline | Failure, ...]:
    """One for each request. A refused one is a failure, as it is for a client."""
    # One float per step, shared by all who got a token in it: a run of tokens is then a slice.
    back_s = simulated.answer_ns / 1e9
    seen_at = [_seconds(ends_ns, simulated.answer_ns) for ends_ns in simulated.step_ends_ns]
    return tuple(
        _failure(life, back_s) if life.refused else _timeline(life, seen_at[replica])
        for life, replica in zip(simulated.lives, simulated.replica_of, strict=True)
    )


def _seconds(ends_ns: Sequence[int], answer_ns: int) -> tuple[float, ...]:
    return tuple(((np.asarray(ends_ns, dtype=np.int64) + answer_ns) / 1e9).tolist())


def _failure(life: Life, back_s: float) -> Failure:
    request, traced = life.request, life.traced
    return Failure(
        request_id=request.request_id,
        request_class=traced.request_class,
        prompt_tokens=traced.prompt_tokens,
        due_at=request.arrived_ns / 1e9,
        failed_at=request.handed_ns / 1e9 + back_s,
        kind=FailureKind.REFUSED,
        reason=life.refused,
    )


def _timeline(life: Life, seen_at: tuple[float, ...]) -> Timeline:
    """`seen_at[i]`: when clients have the tokens of step i."""
    request, traced = life.request, life.traced
    assert life.finished, f"request {request.request_id} has no end, and the simulation has"
    due_at = request.arrived_ns / 1e9
    runs = [seen_at[first : first + count] for first, count in life.token_steps]
    return Timeline(
        request_id=request.request_id,
        request_class=traced.request_class,
        prompt_tokens=traced.prompt_tokens,
        due_at=due_at,
        sent_at=due_at,
        token_at=runs[0] if len(runs) == 1 else tuple(chain.from_iterable(runs)),
        finish_reason=FinishReason.LENGTH.value,
        cached_tokens=life.cached_tokens,
        bill_s=_bill_s(life),
    )


def _bill_s(life: Life) -> dict[Cause, float] | None:
    return None if life.bill is None else life.bill.seconds()
