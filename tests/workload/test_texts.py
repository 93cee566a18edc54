"""Texts have exactly as many tokens as asked, and share exactly what they should, for any tokenizer."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import BadInput
from headrace.core.ports import Tokenizer
from headrace.executor.models import locate
from headrace.executor.tokenizer import OpenVinoTokenizer
from headrace.workload.asks import arrivals_of
from headrace.workload.texts import ExactTexts
from headrace.workload.trace import TraceRequest
from headrace.workload.words import WORDS

HEAD, TAIL = "<|user|>\n", "<|end|>\n"
Encode = Callable[[str], list[int]]


def by_bytes(message: str) -> list[int]:
    """A token a byte, template and all."""
    return list((HEAD + message + TAIL).encode())


def by_words(message: str) -> list[int]:
    """A token a word with the space before it; some it joins with their neighbours, as "superwords"."""
    tokens = [" " + word for word in message.split(" ")]
    tokens[0] = tokens[0][1:]
    joined: list[str] = []
    for token in tokens:
        before = joined[-1] if joined else ""
        if (before, token) in {(" time", " year"), (" year", " time"), (" people", " people")}:
            joined[-1] += token
        else:
            joined.append(token)
    return [1, 2, *(hash(token) % 10**9 for token in joined), 3]


def tokenizers() -> dict[str, Encode]:
    return {"bytes": by_bytes, "joining words": by_words}


@st.composite
def families(draw: st.DrawFn) -> list[TraceRequest]:
    """Requests that share blocks of 16 tokens."""
    requests: list[TraceRequest] = []
    for _ in range(draw(st.integers(2, 5))):
        ids = tuple(range(draw(st.integers(0, 8)))) + tuple(
            1000 + len(requests) * 100 + place for place in range(draw(st.integers(0, 3)))
        )
        tokens = max(40, len(ids) * 16) + draw(st.integers(0, 60))
        requests.append(TraceRequest(0.0, tokens, 5, prefix_ids=ids, prefix_block_tokens=16 if ids else 0))
    return requests


def shared_ids(a: TraceRequest, b: TraceRequest) -> int:
    pairs = list(zip(a.prefix_ids, b.prefix_ids, strict=False))
    return next((place for place, (x, y) in enumerate(pairs) if x != y), len(pairs))


def check(encode: Encode, texts: ExactTexts, requests: list[TraceRequest]) -> None:
    made = [encode(texts.prompt(request, number)) for number, request in enumerate(requests)]
    assert [len(tokens) for tokens in made] == [request.prompt_tokens for request in requests]
    for i, a in enumerate(requests):
        for j, b in enumerate(requests[:i]):
            shared = shared_ids(a, b) * 16
            # Of a prompt that ends within its last shared block, the template's end is not shared.
            most = min(shared, a.prompt_tokens - 8, b.prompt_tokens - 8)
            assert made[i][:most] == made[j][:most]
            beyond = max(shared, 16)
            if min(a.prompt_tokens, b.prompt_tokens) >= beyond + 24:
                assert made[i][: beyond + 16] != made[j][: beyond + 16], "a block too many is shared"


@pytest.mark.slow
@given(st.sampled_from(sorted(tokenizers())), families(), st.integers(0, 99))
def test_counts_and_shared_beginnings_are_exact(name: str, requests: list[TraceRequest], seed: int) -> None:
    encode = tokenizers()[name]
    check(encode, ExactTexts(encode, seed, name), requests)


def test_words_that_a_tokenizer_joins_are_not_used() -> None:
    texts = ExactTexts(by_words, 0, "a test")
    joining = {" time", " year", " people"}
    assert len(joining & set(texts._atoms)) <= 1
    assert len(texts._atoms) > 100


def test_the_same_request_has_the_same_text_and_another_seed_or_number_another() -> None:
    request = TraceRequest(0.0, 50, 5)
    texts = ExactTexts(by_words, 1, "a test")
    assert texts.prompt(request, 3) == texts.prompt(request, 3)
    assert texts.prompt(request, 3) != texts.prompt(request, 4)
    assert ExactTexts(by_words, 2, "a test").prompt(request, 3) != texts.prompt(request, 3)


def test_a_prompt_shorter_than_its_template_is_refused_with_the_numbers() -> None:
    texts = ExactTexts(by_bytes, 0, "the tokenizer")
    least = len(HEAD) + 1 + len(TAIL)
    assert texts.least_tokens == least
    assert len(by_bytes(texts.prompt(TraceRequest(0.0, least, 1), 0))) == least
    with pytest.raises(BadInput, match=f"request 1 has {least - 1} prompt tokens; .* at least {least}"):
        texts.prompt(TraceRequest(0.0, least - 1, 1), 0)


def test_a_tokenizer_without_words_of_one_token_is_refused() -> None:
    def doubling(message: str) -> list[int]:
        return [token for letter in message for token in (ord(letter), len(message))]

    with pytest.raises(BadInput, match="too few words of one token each"):
        ExactTexts(doubling, 0, "a test")


def test_a_workload_becomes_what_is_sent() -> None:
    requests = [TraceRequest(0.5, 30, 7, "chat", 2), TraceRequest(1.0, 40, 8, "docs")]
    first, second = arrivals_of(requests, ExactTexts(by_words, 0, "a test"))
    assert (first.due_at, first.ask.request_id, first.ask.max_tokens, first.ask.priority) == (
        0.5,
        "chat-0",
        7,
        2,
    )
    assert len(by_words(second.ask.prompt)) == 40


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return OpenVinoTokenizer(locate("smollm2"))


@pytest.mark.model
@pytest.mark.slow
@given(families(), st.integers(0, 9))
def test_the_built_in_model_gets_exactly_what_was_asked(
    tokenizer: Tokenizer, requests: list[TraceRequest], seed: int
) -> None:
    texts = _texts_of(tokenizer, seed)
    check(texts._encode, texts, requests)


_MADE: dict[int, ExactTexts] = {}


def _texts_of(tokenizer: Tokenizer, seed: int) -> ExactTexts:
    """Finding the words takes half a second, which is once for a run."""
    if seed not in _MADE:
        _MADE[seed] = ExactTexts.of_chat(tokenizer, seed)
    return _MADE[seed]


@pytest.mark.model
@pytest.mark.slow
def test_long_prompts_are_exact_too(tokenizer: Tokenizer) -> None:
    texts = _texts_of(tokenizer, 0)
    for tokens in (texts.least_tokens, 100, 5000, 7777):
        assert len(texts._encode(texts.prompt(TraceRequest(0.0, tokens, 5), tokens))) == tokens
    assert len(texts._atoms) > 100, "of the words, most are tokens"
    assert {atom[1:] for atom in texts._atoms} <= set(WORDS)
