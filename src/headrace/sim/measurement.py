"""What came out of a simulation, as the record that measuring a real server gives.

    Simulated --timelines_and_failures--> (Timeline | Failure, ...)     in the trace's order

A simulated client has no network and is never late, so a request is sent when it is due and a
token is there when its step ends; the bill is the whole TTFT.
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
    )


def timelines_and_failures(simulated: Simulated) -> tuple[Timeline | Failure, ...]:
    """One for each request. A refused one is a failure, as it is for a client."""
    # One float per step, shared by all who got a token in it: a run of tokens is then a slice.
    step_ends_at = [_seconds(ends_ns) for ends_ns in simulated.step_ends_ns]
    return tuple(
        _result(number, life, step_ends_at[replica])
        for number, (life, replica) in enumerate(zip(simulated.lives, simulated.replica_of, strict=True))
    )


def _seconds(ends_ns: Sequence[int]) -> tuple[float, ...]:
    return tuple((np.asarray(ends_ns, dtype=np.int64) / 1e9).tolist())


def _result(number: int, life: Life, ends_at: tuple[float, ...]) -> Timeline | Failure:
    traced, due_at = life.traced, life.arrived_ns / 1e9
    if life.refused:
        return Failure(
            request_id=str(number),
            request_class=traced.request_class,
            prompt_tokens=traced.prompt_tokens,
            due_at=due_at,
            failed_at=due_at,
            kind=FailureKind.REFUSED,
            reason=life.refused,
        )
    assert life.finished, f"request {number} has no end, and the simulation has"
    return Timeline(
        request_id=str(number),
        request_class=traced.request_class,
        prompt_tokens=traced.prompt_tokens,
        due_at=due_at,
        sent_at=due_at,
        token_at=tuple(
            chain.from_iterable(ends_at[first : first + count] for first, count in life.token_steps)
        ),
        finish_reason=FinishReason.LENGTH.value,
        cached_tokens=life.cached_tokens,
        bill_s=_bill_s(life),
    )


def _bill_s(life: Life) -> dict[Cause, float] | None:
    return None if life.bill is None else life.bill.seconds()
