"""Make a failing trace small enough to read: drop requests, shorten them, calm the settings."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from bench.parity.peer import whole
from headrace.core.errors import BadInput
from tests.traces import Planned, Trace, write_trace


class Player(Protocol):
    """Whoever decides a whole trace."""

    def play(self, trace: Trace) -> list[str]:
        """A digest for every step."""
        ...


def keep_smallest(ours: Player, peer: Player, trace: Trace, folder: Path) -> Path:
    """Shrink a trace on which the two differ, and keep it with the peer's answer as a regression test."""
    smallest = shrink(trace, lambda smaller: ours.play(smaller) != peer.play(smaller))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"mismatch-{trace.seed}.json"
    write_trace(path, smallest, whole(peer.play(smallest)))
    return path


def shrink(trace: Trace, fails: Callable[[Trace], bool]) -> Trace:
    """The smallest trace found by greedy steps that still `fails`. `trace` itself must fail."""
    changed = True
    while changed:
        changed = False
        for smaller in _smaller(trace):
            if fails(smaller):
                trace, changed = smaller, True
                break
    return trace


def _smaller(trace: Trace) -> Iterator[Trace]:
    for index in range(len(trace.requests)):
        rest = trace.requests[:index] + trace.requests[index + 1 :]
        if rest:
            yield replace(trace, requests=rest)
    for index, planned in enumerate(trace.requests):
        for shorter in _shorter(planned):
            yield replace(trace, requests=(*trace.requests[:index], shorter, *trace.requests[index + 1 :]))
    for change in (
        {"enable_prefix_caching": False},
        {"long_prefill_token_threshold": 0},
        {"watermark": 0.0},
        {"enable_chunked_prefill": True},
        {"scheduling_policy": "fcfs"},
    ):
        if any(getattr(trace.settings, name) != value for name, value in change.items()):
            try:
                yield replace(trace, settings=replace(trace.settings, **change))
            except BadInput:
                continue


def _shorter(planned: Planned) -> Iterator[Planned]:
    request = planned.request
    prompt, sampling = request.prompt_token_ids, request.sampling
    if planned.cancel_at_step is not None:
        yield replace(planned, cancel_at_step=None, cancelled_while_it_runs=False)
    if planned.cancelled_while_it_runs:
        yield replace(planned, cancelled_while_it_runs=False)
    if planned.at_step:
        yield replace(planned, at_step=planned.at_step // 2)
    for cut in (len(prompt) // 2, len(prompt) - 1):
        if 0 < cut < len(prompt):
            yield replace(planned, request=replace(request, prompt_token_ids=prompt[:cut]))
    if sampling.max_tokens > 1:
        fewer = replace(sampling, max_tokens=sampling.max_tokens // 2)
        yield replace(planned, request=replace(request, sampling=fewer))
