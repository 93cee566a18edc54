"""Text comes in pieces that no later token can change, and no piece ends inside a character."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.ports import Chat, Tokenizer
from headrace.core.request import Grammar
from headrace.executor.detokenize import IncrementalDetokenizer
from headrace.executor.scripted import ScriptedTokenizer
from headrace.executor.tokenizer import OpenVinoTokenizer

TRICKY = "naïve 東京 😀👩‍👩‍👧🇫🇷 e\u0301 \ufffd end"


class SentencePieceLike:
    """Words carry their space in front, the first one loses it, and bytes have tokens of their own."""

    eos_token_id = 2
    vocab_size = 300
    words = ("▁the", "▁cat", "s", "▁", "▁sat", ",", "▁é")

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        raise NotImplementedError

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        pieces = [self.piece(token) for token in token_ids]
        return b"".join(pieces).decode("utf-8", "replace").removeprefix(" ")

    def piece(self, token: int) -> bytes:
        return bytes((token,)) if token < 256 else self.words[token - 256].replace("▁", " ").encode()

    takes_tools = False

    def token_bytes(self, token_id: int) -> bytes:
        raise NotImplementedError

    def apply_chat_template(self, chat: Chat) -> str:
        raise NotImplementedError

    def check_grammar(self, grammar: Grammar) -> None:
        raise NotImplementedError


def pieces_of(tokenizer: Tokenizer, pushes: Sequence[Sequence[int]], prompt: Sequence[int] = ()) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, prompt)
    return [*map(detokenizer.push, pushes), detokenizer.finish()]


def cut(tokens: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    pushes: list[list[int]] = []
    start = 0
    for size in sizes:
        pushes.append(list(tokens[start : start + size]))
        start += size
    return [*pushes, list(tokens[start:])]


def test_a_character_of_four_tokens_comes_whole_with_its_last() -> None:
    pushes = [[byte] for byte in "a😀b".encode()]
    assert pieces_of(ScriptedTokenizer(), pushes) == ["a", "", "", "", "😀", "b", ""]


def test_an_unfinished_character_shows_only_at_the_end() -> None:
    pushes = [[byte] for byte in "a😀".encode()[:-1]]
    assert pieces_of(ScriptedTokenizer(), pushes) == ["a", "", "", "", "\ufffd"]


def test_wrong_bytes_do_not_hold_the_text_back_for_ever() -> None:
    pieces = pieces_of(ScriptedTokenizer(), [[0x80]] * 40)
    assert sum(map(len, pieces[:-1])) == 37, "at most three may be an unfinished character"
    assert "".join(pieces) == "\ufffd" * 40


def test_a_character_that_the_prompt_began_belongs_to_the_output() -> None:
    head, tail = "x😀".encode()[:-1], "😀".encode()[-1:]
    assert pieces_of(ScriptedTokenizer(), [list(tail)], prompt=list(head)) == ["😀", ""]


@given(st.text(), st.lists(st.integers(0, 5)), st.text(max_size=8))
def test_pieces_of_any_text_join_to_the_text(text: str, sizes: list[int], prompt: str) -> None:
    tokenizer = ScriptedTokenizer()
    tokens = tokenizer.encode(text)
    pieces = pieces_of(tokenizer, cut(tokens, sizes), tokenizer.encode(prompt))
    assert "".join(pieces) == tokenizer.decode(tokens)
    assert not any("\ufffd" in piece for piece in pieces if "\ufffd" not in text)


@given(st.lists(st.integers(0, 256), max_size=80), st.lists(st.integers(0, 5)))
def test_pieces_of_any_bytes_join_to_their_text(tokens: list[int], sizes: list[int]) -> None:
    tokenizer = ScriptedTokenizer()
    assert "".join(pieces_of(tokenizer, cut(tokens, sizes))) == tokenizer.decode(tokens)


@given(st.lists(st.integers(32, 262), max_size=80), st.lists(st.integers(0, 5)))
def test_a_tokenizer_that_drops_the_first_space_loses_no_other(tokens: list[int], sizes: list[int]) -> None:
    tokenizer = SentencePieceLike()
    prompt = [256, 257]
    pieces = pieces_of(tokenizer, cut(tokens, sizes), prompt)
    assert "".join(pieces) == tokenizer.decode([*prompt, *tokens])[len("the cat") :]


@pytest.mark.slow
@pytest.mark.model
@given(st.text(max_size=60) | st.just(TRICKY), st.lists(st.integers(0, 4)))
def test_the_model_s_own_tokens_join_to_the_text(
    tokenizer: OpenVinoTokenizer, text: str, sizes: list[int]
) -> None:
    tokens = tokenizer.encode(text)
    pieces = pieces_of(tokenizer, cut(tokens, sizes))
    assert "".join(pieces) == tokenizer.decode(tokens)
    assert not any("\ufffd" in piece for piece in pieces if "\ufffd" not in tokenizer.decode(tokens))


@pytest.mark.slow
@pytest.mark.model
@given(st.lists(st.integers(0, 49_151), max_size=80), st.lists(st.integers(0, 4)))
def test_any_tokens_of_the_model_join_to_their_text(
    tokenizer: OpenVinoTokenizer, tokens: list[int], sizes: list[int]
) -> None:
    assert "".join(pieces_of(tokenizer, cut(tokens, sizes))) == tokenizer.decode(tokens)
