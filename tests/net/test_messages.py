"""What crosses between the two processes comes out as it went in."""

from headrace.core.output import Output, TokenLogprobs
from headrace.core.request import FinishReason, Grammar, GrammarKind, Request, SamplingParams
from headrace.engine.engine import Engine
from headrace.net.messages import LENGTH_BYTES, Step, Submit, frame, read_from_engine, read_to_engine
from tests.net.scripted import SETTINGS


def test_every_word_of_a_request_crosses() -> None:
    sampling = SamplingParams(
        5,
        temperature=0.5,
        logit_bias=((3, -1.5), (4, 100.0)),
        allowed_token_ids=frozenset({3, 4}),
        bad_words=((1,), (2, 3)),
        grammar=Grammar(GrammarKind.JSON, '{"type": "object"}'),
        num_logprobs=2,
        logprob_token_ids=(5, 3),
        num_prompt_logprobs=0,
    )
    request = Request("r", (1, 2), sampling, 1, 2)
    message = read_to_engine(frame(Submit(request))[LENGTH_BYTES:])
    assert isinstance(message, Submit)
    assert message.request == request


def test_every_word_of_an_output_crosses() -> None:
    likely = TokenLogprobs(7, -0.25, 1, ((7, -0.25), (8, -3.5)))
    impossible = TokenLogprobs(9, float("-inf"), 49_152, ())
    outputs = [
        Output("a", [7, 9], logprobs=[likely, impossible], prompt_logprobs=[likely] * 2),
        Output("b", [], FinishReason.ERROR, error="its grammar is at an end"),
    ]
    message = read_from_engine(frame(Step(1, outputs, Engine(SETTINGS).stats()))[LENGTH_BYTES:])
    assert isinstance(message, Step)
    assert message.outputs == outputs
