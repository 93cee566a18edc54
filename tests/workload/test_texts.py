"""Texts have exactly as many tokens as asked, and share exactly what they should, for any tokenizer."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import BadInput
from headrace.core.ports import Tokenizer
from headrace.executor.models import locate
from headrace.executor.tokenizer import OpenVinoTokenizer
from headrace.measure.synthetic import Lengths, asks
from headrace.workload.asks import arrivals_of, reworded, rewording
from headrace.workload.texts import ExactTexts
from headrace.workload.trace import TraceRequest
from headrace.workload.vocabulary import Vocabulary, find_vocabulary, of_tokenizer
from headrace.workload.word_texts import WordTexts
from headrace.workload.words import WORDS

HEAD, TAIL = "<|user|>\n", "<|end|>\n"
Encode = Callable[[str], list[int]]


def of(encode: Encode, whose: str = "a test") -> Vocabulary:
    def encode_all(messages: Sequence[str]) -> list[list[int]]:
        return [encode(message) for message in messages]

    return find_vocabulary(encode_all, whose)


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
    made = [encode(text) for text in texts.texts(requests)]
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
    check(encode, ExactTexts(of(encode), seed), requests)


def test_words_that_a_tokenizer_joins_are_not_used() -> None:
    atoms = of(by_words).atoms
    joining = {" time", " year", " people"}
    assert len(joining & set(atoms)) <= 1
    assert len(atoms) > 60


def test_the_same_request_has_the_same_text_and_another_seed_or_number_another() -> None:
    request = TraceRequest(0.0, 50, 5)
    texts = ExactTexts(of(by_words), 1)
    assert texts.text(request, 3) == texts.text(request, 3)
    assert texts.text(request, 3) != texts.text(request, 4)
    assert ExactTexts(of(by_words), 2).text(request, 3) != texts.text(request, 3)


def test_a_prompt_shorter_than_its_template_is_refused_with_the_numbers() -> None:
    texts = ExactTexts(of(by_bytes, "the tokenizer"), 0)
    least = len(HEAD) + 1 + len(TAIL)
    assert texts.least_tokens == least
    assert len(by_bytes(texts.text(TraceRequest(0.0, least, 1), 0))) == least
    with pytest.raises(BadInput, match=f"request 1 has {least - 1} prompt tokens; .* at least {least}"):
        texts.text(TraceRequest(0.0, least - 1, 1), 0)


def test_a_tokenizer_without_words_of_one_token_is_refused() -> None:
    def doubling(message: str) -> list[int]:
        return [token for letter in message for token in (ord(letter), len(message))]

    with pytest.raises(BadInput, match="too few words of one token each"):
        of(doubling)


def test_a_tokenizer_that_joins_words_only_in_long_rows_is_an_error_and_no_wrong_number() -> None:
    def joins_late(message: str) -> list[int]:
        tokens = by_words(message)
        return tokens if len(tokens) < 600 else tokens[1:]

    texts = ExactTexts(of(joins_late, "a test"), 0)
    with pytest.raises(BadInput, match="a test joins words: no text of exactly 700 tokens"):
        list(texts.texts([TraceRequest(0.0, 80, 1), TraceRequest(0.0, 700, 1)]))


def test_a_workload_becomes_what_is_sent() -> None:
    requests = [
        TraceRequest(0.5, 30, 7, "chat", 2),
        TraceRequest(1.0, 40, 8, "docs"),
        TraceRequest(2.0, 3, 1),
    ]
    sent = arrivals_of(requests, ExactTexts(of(by_words), 0), exact=True)
    first, second, third = sent.arrivals
    assert (first.due_at, first.ask.request_id, first.ask.max_tokens) == (0.5, "chat-0", 7)
    assert first.ask.priority == 2
    lengths = [len(by_words(arrival.ask.prompt)) for arrival in (first, second, third)]
    assert (
        lengths == [first.ask.prompt_tokens, second.ask.prompt_tokens, third.ask.prompt_tokens] == [30, 40, 4]
    )
    assert sent.lengthened == 1


def test_a_load_of_ours_gets_exact_prompts_and_stays_the_same_otherwise() -> None:
    plain = list(islice(asks(Lengths((10, 90), (2, 9)), 3), 100))
    exact = reworded(plain, ExactTexts(of(by_words), 3))
    assert list(rewording(plain, ExactTexts(of(by_words), 3))) == exact
    for before, after in zip(plain, exact, strict=True):
        assert len(by_words(after.prompt)) == after.prompt_tokens == before.num_prompt_words
        assert replace(after, prompt="", prompt_tokens=0) == replace(before, prompt="")
    assert len({after.prompt for after in exact}) == len(exact)


def test_a_trace_shares_words_where_it_shares_ids_and_nowhere_else() -> None:
    first, second, third = arrivals_of(
        [
            TraceRequest(0.0, 25, 3, prefix_ids=(1, 2), prefix_block_tokens=10),
            TraceRequest(1.0, 30, 3, prefix_ids=(1, 9), prefix_block_tokens=10),
            TraceRequest(2.0, 12, 3),
        ],
        WordTexts(5),
        exact=False,
    ).arrivals

    texts = [arrival.ask.prompt.split() for arrival in (first, second, third)]
    assert [len(text) for text in texts] == [25, 30, 12]
    assert texts[0][:10] == texts[1][:10]
    assert texts[0][10:20] != texts[1][10:20]
    assert [arrival.due_at for arrival in (first, second, third)] == [0.0, 1.0, 2.0]


def test_turns_of_a_session_wait_for_the_turn_before_where_the_trace_says_how_long() -> None:
    arrivals = arrivals_of(
        [
            TraceRequest(0.0, 20, 3, session="s"),
            TraceRequest(4.0, 20, 3, session="s", think_s=1.5),
            TraceRequest(5.0, 20, 3, session="other"),
            TraceRequest(6.0, 20, 3, session="s"),
        ],
        WordTexts(5),
        exact=False,
    ).arrivals

    assert [(arrival.after, arrival.think_s) for arrival in arrivals] == [
        (None, 0.0),
        ("trace-0", 1.5),
        (None, 0.0),
        (None, 0.0),
    ]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return OpenVinoTokenizer(locate("smollm2"))


@pytest.mark.model
@pytest.mark.slow
@given(families(), st.integers(0, 9))
def test_the_built_in_model_gets_exactly_what_was_asked(
    tokenizer: Tokenizer, requests: list[TraceRequest], seed: int
) -> None:
    vocabulary = _vocabulary_of(tokenizer)
    check(lambda text: list(vocabulary.encode([text])[0]), ExactTexts(vocabulary, seed), requests)


_FOUND: list[Vocabulary] = []


def _vocabulary_of(tokenizer: Tokenizer) -> Vocabulary:
    """Finding it takes a part of a second, which is once for a run."""
    if not _FOUND:
        _FOUND.append(of_tokenizer(tokenizer))
    return _FOUND[0]


@pytest.mark.model
@pytest.mark.slow
def test_long_prompts_are_exact_too(tokenizer: Tokenizer) -> None:
    vocabulary = _vocabulary_of(tokenizer)
    lengths = (vocabulary.least_tokens, 100, 5000, 7777)
    texts = ExactTexts(vocabulary, 0).texts([TraceRequest(0.0, tokens, 5) for tokens in lengths])
    assert [len(tokens) for tokens in vocabulary.encode(list(texts))] == list(lengths)
    assert len(vocabulary.atoms) > 60, "of the words, most are tokens"
    assert {atom[1:] for atom in vocabulary.atoms} <= set(WORDS)
