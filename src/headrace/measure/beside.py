"""What a prompt costs beside requests that decode, as their client sees it.

    decoding  |--|--|--|--|-----------|--|--|        tokens; a gap is a step
    newcomer          ^sent           ^first token   the long gap is the step that computed it

    seen_beside -> [Beside(gaps, who was in them)] --records_of--> [(StepShape, ns), ...]
                                                   --chunk_tokens--> tokens a step may have

Where a prompt does not fit into one step there are several long gaps, of chunks that are as large as a
step may be, all but the last. How large that is is then found from their lengths in time.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from headrace.core.cost import CostModel, StepShape
from headrace.core.timeline import Timeline

Record = tuple[StepShape, int]

_LONG = 1.3
"""Times a usual gap: a gap that computed a chunk of a prompt that needs several."""
_LEAST_SHARE = 0.25
"""Of the longest chunk's gap: all chunks but the last have as many tokens, early ones less to attend to."""


@dataclass(frozen=True, slots=True)
class Beside:
    """Prompts that were computed in the same gaps of those who decoded."""

    decode_seqs: int
    decode_context_tokens: int
    prompts: tuple[tuple[int, int], ...]
    """Tokens computed and tokens that were cached, of each."""
    gaps_ns: tuple[int, ...]

    @property
    def tokens(self) -> int:
        return self.decode_seqs + sum(tokens for tokens, _ in self.prompts)


def seen_beside(
    decoding: Sequence[Timeline], newcomers: Sequence[Timeline], *, together: bool = False
) -> list[Beside]:
    """One for each newcomer that was computed while others decoded; those who met nobody are left out.

    `together`: the newcomers came at once, so they are seen only if one and the same gap computed them all.
    """
    if together:
        last = max(newcomers, key=lambda newcomer: newcomer.token_at[0])
        seen = _seen(decoding, last, newcomers)
        firsts = {_nearest(decoding[0], newcomer.token_at[0]) for newcomer in newcomers}
        return [seen] if seen is not None and len(firsts) == 1 and len(seen.gaps_ns) == 1 else []
    found = [_seen(decoding, newcomer, [newcomer]) for newcomer in newcomers]
    return [seen for seen in found if seen is not None]


def records_of(beside: Beside, budget: int | None) -> list[Record]:
    """Its steps. Where there are several they are only known once the `budget` of a step is."""
    if len(beside.gaps_ns) == 1:
        return [(_shape(beside, beside.prompts, len(beside.prompts)), beside.gaps_ns[0])]
    if budget is None or len(beside.prompts) > 1:
        return []
    shapes = _chunks(beside, budget - beside.decode_seqs)
    return list(zip(shapes, beside.gaps_ns, strict=True)) if len(shapes) == len(beside.gaps_ns) else []


def chunk_tokens(seen: Sequence[Beside], cost: CostModel) -> int | None:
    """Tokens a step may have, from prompts that took several; None if there were none.

    A power of two is taken where one is as good an explanation: that is what people set.
    """
    several = [each for each in seen if len(each.gaps_ns) > 1 and len(each.prompts) == 1]
    if not several:
        return None
    most = max(each.tokens for each in several)
    misfits = {budget: _misfit(several, cost, budget) for budget in range(16, most)}
    best = min(misfits, key=lambda budget: misfits[budget])
    if not np.isfinite(misfits[best]):
        return None
    near = [1 << power for power in range(4, 20) if abs((1 << power) / best - 1) < 0.1]
    return next((power for power in near if np.isfinite(misfits.get(power, np.inf))), best)


def _misfit(several: Sequence[Beside], cost: CostModel, budget: int) -> float:
    """How far apart gaps and predicted chunks are; infinite if their number differs anywhere."""
    squares = 0.0
    for each in several:
        shapes = _chunks(each, budget - each.decode_seqs)
        if len(shapes) != len(each.gaps_ns):
            return float("inf")
        told = np.array([cost.step_ns(shape) for shape in shapes]) / np.array(each.gaps_ns)
        squares += float(np.sum(np.log(told) ** 2))
    return squares


def _chunks(beside: Beside, size: int) -> list[StepShape]:
    """The steps of one prompt in chunks of `size`; none where it has no room at all."""
    if size < 1 or beside.tokens // size > 256:
        return []
    tokens, cached = beside.prompts[0]
    end = cached + tokens
    parts = [(min(size, end - start), start) for start in range(cached, end, size)]
    return [_shape(beside, (part,), sampled=int(sum(part) == end)) for part in parts]


def _shape(beside: Beside, prompts: Sequence[tuple[int, int]], sampled: int) -> StepShape:
    """`sampled` of the prompts are at their end."""
    return StepShape(
        decode_seqs=beside.decode_seqs,
        decode_context_tokens=beside.decode_context_tokens,
        prefill_seqs=len(prompts),
        prefill_tokens=sum(tokens for tokens, _ in prompts),
        prefill_context_tokens=sum(start for _, start in prompts),
        prefill_attention_pairs=sum(tokens * start + tokens * (tokens + 1) // 2 for tokens, start in prompts),
        sampled_seqs=beside.decode_seqs + sampled,
    )


def _seen(decoding: Sequence[Timeline], last: Timeline, newcomers: Sequence[Timeline]) -> Beside | None:
    """`last` is the newcomer whose first token came last."""
    views = [view for timeline in decoding if (view := _long_gaps(timeline, last)) is not None]
    if len(views) < len(decoding):
        return None  # not all of them decoded just then: it may have waited for a slot of theirs
    usual, _ = Counter(len(gaps) for gaps, _ in views).most_common(1)[0]
    agreeing = [(gaps, context) for gaps, context in views if len(gaps) == usual]
    gaps = np.median(np.array([gaps for gaps, _ in agreeing]), axis=0)
    context = sum(context for _, context in views)
    prompts = tuple((each.prompt_tokens - each.cached_tokens, each.cached_tokens) for each in newcomers)
    return Beside(len(views), context, prompts, tuple(int(1e9 * gap) for gap in gaps))


def _long_gaps(decoding: Timeline, newcomer: Timeline) -> tuple[list[float], int] | None:
    """The gaps that computed the newcomer's prompt, and the context of the one who decoded."""
    at = decoding.token_at
    end = _nearest(decoding, newcomer.token_at[0])
    begin = bisect_left(at, newcomer.sent_at)
    if begin >= end:
        return None  # it met nobody
    usual_s = median(decoding.itl_s)
    if newcomer.token_at[0] > at[-1] + usual_s / 2:
        return None  # it had ended by then
    gaps = [at[index + 1] - at[index] for index in range(begin, end)]
    least_s = max(_LONG * usual_s, _LEAST_SHARE * max(gaps))
    while len(gaps) > 1 and gaps[0] < least_s:
        gaps.pop(0)  # it was not in yet
    return gaps, decoding.prompt_tokens + end


def _nearest(decoding: Timeline, instant: float) -> int:
    """The token that came nearest to it."""
    return min(range(len(decoding.token_at)), key=lambda index: abs(decoding.token_at[index] - instant))
