"""What a request changes in its logits, against the definitions written out slowly."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from headrace.core.plan import Work
from headrace.core.request import SamplingParams
from headrace.executor.adjust import Adjustment, GrammarFailed, changes_logits
from tests.executor.driving import append, work

VOCABULARY = 12
PLAIN = SamplingParams(99, temperature=0.0)


def slowly(row: list[float], asked: SamplingParams, prompt: list[int], answer: list[int]) -> list[float]:
    """vLLM's order: allowed, bad words, `min_tokens`, bias, repetition, frequency, presence."""
    changed = list(row)
    for token in range(len(row)):
        if asked.allowed_token_ids is not None and token not in asked.allowed_token_ids:
            changed[token] = -math.inf
        for word in asked.bad_words:
            if token == word[-1] and len(word) <= len(answer) + 1:
                before = answer[len(answer) - len(word) + 1 :]
                if before == list(word[:-1]):
                    changed[token] = -math.inf
        if len(answer) < asked.min_tokens and token in asked.ending_token_ids:
            changed[token] = -math.inf
        changed[token] += dict(asked.logit_bias).get(token, 0.0)
        if token in prompt or token in answer:
            factor = 1 / asked.repetition_penalty if changed[token] > 0 else asked.repetition_penalty
            changed[token] *= factor
        changed[token] -= asked.frequency_penalty * answer.count(token)
        changed[token] -= asked.presence_penalty * (token in answer)
    return changed


def logits(seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(VOCABULARY).astype(np.float32) * 4


def answering(asked: SamplingParams, prompt: list[int], answer: list[int]) -> Work:
    made = work("a", prompt, asked, ())
    for token in answer:
        append(made, token)
    return made


tokens = st.integers(0, VOCABULARY - 1)
strange = st.integers(-3, VOCABULARY + 3)  # the wire refuses what the vocabulary lacks; a step survives it
asked = st.builds(
    SamplingParams,
    max_tokens=st.just(99),
    repetition_penalty=st.sampled_from([1.0, 0.5, 1.7]),
    presence_penalty=st.sampled_from([0.0, -2.0, 0.6]),
    frequency_penalty=st.sampled_from([0.0, -1.0, 0.3]),
    logit_bias=st.dictionaries(strange, st.floats(-100, 100, width=32)).map(lambda d: tuple(d.items())),
    allowed_token_ids=st.none() | st.frozensets(strange, min_size=1),
    bad_words=st.lists(st.lists(tokens, min_size=1, max_size=3).map(tuple), max_size=4).map(tuple),
    min_tokens=st.integers(0, 6),
    eos_token_id=st.none() | tokens,
    stop_token_ids=st.frozensets(strange, max_size=2),
)


@given(
    asked,
    st.lists(tokens, min_size=1, max_size=9),
    st.lists(tokens, max_size=120),
    st.integers(0, 99),
    st.data(),
)
def test_logits_change_as_defined_whenever_the_answer_is_looked_at(
    asked: SamplingParams, prompt: list[int], answer: list[int], seed: int, data: st.DataObject
) -> None:
    """Looked at after every token, at the end only (as after a loss), or now and then: all the same."""
    made = work("a", prompt, asked, ())
    adjustment = Adjustment(made, VOCABULARY, None)
    for token in answer:
        if data.draw(st.booleans()):
            adjustment.apply(logits(seed), made)
        append(made, token)
    row = logits(seed)
    adjustment.apply(row, made)
    expected = slowly(logits(seed).tolist(), asked, prompt, answer)
    np.testing.assert_allclose(row, expected, rtol=1e-4, atol=1e-4)
    assert changes_logits(asked) or (row == logits(seed)).all()


def test_counts_of_a_long_answer_outgrow_no_room() -> None:
    asked = replace(PLAIN, frequency_penalty=1.0)
    row = np.zeros(1000, np.float32)
    Adjustment(answering(asked, [0], list(range(1000)) * 2), 1000, None).apply(row, answering(asked, [0], []))
    made = answering(asked, [0], list(range(1000)) * 2)
    Adjustment(made, 1000, None).apply(row, made)
    assert (row == -2.0).all()


class Fixed:
    """A grammar in which the given tokens may follow, always."""

    def __init__(self, *may_follow: int) -> None:
        self.seen: list[int] = []
        self._allowed = np.isin(np.arange(VOCABULARY), may_follow)

    def advance(self, token_id: int) -> None:
        self.seen.append(token_id)

    def allowed(self) -> NDArray[np.bool_]:
        return self._allowed


def test_a_grammar_at_its_end_may_end_before_min_tokens() -> None:
    asked = replace(PLAIN, min_tokens=5, eos_token_id=3)
    made = answering(asked, [1], [2])
    row = logits(1)
    Adjustment(made, VOCABULARY, Fixed(3)).apply(row, made)
    assert row.argmax() == 3
    row = logits(1)
    Adjustment(made, VOCABULARY, Fixed(3, 4)).apply(row, made)
    assert row.argmax() == 4, "while something else can follow, it does"


def test_a_grammar_sees_each_token_of_the_answer_once() -> None:
    made = answering(PLAIN, [1, 1], [5, 6])
    matcher = Fixed(2)
    adjustment = Adjustment(made, VOCABULARY, matcher)
    adjustment.apply(logits(1), made)
    adjustment.apply(logits(1), made)
    append(made, 2)
    adjustment.apply(logits(1), made)
    assert matcher.seen == [5, 6, 2]


def test_settings_that_leave_a_grammar_no_token_are_noticed() -> None:
    asked = replace(PLAIN, allowed_token_ids=frozenset({7}))
    made = answering(asked, [1], [])
    with pytest.raises(GrammarFailed, match="no token is left"):
        Adjustment(made, VOCABULARY, Fixed(2)).apply(logits(1), made)
