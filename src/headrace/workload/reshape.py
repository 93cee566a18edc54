"""The same requests at another time or of another size: more or less load, no ticks of a coarse clock."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import isfinite

from headrace.core.errors import BadInput
from headrace.workload.slices import MOST_TOKENS
from headrace.workload.trace import LONGEST_S, TraceRequest


def scaled(requests: Sequence[TraceRequest], load: float) -> tuple[TraceRequest, ...]:
    """The same requests at `load` times the rate: 2 halves the time between them."""
    if not (isfinite(load) and load > 0):
        raise BadInput(f"the load cannot be scaled by {load:g}", "2 doubles the rate, 0.5 halves it")
    if load == 1:
        return tuple(requests)
    span_s = requests[-1].due_at / load if requests else 0.0
    if span_s > LONGEST_S:
        raise BadInput(
            f"scaled by {load:g} the workload lasts {span_s:g} s; at most {LONGEST_S:.0f} s", "scale less"
        )
    return tuple(replace(traced, due_at=traced.due_at / load) for traced in requests)


def resized(requests: Sequence[TraceRequest], times: float) -> tuple[TraceRequest, ...]:
    """The same requests with `times` the tokens, of prompts, answers and what they share: the shape of a
    workload for a smaller model. What a prefix id stands for becomes a whole number of tokens, and prompts
    go with it.
    """
    block = max((traced.prefix_block_tokens for traced in requests), default=0)
    block_after = resized_block(block, times)
    if times == 1:
        return tuple(requests)
    longest = max((max(each.prompt_tokens, each.output_tokens) for each in requests), default=0)
    if longest * times > MOST_TOKENS:
        raise BadInput(
            f"scaled by {times:g} a length of {longest:,} tokens is more than {MOST_TOKENS:,}", "scale less"
        )
    prompt_times = block_after / block if block else times
    return tuple(
        replace(
            traced,
            prompt_tokens=max(1, round(traced.prompt_tokens * prompt_times)),
            output_tokens=max(1, round(traced.output_tokens * times)),
            prefix_block_tokens=block_after if traced.prefix_ids else 0,
        )
        for traced in requests
    )


def resized_block(block_tokens: int, times: float) -> int:
    """What a prefix id stands for then; 0 where there are none. Raises `BadInput`."""
    if not (isfinite(times) and times > 0):
        raise BadInput(f"lengths cannot be scaled by {times:g}", "0.5 halves them")
    return max(1, round(block_tokens * times)) if block_tokens else 0


def conversing(requests: Sequence[TraceRequest], think_s: float) -> tuple[TraceRequest, ...]:
    """Each turn of a session `think_s` after the answer before it, whenever the trace has it: for sessions of
    which nobody wrote down when answers ended.
    """
    if not any(traced.session for traced in requests):
        raise BadInput("no request says which session it is of, so none can wait for the turn before it")
    return tuple(replace(each, think_s=think_s) if each.session else each for each in requests)


def spread(requests: Sequence[TraceRequest]) -> tuple[TraceRequest, ...]:
    """Requests that share an instant, spread evenly up to the next one.

    For clocks that tick: Mooncake's traces show ten requests every 3 s, which nobody ever sent so.
    """
    instants = sorted({traced.due_at for traced in requests})
    until_next_s = {at: later - at for at, later in pairwise(instants)}
    crowd = Counter(traced.due_at for traced in requests)
    passed = Counter[float]()
    spread_out: list[TraceRequest] = []
    for traced in requests:
        at = traced.due_at
        share = passed[at] / crowd[at]
        spread_out.append(replace(traced, due_at=at + until_next_s.get(at, 0.0) * share))
        passed[at] += 1
    return tuple(spread_out)
