"""What `python -m bench.soak` holds against a server, and what it lets pass."""

import json
import random
import subprocess
import sys
from dataclasses import replace

import pytest

from bench.soak import requests
from bench.soak.client import Outcome
from bench.soak.judge import Away, Kind, judge
from bench.soak.requests import QUESTIONS, Facts, Visit
from bench.soak.script import make_script

FACTS = Facts("m", 2048, "key", dict.fromkeys(QUESTIONS, "yes"))
GOOD = Visit("good", b"", b"", frozenset({200}), may_be_refused=True, max_tokens=3, expected_text="yes")
STREAMED = replace(GOOD, stream=True)
BAD = Visit("malformed", b"", b"", frozenset({400}))
AWAY = Away(4.0, 6.0)


def outcome(status: int, body: bytes, headers: str = "", elapsed_s: float = 1.0) -> Outcome:
    head = f"HTTP/1.1 {status} X\r\n{headers}\r\n".encode()
    return Outcome(began_at=10.0, ended_at=10.0 + elapsed_s, received=bytearray(head + body))


def whole(text: str = "yes", tokens: int = 3) -> bytes:
    choice = {"message": {"content": text}, "finish_reason": "length"}
    return json.dumps({"choices": [choice], "usage": {"completion_tokens": tokens}}).encode()


def streamed(*texts: str, end: str = "data: [DONE]\n\n") -> bytes:
    events: list[object] = [
        {"choices": [{"delta": {"content": text}, "finish_reason": "length"}]} for text in texts
    ]
    events.append({"choices": [], "usage": {"completion_tokens": 3}})
    return ("".join(f"data: {json.dumps(event)}\n\n" for event in events) + end).encode()


def error(code: int) -> bytes:
    return json.dumps({"error": {"message": "no", "type": "T", "code": code}}).encode()


def kind_of(visit: Visit, seen: Outcome, *away: Away) -> Kind | None:
    fault = judge(visit, seen, away, request_timeout_s=40.0)
    return fault.kind if fault else None


def test_what_is_right_is_let_pass() -> None:
    assert kind_of(GOOD, outcome(200, whole())) is None
    assert kind_of(STREAMED, outcome(200, streamed("y", "es"))) is None
    assert kind_of(GOOD, outcome(503, error(503), "Retry-After: 2\r\n")) is None
    assert kind_of(GOOD, outcome(504, error(504), elapsed_s=40.0)) is None
    assert kind_of(BAD, outcome(400, error(400))) is None


@pytest.mark.parametrize(
    ("visit", "seen"),
    [
        (GOOD, outcome(500, error(500))),
        (GOOD, outcome(503, error(503))),  # without a Retry-After
        (GOOD, outcome(504, error(504), elapsed_s=3.0)),  # long before the time-out
        (BAD, outcome(503, error(503), "Retry-After: 2\r\n")),  # waiting does not mend it
        (BAD, outcome(200, whole())),
        (BAD, outcome(400, b"Bad Request")),  # not in OpenAI's shape
        (BAD, Outcome(10.0, 11.0, cut=True)),
    ],
)
def test_a_wrong_status_or_none_is_noticed(visit: Visit, seen: Outcome) -> None:
    assert kind_of(visit, seen) is Kind.WRONG_STATUS


@pytest.mark.parametrize(
    ("visit", "seen"),
    [
        (GOOD, outcome(200, whole("no"))),
        (GOOD, outcome(200, whole(tokens=2))),
        (GOOD, outcome(200, whole()[:-5])),
        (STREAMED, outcome(200, streamed("y", "e"))),
        (STREAMED, outcome(200, streamed("y", "es", end=""))),
    ],
)
def test_a_wrong_answer_is_noticed(visit: Visit, seen: Outcome) -> None:
    assert kind_of(visit, seen) is Kind.WRONG_ANSWER


def test_a_stream_may_end_with_an_error_only_if_the_engine_was_away_meanwhile() -> None:
    broken = outcome(200, streamed("y", end='data: {"error": {"message": "killed"}}\n\n'))
    assert kind_of(STREAMED, broken) is Kind.WRONG_ANSWER
    assert kind_of(STREAMED, broken, AWAY) is Kind.WRONG_ANSWER, "that was before"
    assert kind_of(STREAMED, broken, AWAY, Away(10.5, 12.0)) is None


def test_a_stream_may_never_end_without_a_word() -> None:
    cut = outcome(200, streamed("y", end=""))
    assert kind_of(STREAMED, cut, Away(10.5, 12.0)) is Kind.WRONG_ANSWER


def test_who_leaves_owes_nothing_and_who_never_hears_anything_hangs() -> None:
    assert kind_of(GOOD, Outcome(10.0, 11.0, left=True)) is None
    half_read = replace(outcome(503, b"", "Retry-After: 2\r\n"), left=True)
    assert kind_of(GOOD, half_read) is None
    assert kind_of(GOOD, Outcome(10.0, 99.0, hung=True)) is Kind.HUNG


def test_the_same_seed_gives_the_same_round() -> None:
    first, again, other = (
        make_script(FACTS, random.Random(seed), 30.0, 4, stalls=True) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other
    assert {due.visit.name for due in first.visits} >= {"good", "leaves", "malformed"}
    assert len(first.kills_at_s) in {1, 2}


def test_every_kind_of_visit_says_what_may_come_back() -> None:
    chance = random.Random(1)
    for kind in requests.MIX:
        for _ in range(50):
            visit = kind(FACTS, chance)
            assert visit.head, visit.name
            assert visit.allowed or visit.manner is requests.Manner.HALF_BODY_LEAVES


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.skipif(sys.platform != "linux", reason="looks at the server through /proc")
def test_a_short_soak_of_the_real_server_finds_nothing() -> None:
    command = [sys.executable, "-m", "bench.soak", "--quick", "--json"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["hung"], result["leaked_blocks"], result["wrong_status"]) == (0, 0, 0)
    assert result["requests"] > 200
    assert result["kills"] > 0
