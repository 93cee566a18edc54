"""What a request changes in its logits before a token is drawn, and what it keeps for that.

    row (vocabulary) --grammar > allowed > bad words > min_tokens > bias > penalties--> the same row

vLLM's order and formulas. All of it depends on the request's own tokens only. What is kept (counts of
tokens, a grammar's matcher) catches up with `Work.token_ids` whenever it is asked, so it is the same
after a preemption, and whoever has lost it may begin anew.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.core.plan import Work
from headrace.core.request import SamplingParams

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]

_NEVER = np.float32(-np.inf)


class GrammarFailed(Exception):
    """A request has left its grammar, or the grammar has outgrown its limits: it cannot go on."""


class Matcher(Protocol):
    """Where a request is in its grammar."""

    def advance(self, token_id: int) -> None:
        """Raises `GrammarFailed` when `token_id` cannot follow."""
        ...

    def allowed(self) -> NDArray[np.bool_] | None:
        """By token id, which may follow; None when any may. Raises `GrammarFailed`."""
        ...


def changes_logits(params: SamplingParams) -> bool:
    """False for most requests: nothing has to be kept for them."""
    return bool(
        params.repetition_penalty != 1.0
        or params.presence_penalty
        or params.frequency_penalty
        or params.logit_bias
        or params.bad_words
        or params.min_tokens
        or params.allowed_token_ids is not None
        or params.grammar is not None
    )


class Adjustment:
    """The changes of one request."""

    def __init__(self, work: Work, vocab_size: int, matcher: Matcher | None) -> None:
        params = work.request.sampling
        self._params = params
        self._matcher = matcher
        self._followed = work.num_prompt_tokens  # of its tokens, how many `_matcher` has seen
        self._banned = _all_but(params.allowed_token_ids, vocab_size)
        self._ends = _within(params.ending_token_ids, vocab_size)
        biases = {token: bias for token, bias in params.logit_bias if 0 <= token < vocab_size}
        self._bias_ids = np.array([*biases], np.int64)
        self._biases = np.array([*biases.values()], np.float32)
        penalised = params.repetition_penalty != 1.0 or params.presence_penalty or params.frequency_penalty
        self._seen = _Seen(work, vocab_size) if penalised else None

    def apply(self, row: Floats, work: Work) -> None:
        """Change `row` in place. Raises `GrammarFailed` where no token may follow."""
        params = self._params
        if self._matcher is not None:
            self._keep_to_grammar(row, work, self._matcher)
        if self._banned is not None:
            row[self._banned] = _NEVER
        if params.bad_words:
            row[_ends_of_bad_words(params.bad_words, work, row.size)] = _NEVER
        if work.num_output_tokens < params.min_tokens:
            self._forbid_ends(row)
        if self._biases.size:
            row[self._bias_ids] += self._biases
        if self._seen is not None:
            self._seen.catch_up(work)
            self._seen.penalise(row, params)
        if self._matcher is not None and row.max() == _NEVER:
            raise GrammarFailed("no token is left that both its grammar and its other settings allow")

    def _keep_to_grammar(self, row: Floats, work: Work, matcher: Matcher) -> None:
        for token_id in work.token_ids[self._followed : work.num_tokens]:
            matcher.advance(token_id)
        self._followed = work.num_tokens
        allowed = matcher.allowed()
        if allowed is not None:
            row[allowed.size :] = _NEVER
            np.copyto(row[: allowed.size], _NEVER, where=~allowed[: row.size])

    def _forbid_ends(self, row: Floats) -> None:
        """As in vLLM, a grammar that is at its end may end before `min_tokens`: nothing else can follow."""
        before = row[self._ends]
        row[self._ends] = _NEVER
        if self._matcher is not None and row.max() == _NEVER:
            row[self._ends] = before


class _Seen:
    """The tokens of one request's prompt and answer, each once, and how often its answer has them."""

    def __init__(self, work: Work, vocab_size: int) -> None:
        prompt = _within(work.request.prompt_token_ids, vocab_size)
        self._ids = np.resize(prompt, prompt.size + 64)
        self._counts = np.zeros(self._ids.size, np.int32)
        self._places = {token: place for place, token in enumerate(prompt.tolist())}
        self._taken = work.num_prompt_tokens

    def catch_up(self, work: Work) -> None:
        for token in work.token_ids[self._taken : work.num_tokens]:
            place = self._places.setdefault(token, len(self._places))
            if place == self._ids.size:
                self._ids = np.resize(self._ids, 2 * place)
                self._counts = np.concatenate((self._counts, np.zeros(place, np.int32)))
            self._ids[place] = token
            self._counts[place] += 1
        self._taken = work.num_tokens

    def penalise(self, row: Floats, params: SamplingParams) -> None:
        ids, counts = self._ids[: len(self._places)], self._counts[: len(self._places)]
        logits = row[ids]
        if params.repetition_penalty != 1.0:
            penalty = np.float32(params.repetition_penalty)
            logits = np.where(logits > 0, logits / penalty, logits * penalty)
        logits -= np.float32(params.frequency_penalty) * counts
        logits -= np.float32(params.presence_penalty) * (counts > 0)
        row[ids] = logits


def _ends_of_bad_words(bad_words: tuple[tuple[int, ...], ...], work: Work, vocab_size: int) -> list[int]:
    """The tokens that would complete one of `bad_words` in the answer."""
    answer = work.token_ids[work.num_prompt_tokens : work.num_tokens]
    ends: list[int] = []
    for word in bad_words:
        before = len(word) - 1
        if before <= len(answer) and tuple(answer[len(answer) - before :]) == word[:-1]:
            ends.append(word[-1])
    return [token for token in ends if 0 <= token < vocab_size]


def _within(token_ids: frozenset[int] | tuple[int, ...], vocab_size: int) -> Ids:
    """Each once, in order, without those that the vocabulary does not have."""
    unique = np.unique(np.array([*token_ids], np.int64))
    return unique[(unique >= 0) & (unique < vocab_size)]


def _all_but(allowed: frozenset[int] | None, vocab_size: int) -> Ids | None:
    if allowed is None:
        return None
    return np.setdiff1d(np.arange(vocab_size), _within(allowed, vocab_size))
