"""Requests like those of a workload, to be sent one by one: what a first token takes without a load.

    requests --alone_of--> of each class some that have as much to compute, and share nothing

What is still to be computed of a prompt decides its TTFT, so a prompt is as long here as a cache that forgets
nothing would leave of it.
"""

from collections.abc import Sequence
from dataclasses import replace

from headrace.workload.shared import SharedPrefixes
from headrace.workload.trace import TraceRequest

ANSWER_TOKENS = 8
"""At most: after the first token nothing is looked at."""


def alone_of(requests: Sequence[TraceRequest], of_each: int) -> list[TraceRequest]:
    """`of_each` of every class: of its requests, the middle of each of so many parts by length."""
    by_class: dict[str, list[TraceRequest]] = {}
    for fresh in _computed(requests):
        by_class.setdefault(fresh.request_class, []).append(fresh)
    chosen: list[TraceRequest] = []
    for name in sorted(by_class):
        rows = sorted(by_class[name], key=lambda row: row.prompt_tokens)
        chosen += [rows[(2 * part + 1) * len(rows) // (2 * of_each)] for part in range(of_each)]
    return chosen


def shared_share(requests: Sequence[TraceRequest]) -> float:
    """Of the prompt tokens, what a cache that forgets nothing would find."""
    computed = sum(fresh.prompt_tokens for fresh in _computed(requests))
    return 1 - computed / sum(traced.prompt_tokens for traced in requests)


def _computed(requests: Sequence[TraceRequest]) -> list[TraceRequest]:
    """Each with only what is its own."""
    seen = SharedPrefixes()
    return [
        replace(
            traced,
            due_at=0.0,
            prompt_tokens=traced.prompt_tokens
            - seen.shared_tokens(traced.prefix_ids, traced.prompt_tokens, traced.prefix_block_tokens),
            output_tokens=min(traced.output_tokens, ANSWER_TOKENS),
            prefix_ids=(),
            prefix_block_tokens=0,
            session="",
            think_s=None,
        )
        for traced in requests
    ]
