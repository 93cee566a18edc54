"""The real command with the real model, killed while it works."""

import os
import signal
import sys

import pytest

from tests.net.hostile import MARKER
from tests.net.http import get, post, posted
from tests.net.processes import is_alive, started
from tests.net.test_endings import read_rest
from tests.net.test_leaving import CHAT, gauge
from tests.net.waiting import read_past_first_event, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.model]

SERVE = (sys.executable, "-m", "headrace", "serve", "smollm2", "--port", "0", "--max-model-len", "1k")
ODD = ("before\0after", "\0", "\ufeffmark", "e\u0301 \U0001f469\u200d\U0001f52c \u202e", "\x7f\x01")
QUESTION = {
    "messages": [{"role": "user", "content": f"Say {MARKER}, then count from one to ten."}],
    "temperature": 0,
    "max_tokens": 12,
}


def test_a_real_engine_that_is_killed_in_mid_stream_comes_back_with_all_its_blocks() -> None:
    with started(SERVE) as process:
        process.wait_until_it_serves(120)
        port, engine = process.port, process.engine_pid
        assert engine is not None
        before = post(port, CHAT, QUESTION).json["choices"][0]["message"]["content"]
        all_blocks = gauge(process, "headrace:total_blocks")
        assert gauge(process, "headrace:free_blocks") == all_blocks
        long = QUESTION | {"stream": True, "ignore_eos": True, "max_tokens": 800}
        with posted(port, CHAT, long) as stream, posted(port, CHAT, long) as other:
            read_past_first_event(stream)
            read_past_first_event(other)
            os.kill(engine, signal.SIGKILL)
            for rest in (read_rest(stream), read_rest(other)):
                assert b"the engine's process has ended (killed by SIGKILL)" in rest
                assert b"[DONE]" not in rest
        away = get(port, "/health")
        assert away.status == 503, "it takes longer than that to load the model"
        assert int(away.headers["retry-after"]) >= 1
        assert post(port, CHAT, QUESTION).status == 503
        assert get(port, "/v1/models").status == 200
        wait_until(lambda: get(port, "/health").status == 200, "the engine is back", 120)
        assert gauge(process, "headrace:free_blocks") == all_blocks
        assert post(port, CHAT, QUESTION).json["choices"][0]["message"]["content"] == before
        wait_until(lambda: gauge(process, "headrace:free_blocks") == all_blocks, "all blocks are back")
        assert get(port, "/load").json["server_load"] == 0
        process.signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert MARKER not in process.log


def test_a_real_server_that_is_killed_takes_its_engine_along() -> None:
    with started(SERVE) as process:
        process.wait_until_it_serves(120)
        engine = process.engine_pid
        assert engine is not None
        with posted(process.port, CHAT, QUESTION | {"stream": True, "max_tokens": 800}) as stream:
            read_past_first_event(stream)
            process.signal(signal.SIGKILL)
            process.wait()
        wait_until(lambda: not is_alive(engine), "the engine has gone")


def test_text_that_is_odd_is_tokenized_whole() -> None:
    """NUL ends no text, and what has no place in a vocabulary comes back all the same."""
    with started(SERVE) as process:
        process.wait_until_it_serves(120)
        for text in (
            "before\0after",
            "\0",
            "\ufeffmark",
            "e\u0301 \U0001f469\u200d\U0001f52c \u202e",
            "\x7f\x01",
        ):
            tokens = post(process.port, "/tokenize", {"prompt": text}).json["tokens"]
            assert post(process.port, "/detokenize", {"tokens": tokens}).json["prompt"] == text
            answer = post(process.port, "/v1/completions", {"prompt": text, "max_tokens": 1})
            assert answer.status == 200
