"""How likely the tokens of a prompt were, for requests that ask.

    plan --passes--> chunks --forward, each--> logits of prompt positions --take--> TokenLogprobs
                                                                                   '--give--> StepResult

The logits of position i say how likely token i + 1 was, so a prompt of n tokens has n - 1 of them. All
at once they would be large (4,000 tokens of a vocabulary of 49,152: 800 MB). So a step with many such
positions runs in several passes, each with as many as fit: cut into smaller chunks a prompt gives the same
keys, values and logits, and such a prompt reads nothing that another one of its step writes, as it takes
no blocks from the prefix cache.

What is known so far is kept from chunk to chunk.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.core.output import TokenLogprobs
from headrace.core.plan import Chunk, Plan, Status, Work
from headrace.core.ports import StepResult
from headrace.executor.sampler import logprobs_of

MOST_LOGIT_BYTES = 1 << 25
"""Of prompt positions in one pass. 170 rows of a vocabulary of 49,152: more make a pass no faster."""


@dataclass(slots=True)
class Pass:
    """What one forward pass computes: chunks of a plan, or parts of them."""

    chunks: list[Chunk]
    places: Sequence[int]
    """Of each chunk, where the whole of it stands in the plan."""
    asking: Sequence[int] = ()
    """Which of `chunks` have positions that somebody asks for."""


class PromptLogprobs:
    """Keeps by request what is known of its prompt until its first token takes it along."""

    def __init__(self, vocab_size: int, most_bytes: int = MOST_LOGIT_BYTES) -> None:
        self._most_rows = max(1, most_bytes // (4 * vocab_size))
        self._found: dict[str, list[TokenLogprobs]] = {}

    @property
    def num_remembered(self) -> int:
        return len(self._found)

    def passes(self, plan: Plan) -> Iterator[Pass]:
        """The chunks of `plan`. Only those of the last pass sample, and mostly it is the only one."""
        chunks = plan.chunks
        asking = [place for place, chunk in enumerate(chunks) if positions(chunk)]
        if not asking:
            yield Pass(chunks, range(len(chunks)))
            return
        rest = list(chunks)
        excess = sum(len(positions(chunks[place])) for place in asking) - self._most_rows
        for place in asking:
            while excess > 0 and (wanted := len(positions(rest[place]))):
                part, rest[place] = _cut(rest[place], min(wanted, self._most_rows))
                excess -= part.tokens
                yield Pass([part], [place], [0])
        places = [place for place, chunk in enumerate(rest) if chunk.tokens]
        if places:
            left = [rest[place] for place in places]
            yield Pass(left, places, [index for index, chunk in enumerate(left) if positions(chunk)])

    def take(self, chunk: Chunk, logits: NDArray[np.float32]) -> None:
        """A row for each of its positions. A work that comes back from the start begins anew."""
        work, start = chunk.work, chunk.start
        found = self._found.setdefault(work.request.request_id, [])
        assert len(found) >= start, f"{work}: nothing is known of positions {len(found)} to {start}"
        del found[start:]
        count = work.request.sampling.num_prompt_logprobs or 0
        for position, row in zip(positions(chunk), logits, strict=True):
            found.append(logprobs_of(row, work.token_ids[position + 1], count))

    def give(self, plan: Plan, result: StepResult) -> None:
        """Put what is whole beside the first token of its request."""
        given = {
            place: self._found.pop(chunk.work.request.request_id, [])
            for place, chunk in enumerate(plan.chunks)
            if chunk.samples and _asks(chunk.work)
        }
        result.prompt_logprobs = given or None

    def forget(self, work: Work) -> None:
        self._found.pop(work.request.request_id, None)


def positions(chunk: Chunk) -> range:
    """Of the work's text, those whose logits are wanted from this chunk. Mostly none."""
    work = chunk.work
    if not _asks(work):
        return range(0)
    return range(chunk.start, min(chunk.start + chunk.tokens, work.num_prompt_tokens - 1))


def _asks(work: Work) -> bool:
    """It has no token yet, and its request wants to know. Once it has ended nobody does."""
    return (
        work.request.sampling.num_prompt_logprobs is not None
        and work.num_tokens == work.num_prompt_tokens
        and work.status is not Status.FINISHED
    )


def _cut(chunk: Chunk, tokens: int) -> tuple[Chunk, Chunk]:
    return (
        Chunk(chunk.work, chunk.start, tokens, samples=False),
        Chunk(chunk.work, chunk.start + tokens, chunk.tokens - tokens, chunk.samples),
    )
