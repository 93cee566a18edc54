"""What is done before the port is opened, so that the first request is as fast as the hundredth."""

import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest

from headrace.core.request import Grammar
from headrace.executor.scripted import ScriptedTokenizer
from tests.net.http import post
from tests.net.serving import running, service

FORMED = {"prompt": "a", "max_tokens": 1, "structured_outputs": {"regex": "[a-z]+"}}


class Noting(ScriptedTokenizer):
    """A tokenizer that says what it was asked to do, and whether while requests were taken."""

    def __init__(self, done: list[str]) -> None:
        super().__init__()
        self._done = done

    def check_grammar(self, grammar: Grammar) -> None:
        self._note("grammar")
        super().check_grammar(grammar)

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        self._note("encode")
        return super().encode(text, add_special_tokens=add_special_tokens)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        self._note("decode")
        return super().decode(token_ids, skip_special_tokens=skip_special_tokens)

    def _note(self, what: str) -> None:
        self._done.append(f"{what} in {threading.current_thread().name}")


@pytest.mark.slow
@pytest.mark.parametrize("warmup", [True, False])
def test_before_the_port_is_opened_text_and_a_grammar_were_done_beside_the_loading_engine(
    warmup: bool,
) -> None:
    """The first request with a grammar waited a second for its vocabulary, and others' text with it."""
    done: list[str] = []
    with running(replace(service(), load_tokenizer=lambda: Noting(done), warmup=warmup)) as server:
        before = tuple(done)
        assert post(server.port, "/v1/completions", FORMED).status == 200
    assert {each.partition(" ")[0] for each in before} == (
        {"encode", "decode", "grammar"} if warmup else set()
    )
    assert not any(each.endswith("in server") for each in before), "that thread waits for the engine"
    assert len(done) > len(before)
