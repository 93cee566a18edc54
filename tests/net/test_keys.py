"""API keys: who is let in, and that nothing is learnt by trying."""

import json
from collections.abc import Generator

import pytest
from starlette.datastructures import Headers

from headrace.net import door
from tests.net.http import connected, get, post, read_answer
from tests.net.serving import RunningServer, running, service

CHAT = "/v1/chat/completions"
SHORT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}


@pytest.fixture(scope="module")
def locked_server() -> Generator[RunningServer, None, None]:
    with running(service(api_keys=("first-key", "clé-deux"))) as started:
        yield started


@pytest.mark.parametrize(
    "authorization",
    [
        b"Bearer first-key",
        b"bearer first-key",
        b"Bearer   first-key ",
        "Bearer clé-deux".encode(),
        "Bearer clé-deux".encode("latin-1"),
    ],
)
def test_any_of_the_keys_opens_the_door(locked_server: RunningServer, authorization: bytes) -> None:
    """A key with an accent, as curl sends it, was no key."""
    raw = json.dumps(SHORT).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(raw)}\r\n".encode()
    with connected(locked_server.port) as connection:
        connection.sendall(head + b"Authorization: " + authorization + b"\r\n\r\n" + raw)
        assert read_answer(connection).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer first-kex"},
        {"Authorization": "Bearer first-key2"},
        {"Authorization": "Bearer clé-trois"},
        {"Authorization": "Bearer cl"},
        {"Authorization": "Bearer first-key clé-deux"},
        {"Authorization": "Bearer" + " " * 5000},
        {"X-Api-Key": "first-key"},
        {"Authorization": "Basic first-key"},
        {"Authorization": "first-key"},
    ],
    ids=str,
)
def test_without_a_right_key_nothing_is_served(locked_server: RunningServer, headers: dict[str, str]) -> None:
    for body in (SHORT, b"x" * 300_000):
        refused = post(locked_server.port, CHAT, body, **headers)
        assert refused.status == 401
        assert refused.json["error"]["type"] == "AuthenticationError"
    assert get(locked_server.port, "/v1/models").status == 401


def test_keys_are_compared_whole_whatever_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with each, by hashes of one length: how long it takes says nothing of how much fits."""
    compared: list[tuple[int, int]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return one == other

    monkeypatch.setattr(door.secrets, "compare_digest", compare)
    keys = door.Keys(("first-key", "second"))
    for given in ("first-key", "first-kez", "f", "", "x" * 5000, "second"):
        compared.clear()
        keys.fit(Headers({"authorization": f"Bearer {given}"}))
        assert compared == [(32, 32)] * 2


def test_what_is_about_the_server_needs_no_key(locked_server: RunningServer) -> None:
    for path in ("/health", "/metrics", "/version", "/ping"):
        assert get(locked_server.port, path).status == 200
