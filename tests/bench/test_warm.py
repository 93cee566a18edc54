"""What `python -m bench.warm` asks, and what it makes of the answers."""

import json
from random import Random

import pytest

from bench.warm import CHAT, KINDS, Answered, Visit, output_tokens, shares, visit
from headrace.executor.scripted import ScriptedTokenizer
from headrace.net.wire import read_chat, read_completion


def test_a_first_request_is_weighed_against_the_median_of_its_own_server() -> None:
    slow = Visit(1.0, Answered(3.0, 6.0, 0.4), [Answered(1.0, 2.0, 0.2), Answered(1.0, 2.0, 0.2)])
    even = Visit(1.0, Answered(8.0, 9.0, 0.3), [Answered(8.0, 9.0, 0.3), Answered(8.0, 9.0, 0.3)])
    ttft = shares([slow, even, slow])["ttft"]
    assert (ttft.ratio, ttft.least, ttft.most) == (3.0, 1.0, 3.0)
    assert (ttft.first_s, ttft.rest_s) == (3.0, 1.0)


def test_the_tokens_are_read_from_a_whole_answer_and_from_a_streams_last_event() -> None:
    usage = {"usage": {"completion_tokens": 7}}
    whole = json.dumps(usage).encode()
    assert output_tokens(whole, streamed=False) == 7
    stream = b'data: {"choices":[]}\n\ndata: ' + whole + b"\n\ndata: [DONE]\n\n"
    assert output_tokens(stream, streamed=True) == 7


@pytest.mark.parametrize("name", KINDS)
def test_the_server_takes_every_kind_and_no_two_requests_are_alike(name: str) -> None:
    kind, chance, tokenizer = KINDS[name], Random(1), ScriptedTokenizer()
    read = read_chat if kind.path == CHAT else read_completion
    one, other = (read(json.dumps(kind.body(chance)).encode()) for _ in range(2))
    assert one.prompts != other.prompts
    if one.sampling.grammar is not None and other.sampling.grammar is not None:
        assert one.sampling.grammar != other.sampling.grammar, (
            "else the second finds the first one's, compiled"
        )
        tokenizer.check_grammar(one.sampling.grammar)


@pytest.mark.slow
@pytest.mark.model
def test_a_fresh_server_answers_nine_requests_with_all_their_tokens() -> None:
    seen = visit(KINDS["tools"], Random(2))
    assert len(seen.following) == 8
    for each in (seen.first, *seen.following):
        assert 0 < each.ttft_s <= each.total_s
        assert each.cpu_s > 0
