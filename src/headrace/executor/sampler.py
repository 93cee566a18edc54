"""From a step's logits to its tokens, and what requests need kept from step to step for that.

    rows of logits --adjust, where a request asks for it--> sample --> tokens, log probabilities, failures

Most requests change nothing and ask for nothing; for them this is one look into a dictionary.
"""

import contextlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.core.output import TokenLogprobs
from headrace.core.plan import Plan, Status, Work
from headrace.core.ports import StepResult
from headrace.core.request import SamplingParams
from headrace.executor.adjust import Adjustment, GrammarFailed, changes_logits
from headrace.executor.grammars import Grammars
from headrace.executor.sampling import at_least_the_largest, sample

Floats = NDArray[np.float32]


class Sampler:
    """Keeps by request what its answer so far means for its next token."""

    def __init__(self, vocab_size: int, grammars: Grammars) -> None:
        self._vocab_size = vocab_size
        self._grammars = grammars
        self._adjustments: dict[str, Adjustment | None] = {}

    @property
    def num_remembered(self) -> int:
        """Requests that have not been forgotten: 0 once everything has ended."""
        return len(self._adjustments)

    def draw(self, logits: Floats, plan: Plan, places: Sequence[int], result: StepResult) -> None:
        """Fill `result` for the chunks at `places`, whose logits are the rows of `logits`, in that order.

        Overwrites `logits` where a request changes them.
        """
        params: list[SamplingParams] = []
        num_outputs: list[int] = []
        asked: dict[int, Floats] = {}
        failed: dict[int, str] = {}
        for row, place in enumerate(places):
            work = plan.chunks[place].work
            param = work.request.sampling
            params.append(param)
            num_outputs.append(work.num_tokens - work.num_prompt_tokens)
            if param.num_logprobs is not None:  # of the model's own logits
                asked[row] = logits[row].copy() if changes_logits(param) else logits[row]
            try:
                adjustment = self._adjustment(work)
                if adjustment is not None:
                    adjustment.apply(logits[row], work)
            except GrammarFailed as error:
                failed[place] = str(error)
        drawn = sample(logits, params, num_outputs)
        for place, token in zip(places, drawn, strict=True):
            result.token_ids[place] = token
        if asked:
            result.logprobs = {
                places[row]: logprobs_of(
                    raw, drawn[row], params[row].num_logprobs or 0, params[row].logprob_token_ids
                )
                for row, raw in asked.items()
                if places[row] not in failed
            }
        for place in failed:
            result.token_ids[place] = None
        result.failed = failed or None

    def expect(self, plan: Plan) -> None:
        """Make ready for those who come for the first time: a grammar may take a while to compile."""
        for work in plan.admitted:
            if work.request.sampling.grammar is not None:
                with contextlib.suppress(GrammarFailed):  # `draw` will say so
                    self._adjustment(work)

    def forget(self, work: Work) -> None:
        self._adjustments.pop(work.request.request_id, None)

    def _adjustment(self, work: Work) -> Adjustment | None:
        request_id = work.request.request_id
        if request_id in self._adjustments:
            return self._adjustments[request_id]
        made = None
        grammar = work.request.sampling.grammar
        if changes_logits(work.request.sampling):
            matcher = None if grammar is None else self._grammars.matcher(grammar)
            made = Adjustment(work, self._vocab_size, matcher)
        if work.status is not Status.FINISHED:  # else nobody would have it forgotten
            self._adjustments[request_id] = made
        return made


def logprobs_of(row: Floats, token_id: int, count: int, named: Sequence[int] = ()) -> TokenLogprobs:
    """How likely `token_id` was under the logits `row`, beside the `count` likeliest tokens or the `named`.

    Of equally likely tokens the smaller id comes first; a rank counts them all, as in vLLM.
    """
    largest = float(row.max())
    norm = largest + float(np.log(np.exp(row - np.float32(largest)).sum(dtype=np.float64)))
    top = tuple((token, float(row[token]) - norm) for token in named)
    if count and not named:
        likely = at_least_the_largest(row, count)
        order = np.argsort(-row[likely], kind="stable")[:count]
        top = tuple((int(token), float(row[token]) - norm) for token in likely[order])
    logit = row[token_id]
    return TokenLogprobs(token_id, float(logit) - norm, int(np.count_nonzero(row >= logit)), top)
