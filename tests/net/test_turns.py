"""Nothing that one client sends keeps the event loop from everybody else.

What is measured is the processor time of a turn of the loop, so that a busy machine changes nothing.
Each body took 140 to 450 ms of one turn, for a context of 8,192 tokens.
"""

import asyncio.events
import gc
import json
import threading
import time
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import pytest

from headrace.executor.scripted import ScriptedTokenizer
from headrace.net.admission import Bounds
from headrace.net.generation import MOST_NAMED_AT_ONCE
from tests.net.http import post
from tests.net.scripted import SETTINGS, ScriptedRecipe
from tests.net.serving import RunningServer, running, service

pytestmark = pytest.mark.slow

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
LONGEST_TURN_S = 0.04
"""Twice what is promised: the garbage collector of a test session has much to look at."""

USER = {"role": "user", "content": "a"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
BODIES: list[tuple[str, str, dict[str, Any], int]] = [
    ("messages", CHAT, {"messages": [{"role": "u"}] * 120_000}, 400),
    ("messages to tokenize", "/tokenize", {"messages": [{"role": "u"}] * 120_000}, 200),
    ("parts of a message", CHAT, {"messages": [{"role": "u", "content": [{"type": "text"}] * 90_000}]}, 400),
    ("prompts", COMPLETION, {"prompt": [[7]] * 400_000}, 400),
    ("tools", CHAT, {"messages": [USER], "tool_choice": "required", "tools": [TOOL] * 22_000}, 400),
    (
        "words for the template",
        CHAT,
        {"messages": [USER], "chat_template_kwargs": {"x": [[]] * 500_000}},
        200,
    ),
]


@pytest.fixture(scope="module")
def large() -> Generator[RunningServer, None, None]:
    with running(service(ScriptedRecipe(replace(SETTINGS, max_model_len=8192, num_gpu_blocks=600)))) as made:
        yield made


@pytest.mark.parametrize(
    ("path", "body", "status"), [each[1:] for each in BODIES], ids=[b[0] for b in BODIES]
)
def test_a_large_body_takes_no_long_turn(
    large: RunningServer, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any], status: int
) -> None:
    raw = json.dumps(body | {"max_tokens": 1}, separators=(",", ":")).encode()
    assert len(raw) < 2 << 20, "larger ones are not taken at all"
    turns: list[float] = []
    run = asyncio.events.Handle._run

    def timed(handle: asyncio.events.Handle) -> None:
        began_at = time.thread_time()
        run(handle)
        turns.append(time.thread_time() - began_at)

    gc.collect()
    monkeypatch.setattr(asyncio.events.Handle, "_run", timed)
    assert post(large.port, path, raw).status == status
    assert max(turns) < LONGEST_TURN_S


def test_a_request_that_is_refused_gives_back_the_places_it_had_reserved() -> None:
    with running(service(bounds=Bounds(max_num_queued_reqs=4))) as server:
        too_long = {"prompt": [7] * (SETTINGS.max_model_len + 1), "n": 3}
        assert [post(server.port, COMPLETION, too_long).status for _ in range(3)] == [400] * 3
        assert post(server.port, COMPLETION, {"prompt": [7], "n": 4, "max_tokens": 1}).status == 200


class Naming(ScriptedTokenizer):
    """Notes in which threads tokens are named."""

    def __init__(self) -> None:
        super().__init__()
        self.threads = set[str]()

    def token_bytes(self, token_id: int) -> bytes:
        self.threads.add(threading.current_thread().name)
        return super().token_bytes(token_id)


@pytest.mark.parametrize(("more", "in_turn"), [(0, True), (1, False)])
def test_many_tokens_are_named_beside_the_event_loop(more: int, in_turn: bool) -> None:
    letters = MOST_NAMED_AT_ONCE - 2 + more
    tokenizer = Naming()
    with running(replace(service(), load_tokenizer=lambda: tokenizer)) as server:
        tokenizer.threads.clear()
        asked = {"prompt": "é" + "a" * letters, "return_token_strs": True}
        answer = post(server.port, "/tokenize", asked).json
    assert answer["count"] == letters + 2
    assert answer["token_strs"] == ["\ufffd"] * 2 + ["a"] * letters, "halves of a character show"
    assert (tokenizer.threads == {"server"}) == in_turn
